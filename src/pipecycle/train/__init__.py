"""Executing schedules on real data.

The names below come when they are asked for: torch takes seconds to import.  The package can be called as its function
`train`, so that `from pipecycle import train` gives one thing that is both."""

from __future__ import annotations

import inspect
import sys
from contextlib import nullcontext
from functools import wraps
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

from pipecycle.screen import training

if TYPE_CHECKING:
    from pipecycle.schedule.schedule import Schedule
    from pipecycle.train.analysis import evaluate
    from pipecycle.train.engine import Tick, train_many
    from pipecycle.train.history import History
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
    "train_many": "engine",
}
__all__ = ["Job", "LocalSGD", "Problem", "Training", "Watch", "evaluate", "problem", "train", "train_many"]


def train(
    schedule: Schedule,
    problem: Problem,
    watch: Watch | None = None,
    *,
    device: str = "auto",
    precision: Literal["fp32", "tf32", "bf16"] = "fp32",
    trainer: Literal["auto", "loop", "stacked"] = "auto",
    width: int | None = None,
    tick: Tick | None = None,
) -> History:
    """Train a schedule on a problem and return what it has shown.

    `watch` says when models are evaluated; `device` is auto, cpu, cuda or cuda:NUMBER.  `precision` is that of
    products on a GPU, `trainer` and `width` choose how sessions are stacked.  `tick` is called after every stack;
    without it, a bar in a terminal or a notebook shows how far the training is.

    >>> from pipecycle import Watch, plan, problem, train
    >>> schedule = plan("pipecycle+", harvest=0.5, clients=10, slots=300)
    >>> train(schedule, problem("digits", clients=10), Watch(every=100), device="cpu")
    """
    from pipecycle.train.engine import train_many
    from pipecycle.train.job import Job

    jobs = [Job(schedule, problem, watch)]
    with training(schedule.policy) if tick is None else nullcontext(tick) as told:
        return train_many(jobs, device=device, precision=precision, trainer=trainer, width=width, tick=told)[0]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'pipecycle.train' has no attribute {name!r}")
    value: object = getattr(import_module(f"pipecycle.train.{_HOMES[name]}"), name)
    return value


class _Package(ModuleType):
    """This package, which can be called."""

    __signature__ = inspect.signature(train)

    @wraps(train)
    def __call__(self, *given: Any, **options: Any) -> History:
        return train(*given, **options)


sys.modules[__name__].__class__ = _Package
