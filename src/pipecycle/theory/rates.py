"""How often groups aggregate, when stale updates blow up, and whom a chain meets (ALGORITHMS.md 9.3, 11 and 14)."""

from __future__ import annotations

from math import gcd, pi, sin
from typing import Literal

from pipecycle.errors import InputError
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


def stability_limit(lag: float) -> float:
    """How much of an error B local steps may remove, m = 1 - (1 - gamma h)^B, before adding updates that are `lag`
    versions old makes the shared model oscillate ever more: m < 2 sin(pi / (2 (2 lag + 1))).

    The formula is for a constant lag; a mean lag that is not whole is put into it as it is."""
    if not lag >= 0:
        raise InputError(f"lag = {lag}: needs at least 0")
    return 2 * sin(pi / (2 * (2 * lag + 1)))


def stable_curvature(lag: float, B: int = 20, gamma: float = 0.05) -> float:
    """The curvature above which a model updated with such a lag is unstable.

    A limit of 1 or more (lag 1 or less) is only reached where the steps themselves overshoot: with an odd number of
    them they turn the error round, with an even one nothing happens until they diverge at 2 / gamma."""
    limit = stability_limit(lag)
    if limit >= 1:
        return (1 + float((limit - 1) ** (1 / B))) / gamma if B % 2 else 2 / gamma
    return (1 - float((1 - limit) ** (1 / B))) / gamma


def contraction(curvature: float, B: int = 20, gamma: float = 0.05) -> float:
    """m: the part of an error along a direction of that curvature that a session's B steps remove."""
    return 1 - float((1 - gamma * curvature) ** B)


def chain_coverage(clients: int, groups: int, session: int) -> int | None:
    """Distinct clients that a chain ever meets at saturation: N / gcd(C, K) where the group size divides the
    population (C chains, K cohorts), None where it does not and the groups straddle."""
    size = group_cap(clients, groups)
    interval = max(1, -(-session // groups))
    if clients % size:
        return None
    return clients // gcd(-(-session // interval), clients // size)
