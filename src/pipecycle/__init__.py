"""Federated learning on harvested energy: plan who trains when, then train."""

from __future__ import annotations

from pipecycle import starting  # noqa: F401 (Ctrl-C is heard before what follows is imported)
from pipecycle.errors import ActionError, BusyError, EnergyError, InputError
from pipecycle.policies.registry import build
from pipecycle.schedule.plan import plan
from pipecycle.schedule.schedule import Schedule
from pipecycle.world.contract import Policy, World
from pipecycle.world.energy import Costs
from pipecycle.world.harvest import Always, Bernoulli, Markov
from pipecycle.world.traces import Solar, Spread, Table

__version__ = "0.1.0"

__all__ = [
    "ActionError",
    "Always",
    "Bernoulli",
    "BusyError",
    "Costs",
    "EnergyError",
    "InputError",
    "Markov",
    "Policy",
    "Schedule",
    "Solar",
    "Spread",
    "Table",
    "World",
    "build",
    "plan",
]
