"""The paper's bounds, its optimal G, and when they say anything (paper, Section V and Appendix).

Symbols are the paper's: B session length, G concurrent groups, gamma learning rate, L smoothness, d longest chain.
Where the print is inconsistent there are two readings: `as_printed`, and `consistent`, which keeps every copy of a
sum that the proof sums over.  A bound that is vacuous says why instead of returning a number.
"""

from __future__ import annotations

from math import inf, isnan, sqrt
from typing import Literal

import attrs
from attrs import frozen

from pipecycle.theory.rates import expected_events
from pipecycle.theory.system import Constants, System

Reading = Literal["as_printed", "consistent"]
Condition = Literal["theorem", "proof", "needed"]
UNLEARNT = "no measured model has a lower loss than x_0, so f* is unknown"
"""Why a run that never got below its initial loss has no bound."""


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


def lemma_2(
    system: System, constants: Constants, gradient2: float, reading: Reading = "as_printed", others: int | None = None
) -> float:
    """Bound on the perturbation ||z_tau - x_tau||^2: up to d (G - 1) updates of other chains, or as many as there
    really are.  `gradient2` bounds the squared gradient norms at their references.

    `as_printed` keeps one copy of Gamma^2 where the sum has one for each."""
    count = system.d_max * (system.G - 1) if others is None else others
    pull = 2 * system.B**2 * system.gamma**2 * gradient2
    copies = 1 if reading == "as_printed" else count
    return count * (copies * gamma_squared(system, constants) + count * pull)


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


def smoothness_alone(constants: Constants) -> float:
    """2 L (f(x_0) - f*): what bounds the smallest squared gradient norm without any theorem, since the first group
    starts from x_0 and an L-smooth function has no larger gradient there."""
    return 2 * constants.L * constants.f0_gap


def least_ratio(system: System) -> float:
    """The smallest value that theorem / smoothness alone can take, whatever the step size, L and f(x_0) - f*.

    zeta is at most 1 / (32 L K) with K = 1 + (d^2 + 1)(G - 1)^2, so the transient alone is 16 K / T times as large.
    With G >= 2 and the events of Corollary 1 (T < (d + 1) G) that is never below 12: the theorem then adds nothing."""
    count = expected_events(system)
    return 16 * _crowd(system) / count if count > 0 else inf


def best_step(system: System, constants: Constants, reading: Reading = "as_printed") -> float:
    """The step size that makes Theorem 1 tightest: the root of the derivative of (a + b g + c g^2) / (p g - q g^2)."""
    B, count = system.B, expected_events(system)
    unit = attrs.evolve(system, gamma=1.0)
    a, b = constants.f0_gap / count, constants.beta**2 * B / 2
    c = lambda_squared(unit, constants, reading) - b
    p, q = B / 2, 2 * B**2 * constants.L * _crowd(system)
    return a * p / (a * q + sqrt((a * q) ** 2 + (c * p + b * q) * a * p))


def _crowd(system: System) -> float:
    return 1 + (system.d_max**2 + 1) * float(system.G - 1) ** 2


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
