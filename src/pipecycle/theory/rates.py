"""How often groups aggregate, and whom a chain meets (docs/theory.md)."""

from __future__ import annotations

from math import gcd
from typing import Literal

from pipecycle.policies.rotation import group_cap
from pipecycle.theory.system import System

Kind = Literal["printed", "corrected"]
KINDS: tuple[Kind, ...] = ("printed", "corrected")


def energy_rate(system: System, reading: Kind = "printed") -> float:
    """Aggregations per slot that the energy allows, as if the pipeline had room for all of them.

    The printed recharging time leaves out the session itself; `corrected` counts a whole cycle, (B + 1) / delta.
    Either assumes full groups, so scarce energy gives more and smaller groups than this."""
    B, delta = system.B, system.delta
    cycle = B + 1 - B * delta if reading == "printed" else B + 1
    return system.clients * delta / (system.n_G * cycle)


def event_rate(system: System, reading: Kind = "printed") -> float:
    """Aggregations per slot: what the energy allows, or what the pipeline does, whichever is less."""
    return min(energy_rate(system, reading), system.G / system.B)


def expected_events(system: System, reading: Kind = "printed") -> float:
    """T = S_tot r."""
    return system.slots * event_rate(system, reading)


def saturation(B: int, reading: Kind = "printed") -> float:
    """The charging probability above which the pipeline and not the energy limits the rate."""
    return 2 * (B + 1) / (7 * B) if reading == "printed" else (B + 1) / (2.5 * B)


def chain_coverage(clients: int, groups: int, session: int) -> int | None:
    """Distinct clients that a chain ever meets at saturation: N / gcd(C, K) where the group size divides the
    population (C chains, K cohorts), None where it does not and the groups straddle."""
    size = group_cap(clients, groups)
    interval = max(1, -(-session // groups))
    if clients % size:
        return None
    return clients // gcd(-(-session // interval), clients // size)
