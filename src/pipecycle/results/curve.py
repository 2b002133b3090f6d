"""Accuracy over slots or energy: the mean over trials and how far they spread, on one grid."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from attrs import frozen

from pipecycle.results.metrics import Axis, Measure, Metrics
from pipecycle.world.streams import Floats, Ints


def evenly(count: int, most: int) -> Ints:
    """At most `most` of the places 0 to `count - 1`, the first and the last among them."""
    return np.unique(np.linspace(0, count - 1, min(most, count)).round().astype(np.int64))


@frozen(eq=False)
class Curve:
    """The mean of some trials, and their standard deviation (None for one trial)."""

    x: Floats
    mean: Floats
    sd: Floats | None
    trials: int


def mean_curve(trials: Iterable[Metrics], axis: Axis, measure: Measure = "accuracy", most: int = 300) -> Curve | None:
    """Linear between checkpoints, over the stretch that all trials cover; None where there is no such stretch."""
    lines = [(x, y) for x, y in (metrics.line(axis, measure) for metrics in trials) if len(x)]
    low, high = max((x[0] for x, _ in lines), default=1.0), min((x[-1] for x, _ in lines), default=0.0)
    if low > high:
        return None
    if axis == "slot" or len(lines) == 1:
        grid = np.unique(np.concatenate([x for x, _ in lines]))
    else:
        grid = np.linspace(low, high, min(most, 120))
    grid = grid[(grid >= low) & (grid <= high)]
    grid = grid[evenly(len(grid), most)]
    values = np.array([np.interp(grid, x, y) for x, y in lines])
    spread = values.std(axis=0, ddof=1) if len(lines) > 1 else None
    return Curve(grid, values.mean(axis=0), spread, len(lines))
