"""The paper's bounds, its optimal G, and when they say anything (paper, Section V and Appendix; ALGORITHMS.md 10, 11).

Symbols are the paper's: B session length, G concurrent groups, gamma learning rate, L smoothness, d longest chain.
Where the print is inconsistent there are two readings: `as_printed`, and `consistent`, which keeps every copy of a
sum that the proof sums over.  A bound that is vacuous says why instead of returning a number.
"""

from __future__ import annotations

from math import gcd, inf, isfinite, isnan, pi, sin, sqrt
from typing import Literal

import attrs
from attrs import frozen

from pipecycle.errors import InputError
from pipecycle.policies.rotation import group_cap

Reading = Literal["as_printed", "consistent"]
Condition = Literal["theorem", "proof", "needed"]


@frozen
class Constants:
    """What the bounds take for granted about the problem."""

    L: float
    """Smoothness of the clients' losses."""
    sigma2: float = 1.0
    """Variance of a stochastic gradient."""
    alpha: float = 0.1
    """Distance of a client's gradient from its group's mean."""
    beta: float = 0.1
    """Distance of a group's mean gradient from everybody's."""
    omega2: float = 1.0
    """Largest sum of squared weights in a group: 1 / the smallest group for equal samples."""
    f0_gap: float = 2.3
    """f(x_0) - f*."""


@frozen
class System:
    """The pipeline and its energy."""

    B: int = 20
    G: int = 2
    gamma: float = 0.05
    slots: int = 15_000
    clients: int = 100
    delta: float = 0.5

    def __attrs_post_init__(self) -> None:
        for name, least in (("B", 1), ("G", 1), ("slots", 1), ("clients", 1)):
            if getattr(self, name) < least:
                raise InputError(f"{name} = {getattr(self, name)}: needs at least {least}")
        if not (isfinite(self.gamma) and self.gamma > 0):
            raise InputError(f"gamma = {self.gamma}: needs a positive number")
        if not 0 < self.delta <= 1:
            raise InputError(f"delta = {self.delta}: needs a charging probability above 0 and at most 1")

    @property
    def d_max(self) -> int:
        """Longest ancestry that fits the horizon."""
        return self.slots // self.B

    @property
    def n_G(self) -> int:
        """Members per group, at most."""
        return group_cap(self.clients, self.G)

    @property
    def interval(self) -> int:
        """R: slots between two formations."""
        return max(1, -(-self.B // self.G))


@frozen
class Bound:
    """A bound on the squared gradient norm, or the reason why there is none."""

    transient: float
    """What remains of the start; falls with the number of events."""
    floor: float
    """What no number of events removes."""
    vacuous: str | None = None
    """Why the bound says nothing, if it says nothing."""

    @property
    def value(self) -> float:
        """Infinite where the bound is vacuous."""
        return inf if self.vacuous else self.transient + self.floor


def gamma_squared(system: System, constants: Constants) -> float:
    """Gamma^2: what a group's update may amount to beyond the gradient at its reference (Lemma 1)."""
    B, g = system.B, system.gamma
    noise = B * g**2 * constants.sigma2 * constants.omega2
    drift = 4 * constants.L**2 * B**2 * g**2
    return noise + drift + 4 * B**2 * g**2 * (constants.alpha + constants.beta) ** 2


def zeta(system: System, L: float) -> float:
    """The progress that an event guarantees per squared gradient norm; the theorem needs it positive."""
    B, G, g, d = system.B, system.G, system.gamma, system.d_max
    return B * g / 2 - 2 * B**2 * g**2 * L - 2 * B**2 * g**2 * (d**2 + 1) * L * (G - 1) ** 2


def lambda_squared(system: System, constants: Constants, reading: Reading = "as_printed") -> float:
    """Lambda^2: what an event may lose to noise, drift and staleness."""
    G, d = system.G, system.d_max
    copies = (d + 1) * (G - 1) + 1 if reading == "as_printed" else (d**2 + 1) * (G - 1) ** 2 + 1
    heterogeneity = constants.beta**2 * system.B * system.gamma / 2
    return constants.L * copies * gamma_squared(system, constants) + heterogeneity


def lemma_1(system: System, constants: Constants, gradient2: float) -> float:
    """Bound on the expected squared norm of a group's update, given that of the gradient at its reference."""
    return gamma_squared(system, constants) + 2 * system.B**2 * system.gamma**2 * gradient2


def lemma_2(system: System, constants: Constants, gradient2: float, reading: Reading = "as_printed") -> float:
    """Bound on the perturbation ||z_tau - x_tau||^2: up to d (G - 1) updates of other chains.

    `as_printed` keeps one copy of Gamma^2 where the sum has d (G - 1) of them."""
    others = system.d_max * (system.G - 1)
    pull = 2 * system.B**2 * system.gamma**2 * gradient2
    copies = 1 if reading == "as_printed" else others
    return others * (copies * gamma_squared(system, constants) + others * pull)


def theorem(
    system: System, constants: Constants, events: float | None = None, reading: Reading = "as_printed"
) -> Bound:
    """Theorem 1 after `events` aggregations (by default those that Corollary 1 expects).

    It is stated for the virtual model z; its proof ends with the gradient at the references x."""
    progress = zeta(system, constants.L)
    count = expected_events(system) if events is None else events
    if progress <= 0:
        limit = step_limit(system, constants.L, "needed")
        return Bound(
            inf, inf, f"zeta = {progress:.4g} is not positive: the step size {system.gamma:g} is above {limit:.3g}"
        )
    if count <= 0:
        return Bound(inf, inf, "there is no event")
    return Bound(constants.f0_gap / (progress * count), lambda_squared(system, constants, reading) / progress)


def corollary(system: System, constants: Constants, reading: Reading = "as_printed") -> Bound:
    """Corollary 1: the theorem with the events that the energy and the pipeline allow."""
    return theorem(system, constants, expected_events(system), reading)


def event_rate(system: System, reading: Literal["printed", "corrected"] = "printed") -> float:
    """Aggregations per slot: what the energy allows, or what the pipeline does, whichever is less.

    The printed recharging time leaves out the session itself; `corrected` counts a whole cycle, (B + 1) / delta.
    Either assumes full groups, so scarce energy gives more and smaller groups than this."""
    B, delta = system.B, system.delta
    cycle = B + 1 - B * delta if reading == "printed" else B + 1
    return min(system.clients * delta / (system.n_G * cycle), system.G / B)


def expected_events(system: System, reading: Literal["printed", "corrected"] = "printed") -> float:
    """T = S_tot r."""
    return system.slots * event_rate(system, reading)


def saturation(B: int, reading: Literal["printed", "corrected"] = "printed") -> float:
    """The charging probability above which the pipeline and not the energy limits the rate."""
    return 2 * (B + 1) / (7 * B) if reading == "printed" else (B + 1) / (2.5 * B)


def step_limit(system: System, L: float, condition: Condition = "needed") -> float:
    """The largest step size: as the theorem states it, as its proof does, and as zeta > 0 needs it."""
    B, G, d = system.B, system.G, system.d_max
    if condition == "theorem":
        return inf if G == 1 else 1 / (4 * B * L * (d**2 + 1) * (G - 1))
    power = 1 if condition == "proof" else 2
    return 1 / (4 * B * L * (1 + (d**2 + 1) * float(G - 1) ** power))


def optimal_groups(system: System, L: float) -> float:
    """G*: the maximiser of h(G) = G zeta(G), which makes the transient smallest and ignores the floor.

    NaN where the root is not real."""
    Bg, d = system.B * system.gamma, system.d_max
    inside = 1 + 3 * (1 - 4 * Bg * L) / (4 * Bg * (d**2 + 1) * L)
    return 2 / 3 + sqrt(inside) / 3 if inside >= 0 else float("nan")


def best_whole_groups(system: System, L: float) -> int:
    """G* as a number of groups: the neighbour with the larger h, at least one."""
    root = optimal_groups(system, L)
    if isnan(root):
        return 1
    below = max(1, int(root))

    def h(groups: int) -> float:
        return groups * zeta(attrs.evolve(system, G=groups), L)

    return below if h(below) >= h(below + 1) else below + 1


def stability_limit(lag: int) -> float:
    """How much of an error B local steps may remove, m = 1 - (1 - gamma h)^B, before adding updates that are `lag`
    versions old makes the shared model oscillate ever more: m < 2 sin(pi / (2 (2 lag + 1)))."""
    if lag < 0:
        raise InputError(f"lag = {lag}: needs at least 0")
    return 2 * sin(pi / (2 * (2 * lag + 1)))


def stable_curvature(lag: int, B: int = 20, gamma: float = 0.05) -> float:
    """The curvature above which a model updated with such a lag is unstable; infinite where nothing is."""
    limit = stability_limit(lag)
    if limit >= 1:
        return 2 / gamma if limit >= 2 else inf
    return (1 - float((1 - limit) ** (1 / B))) / gamma


def chain_coverage(clients: int, groups: int, session: int) -> int | None:
    """Distinct clients that a chain ever meets at saturation: N / gcd(C, K) where the group size divides the
    population (C chains, K cohorts), None where it does not and the groups straddle."""
    size = group_cap(clients, groups)
    interval = max(1, -(-session // groups))
    if clients % size:
        return None
    return clients // gcd(-(-session // interval), clients // size)
