"""Federated learning on harvested energy: plan who trains when, then train.

    from pipecycle import compare, plan, problem, train

    schedule = plan("pipecycle+(groups=5)", harvest=0.3, clients=40, slots=1500)
    history = train(schedule, problem("digits", clients=40, alpha=0.1))
    compare(["fedavg", "pipecycle+"], trials=2).report("report.html")

Importing this is quick: what needs torch is imported when it is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pipecycle import showing, starting  # noqa: F401 (Ctrl-C is heard before what follows is imported)
from pipecycle.errors import ActionError, BusyError, EnergyError, InputError
from pipecycle.policies.registry import build
from pipecycle.schedule.plan import plan
from pipecycle.schedule.schedule import Schedule
from pipecycle.world.contract import Policy, World
from pipecycle.world.energy import Costs
from pipecycle.world.harvest import Always, Bernoulli, Markov
from pipecycle.world.traces import Solar, Spread, Table

if TYPE_CHECKING:
    from pipecycle.data import Split, Task
    from pipecycle.runs.compare import compare
    from pipecycle.runs.comparison import Comparison, sweep
    from pipecycle.runs.config import Config
    from pipecycle.train import train
    from pipecycle.train.history import History
    from pipecycle.train.job import Watch
    from pipecycle.train.problems import Problem, Training, problem
    from pipecycle.train.sessions import LocalSGD

__version__ = "0.1.0"

_HOMES = {
    "Comparison": "runs.comparison",
    "Config": "runs.config",
    "History": "train.history",
    "LocalSGD": "train.sessions",
    "Problem": "train.problems",
    "Split": "data",
    "Task": "data",
    "Training": "train.problems",
    "Watch": "train.job",
    "compare": "runs.compare",
    "problem": "train.problems",
    "sweep": "runs.comparison",
}

__all__ = [
    "ActionError",
    "Always",
    "Bernoulli",
    "BusyError",
    "Comparison",
    "Config",
    "Costs",
    "EnergyError",
    "History",
    "InputError",
    "LocalSGD",
    "Markov",
    "Policy",
    "Problem",
    "Schedule",
    "Solar",
    "Split",
    "Spread",
    "Table",
    "Task",
    "Training",
    "Watch",
    "World",
    "build",
    "compare",
    "plan",
    "problem",
    "sweep",
    "train",
]

showing.drawn_by("pipecycle.report.show")


def __getattr__(name: str) -> Any:
    if name == "train":  # a package that can be called
        return import_module("pipecycle.train")
    if name not in _HOMES:
        raise AttributeError(f"module 'pipecycle' has no attribute {name!r}")
    return getattr(import_module(f"pipecycle.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
