"""Executing schedules on real data.

The names below come when they are asked for: torch takes seconds to import."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipecycle.train.analysis import evaluate
    from pipecycle.train.engine import train, train_many
    from pipecycle.train.job import Job, Watch
    from pipecycle.train.problems import Problem, Training, problem
    from pipecycle.train.sessions import LocalSGD

_HOMES = {
    "Job": "job",
    "LocalSGD": "sessions",
    "Problem": "problems",
    "Training": "problems",
    "Watch": "job",
    "evaluate": "analysis",
    "problem": "problems",
    "train": "engine",
    "train_many": "engine",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'pipecycle.train' has no attribute {name!r}")
    value: object = getattr(import_module(f"pipecycle.train.{_HOMES[name]}"), name)
    return value


__all__ = ["Job", "LocalSGD", "Problem", "Training", "Watch", "evaluate", "problem", "train", "train_many"]
