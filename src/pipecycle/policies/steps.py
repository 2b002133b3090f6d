"""How far the server goes with an update: all the way (the papers), a fixed part of it, or as far as its lag allows.

A server that adds s times an update which is l versions old is stable in every direction, however stiff, for
s < 2 sin(pi / (4 l + 2)) (Levin and May 1976; docs/stability.md says what is assumed).  Ours, all of it:

* the lag-stable step is `kappa` = 0.85 of that limit, and never more than 1;
* the lag counts as at least G - 1, what it comes to once G groups are under way: the first groups meet a lag of 0 and
  would take steps near 1;
* where groups differ in size the step is scaled by size over the mean of the last 50 groups, because the mean of few
  updates is noisier, but not beyond 0.87 of the limit: below that, steps that vary are stable too.
"""

from __future__ import annotations

from collections import deque
from math import pi, sin
from typing import Any

import numpy as np

from pipecycle.checks import Check
from pipecycle.errors import InputError
from pipecycle.world.contract import World
from pipecycle.world.streams import Ints, merged

LAG_STABLE = "lag-stable"
KAPPA = 0.85
VARYING = 0.87
RECENT = 50


def stability_limit(lag: float) -> float:
    """2 sin(pi / (4 lag + 2)): what a step times the part of an error that a session removes must stay below.

    Rounded to twelve places: C libraries differ in the last bit of a sine, and schedules must not."""
    if not lag >= 0:
        raise InputError(f"lag = {lag}: needs at least 0")
    return round(2 * sin(pi / (4 * lag + 2)), 12)


class LagStable:
    """Steps by lag and group size."""

    def __init__(self, groups: int, kappa: float = KAPPA) -> None:
        self._least_lag, self._kappa = groups - 1, kappa
        self._sizes: deque[int] = deque(maxlen=RECENT)

    def of(self, lag: int, size: int) -> float:
        """The step with the mean of `size` updates, the oldest of them `lag` versions old."""
        self._sizes.append(size)
        limit = stability_limit(max(lag, self._least_lag))
        step = min(1.0, self._kappa * limit)
        weight = size * len(self._sizes) / sum(self._sizes)
        return step if weight == 1.0 else min(1.0, step * weight, VARYING * limit)


class Fixed:
    """The same step always; 1 is the papers'."""

    def __init__(self, step: float) -> None:
        self._step = step

    def of(self, lag: int, size: int) -> float:
        return self._step


def through_star(world: World, steps: Fixed | LagStable, members: Ints, star: int) -> int | None:
    """The others send to the star, which uploads what it then has; the version that the server makes of it, or None if
    the upload is lost.  The lag that counts is the largest among the members."""
    fleet, lineage = world.fleet, world.lineage
    updates = fleet.send(members[members != star], "hub")
    own = fleet.send_one(star, "server")
    if own < 0:
        return None
    updates = merged(updates, np.array([own]))
    step = steps.of(lineage.lag(int(fleet.reference[members].min())), len(updates))
    return lineage.publish(lineage.mean(lineage.published, updates, step=step))


def rule(step: float | str, groups: int) -> Fixed | LagStable:
    """The rule that a policy's setting `step` names."""
    return LagStable(groups) if isinstance(step, str) else Fixed(step)


def _fault(value: Any) -> str | None:
    number = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1
    return None if number or value == LAG_STABLE else f"a number above 0 and at most 1, or {LAG_STABLE}"


step_setting = Check(_fault, above=0, most=1, choices=(LAG_STABLE,))
"""Validates a setting `step`: a number in (0, 1], or "lag-stable"."""
