"""The checkpoints of one run, column by column, and what everybody asks of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Literal, Self

import numpy as np
from attrs import field, frozen

from pipecycle.results.statistics import sampling_error
from pipecycle.world.streams import Floats, Ints

Axis = Literal["slot", "energy"]
Measure = Literal["accuracy", "clients_accuracy"]
COLUMNS = ("slot", "energy", "accuracy", "loss", "best", "budget")
"""What every run has; the accuracy of the clients' own models may be missing."""
CLASS = re.compile(r"class_[0-9]+")
"""Columns with the accuracy of one class, in the order of classes."""


@frozen(eq=False, slots=False)
class Metrics:
    """What a run has shown, one entry per checkpoint, in the order of slots."""

    slot: Floats
    """Slots elapsed."""
    energy: Floats
    """Units spent by then."""
    accuracy: Floats
    """Percent."""
    loss: Floats
    best: Floats
    """Best accuracy so far."""
    budget: Floats
    """1 at the last slot within the budget, 0 at regular checkpoints."""
    clients_accuracy: Floats
    """Mean over the clients' own models; NaN where it was not taken."""
    by_class: Floats | None = field(default=None, kw_only=True)
    """Accuracy by class, in percent, one row per checkpoint; None where it was not recorded."""
    diverged: bool = field(default=False, kw_only=True)
    end: tuple[float, float] | None = field(default=None, kw_only=True)
    """Slots and units at the end of the schedule, for a run that stopped before it."""

    @classmethod
    def of(cls, columns: Mapping[str, Floats], **about: Any) -> Self:
        """From columns by name, others among them or not."""
        known: dict[str, Any] = {name: columns[name] for name in COLUMNS}
        classes = [columns[name] for name in columns if CLASS.fullmatch(name)]
        known["by_class"] = np.stack(classes, axis=1) if classes else None
        return cls(**known, clients_accuracy=columns.get("clients_accuracy", columns["slot"] * np.nan), **about)

    @cached_property
    def at_budget(self) -> int:
        """The row at the last slot within the budget, or the last one if the budget was not reached."""
        marked = np.flatnonzero(self.budget)
        return int(marked[0]) if len(marked) else len(self.slot) - 1

    @cached_property
    def regular(self) -> Ints:
        """The rows that are not the extra one at the budget."""
        return np.flatnonzero(self.budget == 0)

    @property
    def possible(self) -> bool:
        """Whether a run could have shown these: slots never fall, accuracies are percentages.  A live run may not know
        its accuracy, and may have counted energy that a report took back."""
        percent = np.concatenate([self.accuracy, self.best])
        percent = percent[~np.isnan(percent)]
        sound = ((percent >= 0) & (percent <= 100)).all() and (self.slot >= 1).all() and (self.energy >= 0).all()
        return bool(sound and (np.diff(self.slot) >= 0).all() and np.isin(self.budget, (0, 1)).all())

    def reaches(self, target: float) -> int | None:
        """The first row within the budget at or above an accuracy."""
        rows = np.flatnonzero(self.accuracy[: self.at_budget + 1] >= target)
        return int(rows[0]) if len(rows) else None

    def energy_to(self, target: float) -> float | None:
        """Units spent until an accuracy is reached."""
        row = self.reaches(target)
        return None if row is None else float(self.energy[row])

    @property
    def spent(self) -> float:
        """Units spent within the budget; a run that diverged would have spent what its schedule does."""
        planned = self.end[1] if self.diverged and self.end is not None else 0.0
        return max(float(self.energy[self.at_budget]), planned)

    def cost(self, target: float) -> float:
        """Units to an accuracy; a run that never reaches it counts with all it spent."""
        needed = self.energy_to(target)
        return self.spent if needed is None else needed

    def noise(self, test_samples: int) -> float:
        """Standard error of the accuracy at the budget: the drawn test samples, and how much it still moves between
        the last checkpoints."""
        last = self.accuracy[: self.at_budget + 1][-11:]  # with the row at the budget, which may show another chain
        moves = len(last) > 2 and not self.diverged  # a model that guesses one class has come to rest
        wobble = float(np.std(np.diff(last))) / np.sqrt(2) if moves else 0.0
        return float(np.hypot(sampling_error(float(self.accuracy[self.at_budget]), test_samples), wobble))

    def line(self, axis: Axis, measure: Measure = "accuracy") -> tuple[Floats, Floats]:
        """Points to draw, x rising: regular checkpoints over slots, all up to the budget over energy.

        A run that stopped before the end of its schedule keeps its last value until then; one that diverged guesses."""
        rows = np.arange(self.at_budget + 1) if axis == "energy" or not len(self.regular) else self.regular
        x, y = getattr(self, axis)[rows], getattr(self, measure)[rows]
        known = np.isfinite(y)
        if self.end is not None and (self.diverged or known.any()):
            last = self.accuracy[rows[-1]] if self.diverged else y[known][-1]
            x, y = np.append(x[known], [x[-1], self.end[axis == "energy"]]), np.append(y[known], [last, last])
        else:
            x, y = x[known], y[known]
        kept = np.append(np.diff(x) > 0, True)[: len(x)]  # where energy stood still, the last checkpoint counts
        return x[kept], y[kept]
