"""What runs have shown, as tables, figures and one self-contained page."""

from __future__ import annotations

from pipecycle.runs.records import Group, Record, load

__all__ = ["Group", "Record", "load"]
