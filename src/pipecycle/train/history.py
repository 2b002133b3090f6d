"""Accuracy against slots and energy, checkpoint by checkpoint, and when to stop."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from math import isnan, nan
from typing import TYPE_CHECKING, Any, Literal, get_args

import attrs
import numpy as np
from attrs import define, field, frozen

from pipecycle.checks import one_of, setting, some_slots
from pipecycle.results.metrics import COLUMNS, Metrics
from pipecycle.schedule.averages import served
from pipecycle.schedule.schedule import Schedule, Status
from pipecycle.showing import Shown
from pipecycle.world.energy import UNIT
from pipecycle.world.streams import Ints

if TYPE_CHECKING:
    import pandas

EarlyStop = Literal["off", "literal", "late"]


@frozen
class Look:
    """When models are evaluated, and which."""

    every: int = setting(150, "slots between two evaluations", some_slots)
    clients_every: int | None = setting(
        None,
        "slots between two evaluations of all clients' own models; if not set, never",
        some_slots,
    )
    early_stop: EarlyStop = setting(  # noqa: RUF009
        "off",
        "early stopping: off, literal (the paper's rule) or late (the rule, only above 15 % accuracy or after a fifth "
        "of the slots)",
        one_of(*get_args(EarlyStop)),
    )
    served: str | None = setting(
        None,
        "model to evaluate: the published one (not set), the mean of all live chains (chains) or of the last K "
        "published models (mean:K)",
        served,
    )
    on: str | None = setting(
        None,
        "the samples that accuracy and early stopping are about; if not set, test",
        one_of("test", "validation"),
        key="look.on",
    )


@frozen
class Checkpoint:
    """When the published model is looked at: at the end of slot `slot - 1`."""

    slot: int
    """Slots elapsed."""
    version: int
    energy: float
    """Units spent by then."""
    budget: bool = False
    """Whether it is the last slot within the budget rather than a regular one."""
    clients: bool = False
    """Whether the mean over all clients' own models is taken as well."""


@frozen
class Score:
    """A model on the test samples."""

    accuracy: float
    """Percent."""
    loss: float
    by_class: tuple[float, ...]
    """Percent, NaN for a class without test samples."""
    finite: bool = True


@frozen
class Row:
    """One line of metrics.csv."""

    slot: int
    energy: float
    accuracy: float
    loss: float
    version: int
    best: float
    """Best accuracy so far."""
    budget: bool
    diverged: bool
    clients_accuracy: float | None
    by_class: tuple[float, ...]


def checkpoints(
    schedule: Schedule, every: int = 150, budget: float | None = None, clients_every: int | None = None
) -> list[Checkpoint]:
    """Every `every` slots, at the end of the run, and at the end of the last slot with at most `budget` spent."""
    slots = schedule.slots
    ends = sorted({*range(every, slots + 1, every), slots})
    spent = schedule.energy.spent
    extra = None
    if budget is not None:
        extra = int(np.searchsorted(spent, int(budget * UNIT), side="right")) or None

    def at(slot: int, is_extra: bool) -> Checkpoint:
        count = schedule.publications.by(slot)
        version = int(schedule.publications.version[count - 1]) if count else 0
        of_clients = clients_every is not None and (slot % clients_every == 0 or slot == slots)
        return Checkpoint(slot, version, int(spent[slot - 1]) / UNIT, is_extra, of_clients)

    points = [at(slot, False) for slot in ends] + ([] if extra is None else [at(extra, True)])
    return sorted(points, key=lambda point: (point.slot, point.budget))


def current_sessions(schedule: Schedule, slot: int) -> Ints:
    """Each client's last session that ended before `slot` slots had elapsed and was not lost, -1 for none."""
    sessions = schedule.sessions
    ended = np.flatnonzero((sessions.end >= 0) & (sessions.end < slot) & (sessions.status != Status.LOST))
    last = np.full(schedule.clients, -1)
    last[sessions.client[ended]] = ended  # rows are in order of start, and a client's sessions do not overlap
    return last


def saturated(accuracies: Sequence[float], slot: int, horizon: int, rule: EarlyStop) -> bool:
    """The paper's rule about the regular checkpoints up to `slot`: less than one percentage point between ten in a row.

    Armed late, it waits until 15 % accuracy or a fifth of the horizon, so that the chance level at the start does not
    count."""
    last = accuracies[-10:]
    if rule == "off" or len(last) < 10 or max(last) - min(last) > 1.0 - 1e-9:  # 65.3 - 64.3 is 0.99999...
        return False
    return rule == "literal" or max(accuracies) > 15.0 or slot >= horizon / 5


@define(repr=False)
class History(Shown):
    """What a run has shown so far; `frame()` is the same as a pandas DataFrame.

    >>> from pipecycle import Watch, plan, problem, train
    >>> schedule = plan("fedavg", harvest=1.0, clients=8, slots=200)
    >>> history = train(schedule, problem("digits", clients=8), Watch(every=100))
    >>> history
    >>> history.frame()[["slot", "energy", "accuracy"]]
    >>> history.final.accuracy > 50
    True
    """

    points: Sequence[Checkpoint]
    early_stop: EarlyStop = "off"
    horizon: int = 0
    rows: list[Row] = field(factory=list)
    ended: str | None = None
    """Why it ended: `finished`, `early` or `diverged`; None while it has not."""
    schedule: Schedule | None = field(default=None, eq=False)
    """What was trained; a live server does not know it yet."""
    facts: Mapping[str, Any] = field(factory=dict, eq=False)
    """What decided the outcome besides the schedule: `data.alpha`, `train.lr` and so on."""

    def record(self, point: Checkpoint, score: Score, clients_accuracy: float | None) -> None:
        """Add an evaluation, and see whether the run has ended with it."""
        reached = [score.accuracy, *(row.best for row in self.rows[-1:])]
        best = max((value for value in reached if not isnan(value)), default=nan)  # nobody may have answered
        row = Row(
            slot=point.slot,
            energy=point.energy,
            accuracy=score.accuracy,
            loss=score.loss,
            version=point.version,
            best=best,
            budget=point.budget,
            diverged=not score.finite,
            clients_accuracy=clients_accuracy,
            by_class=score.by_class,
        )
        self.rows.append(row)
        if not score.finite:
            self.ended = "diverged"
        elif not point.budget and self._saturated():
            self.ended = "early"
        elif len(self.rows) == len(self.points):
            self.ended = "finished"

    def _saturated(self) -> bool:
        if self.early_stop == "off":
            return False
        regular = [row for row in self.rows if not row.budget]
        return saturated([row.accuracy for row in regular], regular[-1].slot, self.horizon, self.early_stop)

    @property
    def final(self) -> Row:
        """The last checkpoint."""
        return self.rows[-1]

    @property
    def metrics(self) -> Metrics:
        """The same column by column; `reaches`, `energy_to` and `line` are asked of it."""
        names = [*COLUMNS, "clients_accuracy"]
        columns = {name: np.array([getattr(row, name) for row in self.rows], np.float64) for name in names}
        end, plan = None, self.schedule
        if plan is not None and self.ended in ("early", "diverged"):
            end = plan.end
        return Metrics.of(columns, diverged=self.ended == "diverged", end=end)

    @property
    def at_budget(self) -> Row:
        """The checkpoint at the budget, or the last one if the budget was not reached."""
        return self.rows[self.metrics.at_budget]

    def columns(self) -> list[str]:
        """The columns of metrics.csv."""
        classes = len(self.rows[0].by_class) if self.rows else 0
        clients = any(row.clients_accuracy is not None for row in self.rows)
        names = [name.name for name in attrs.fields(Row) if name.name not in ("by_class", "clients_accuracy")]
        return names + ["clients_accuracy"] * clients + [f"class_{index}" for index in range(classes)]

    def records(self) -> list[dict[str, Any]]:
        """The rows of metrics.csv."""
        out = []
        for row in self.rows:
            values = attrs.asdict(row, recurse=False)
            by_class = values.pop("by_class")
            values |= {f"class_{index}": value for index, value in enumerate(by_class)}
            out.append({name: values[name] for name in self.columns()})
        return out

    def frame(self) -> pandas.DataFrame:
        """A row per evaluation, with the columns of metrics.csv."""
        import pandas

        return pandas.DataFrame.from_records(self.records(), columns=self.columns())

    def csv(self) -> str:
        """Numbers as Python writes them, so that equal histories are equal bytes."""
        text = io.StringIO()
        writer = csv.DictWriter(text, self.columns(), lineterminator="\n")
        writer.writeheader()
        for values in self.records():
            writer.writerow(
                {
                    key: int(value) if isinstance(value, bool) else "" if value is None else value
                    for key, value in values.items()
                }
            )
        return text.getvalue()

    def __repr__(self) -> str:
        if not self.rows:
            return "History(empty)"
        last = self.rows[-1]
        of = "" if self.schedule is None else f"{self.schedule.policy}, trial {self.schedule.trial}: "
        ended = self.ended or "unfinished"
        return f"History({of}{len(self.rows)} evaluations, {last.accuracy:.1f} % at slot {last.slot:,}, {ended})"
