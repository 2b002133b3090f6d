"""When adding stale updates is stable: the recursion, its limit, and what a schedule's steps are beside it.

Along a direction of curvature h a session of B steps removes the part m = 1 - (1 - gamma h)^B of the error it starts
with.  A server that adds s times the update of a session that started l versions ago obeys

    e(k+1) = e(k) - s m e(k-l),    stable exactly for 0 < s m < 2 sin(pi / (4 l + 2))    (Levin and May 1976).

docs/stability.md says what is assumed and what is not proven."""

from __future__ import annotations

from math import pi, sin
from typing import Any

import numpy as np
from attrs import frozen

from pipecycle.errors import InputError
from pipecycle.policies.steps import stability_limit
from pipecycle.schedule.ancestry import mean
from pipecycle.schedule.schedule import Schedule
from pipecycle.world.streams import Floats, Ints


def stable_curvature(lag: float, B: int = 20, gamma: float = 0.05, step: float = 1.0) -> float:
    """The curvature above which a model updated with such a lag and step is unstable.

    A limit of 1 or more (lag 1 or less, or a step below the limit) is only reached where a session itself overshoots:
    with an odd number of steps it turns the error round, with an even one nothing happens until it diverges at
    2 / gamma.  A mean lag that is not whole is put into the formula as it is."""
    if not step > 0:
        raise InputError(f"step = {step}: needs a positive number")
    limit = stability_limit(lag) / step
    if limit >= 1:
        return (1 + float((limit - 1) ** (1 / B))) / gamma if B % 2 else 2 / gamma
    return (1 - float((1 - limit) ** (1 / B))) / gamma


def memory_limit(rounds: int) -> float:
    """The same limit for a server that adds, in every round, the mean of updates that are 0, 1, ... `rounds` - 1 rounds
    old, as MIFA does with clients that take part in one round of so many: 2 L sin(pi / (2 L))^2."""
    return 2 * rounds * sin(pi / (2 * rounds)) ** 2


FEWEST = 40
"""Publications from which on a schedule shows whether errors die out."""


@frozen(eq=False)
class Steps:
    """One entry per published version that updates went into."""

    version: Ints
    lag: Ints
    """Of its oldest update: versions published after the update's reference and before this one.  0 where the reference
    itself is in the recipe with at least the update's weight, as in PipeCycle's chains."""
    step: Floats
    """The weight of its updates together."""
    update_lag: Ints
    """The lags of all updates, one entry each."""

    @property
    def limit(self) -> Floats:
        return np.array([stability_limit(lag) for lag in self.lag.tolist()])

    @property
    def ratio(self) -> Floats:
        """Steps over their limits: above 1, a direction in which sessions go all the way is unstable."""
        return self.step / self.limit

    def figures(self) -> dict[str, Any]:
        """For summaries: a mean of nothing is None."""
        some = len(self.version) > 0
        return {
            "lag_max": int(self.lag.max()) if some else None,
            "step_mean": mean(self.step),
            "ratio_mean": mean(self.ratio),
            "ratio_max": float(self.ratio.max()) if some else None,
        }


def steps(schedule: Schedule) -> Steps:
    """What the server of a schedule did at every publication.

    Recipes are followed through versions that were never published (hub models, memories, hand-overs) down to
    published ones; of several sessions in a line the first counts, the others start from its result."""
    known = _Recipes(schedule)
    made = [known.step(number, version) for number, version in enumerate(schedule.publications.version.tolist())]
    kept = [
        (version, max(lags), weight, lags)
        for version, (lags, weight) in zip(schedule.publications.version.tolist(), made, strict=True)
        if lags
    ]
    return Steps(
        np.array([version for version, _, _, _ in kept], np.int64),
        np.array([lag for _, lag, _, _ in kept], np.int64),
        np.array([weight for _, _, weight, _ in kept], np.float64),
        np.array([lag for _, _, _, lags in kept for lag in lags], np.int64),
    )


def stable_share(schedule: Schedule) -> float | None:
    """The largest part m of an error that sessions may remove, of 0.01 to 1, for the errors of what this schedule
    publishes to die out; None if it publishes too little to tell.

    The recursion is followed through every recipe of the schedule, with its own lags, steps and memories, so that this
    holds also where updates of different ages are mixed.  Stable at 1 is stable in every direction."""
    versions, published = schedule.versions, schedule.publications.version
    if len(published) < FEWEST:
        return None
    parts = np.arange(1, 101) / 100
    errors = np.zeros((len(versions), len(parts)))
    errors[0] = 1.0
    with np.errstate(over="ignore", invalid="ignore"):
        for version in range(1, len(versions)):
            recipe = schedule.ancestry.recipe(version)
            moved = recipe.weights @ errors[schedule.sessions.reference[recipe.sessions]]
            errors[version] = recipe.coefficients @ errors[recipe.versions] - parts * moved
    seen = np.abs(errors[published])
    quarter = len(seen) // 4
    early, late = seen[quarter : 2 * quarter].max(0), seen[3 * quarter :].max(0)
    dying = late <= early * (1 + 1e-9)  # a number that grew beyond all bounds is not
    return float(parts[-1] if dying.all() else np.argmin(dying) / 100)


class _Recipes:
    """The terms of all versions as plain lists: there are thousands, and most are short."""

    def __init__(self, schedule: Schedule) -> None:
        versions = schedule.versions
        self.order = schedule.ancestry.published_as.tolist()
        published = np.zeros(len(versions), bool)
        published[schedule.publications.version] = True
        published[:1] = True
        self.published = published.tolist()
        self.base_at, self.base = versions.base_at.tolist(), versions.base.tolist()
        self.coefficient = versions.coefficient.tolist()
        self.update_at, self.weight = versions.update_at.tolist(), versions.weight.tolist()
        self.reference = schedule.sessions.reference[versions.update].tolist()

    def step(self, number: int, version: int) -> tuple[list[int], float]:
        """The lags of the updates in the `number`-th publication, and their weight."""
        shares: dict[int, float] = {}  # of the versions that were met
        updates: dict[int, list[float]] = {}  # weights by reference
        ahead = [(version, 1.0)]
        while ahead:
            here, part = ahead.pop()
            for k in range(self.base_at[here], self.base_at[here + 1]):
                base, share = self.base[k], part * self.coefficient[k]
                shares[base] = shares.get(base, 0.0) + share
                if not self.published[base]:
                    ahead.append((base, share))
            for k in range(self.update_at[here], self.update_at[here + 1]):
                if self.published[self.reference[k]]:
                    updates.setdefault(self.reference[k], []).append(part * self.weight[k])
        lags: list[int] = []
        total = 0.0
        for reference, weights in updates.items():
            weight = sum(weights)
            own = shares.get(reference, 0.0) >= weight - 1e-9
            lags += [0 if own else number - self.order[reference]] * len(weights)
            total += weight
        return lags, total
