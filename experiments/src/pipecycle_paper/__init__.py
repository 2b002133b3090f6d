"""The paper's evaluation as an experiment on pipecycle: its runs, tables, figures and claims, and ours beside them."""

from __future__ import annotations

from pathlib import Path

from pipecycle.errors import add_library

add_library(Path(__file__).resolve().parent)
