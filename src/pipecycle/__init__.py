"""Federated learning on harvested energy: plan who trains when, then train."""

from __future__ import annotations

from pipecycle.energy import Costs
from pipecycle.errors import ActionError, BusyError, EnergyError, InputError
from pipecycle.harvest import Always, Bernoulli, Markov
from pipecycle.plan import plan
from pipecycle.registry import build
from pipecycle.schedule import Schedule
from pipecycle.traces import Solar, Spread, Table
from pipecycle.world import Policy, World

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
