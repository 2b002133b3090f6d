"""Accuracy over slots or energy: the mean over trials and how far they spread, on one grid."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from attrs import frozen

from pipecycle.report.records import Group, Record
from pipecycle.world.energy import UNIT
from pipecycle.world.lineage import Floats

Axis = Literal["slot", "energy"]


@frozen(eq=False)
class Curve:
    """The mean of so many trials, and their standard deviation (None for one trial)."""

    x: Floats
    mean: Floats
    sd: Floats | None
    trials: int


def curve(group: Group, axis: Axis, most: int = 300) -> Curve | None:
    """Linear between checkpoints, over the stretch that all trials cover.

    A run that stopped early keeps its last accuracy up to the end of its schedule, as in the table."""
    return mean_curve([_line(record, axis) for record in group.curves], axis, most)


def mean_curve(lines: Sequence[tuple[Floats, Floats]], axis: Axis, most: int = 300) -> Curve | None:
    """The mean of several lines with increasing x, one per trial; None where they have no stretch in common."""
    low, high = max((x[0] for x, _ in lines), default=1.0), min((x[-1] for x, _ in lines), default=0.0)
    if low > high:
        return None
    if axis == "slot" or len(lines) == 1:
        grid = np.unique(np.concatenate([x for x, _ in lines]))
    else:
        grid = np.linspace(low, high, min(most, 120))
    grid = grid[(grid >= low) & (grid <= high)]
    if len(grid) > most:
        grid = grid[np.unique(np.linspace(0, len(grid) - 1, most).round().astype(int))]
    values = np.array([np.interp(grid, x, y) for x, y in lines])
    spread = values.std(axis=0, ddof=1) if len(lines) > 1 else None
    return Curve(grid, values.mean(axis=0), spread, len(lines))


def _line(record: Record, axis: Axis) -> tuple[Floats, Floats]:
    metrics, schedule = record.metrics, record.schedule
    assert metrics is not None
    x, y = getattr(metrics, axis), metrics.accuracy
    regular = metrics.budget == 0
    if regular.any():
        x, y = x[regular], y[regular]
    if record.ended in ("early", "diverged"):
        last = schedule.slots if axis == "slot" else int(schedule.energy.spent[-1]) / UNIT
        x, y = np.append(x, last), np.append(y, y[-1])
    # Where energy stood still, only the last of several checkpoints counts.
    kept = np.append(np.diff(x) > 0, True)
    return x[kept], y[kept]
