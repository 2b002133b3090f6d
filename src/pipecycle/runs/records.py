"""Run folders as records, and records that differ by nothing but the trial as groups."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import frozen

from pipecycle.errors import InputError
from pipecycle.files import reason
from pipecycle.policies import REGISTRY
from pipecycle.policies.registry import recorded
from pipecycle.results.metrics import CLASS, COLUMNS, Metrics
from pipecycle.runs import folders
from pipecycle.runs.config import Config, read_recorded
from pipecycle.schedule.schedule import Schedule
from pipecycle.schedule.summary import summarise
from pipecycle.world.devices_file import parted

if TYPE_CHECKING:
    import pandas

    from pipecycle.train.history import History

ENDED = {"finished": "finished", "early": "stopped early (saturated)", "diverged": "diverged"}
"""How a run can have ended, as people read it."""


@frozen(eq=False, slots=False)
class Record:
    """One run, on disk or in memory, or a schedule that was only planned."""

    path: Path | None
    """None in memory."""
    schedule: Schedule
    config: Config | None
    """None for a lone schedule, or a run that was put together in Python."""
    metrics: Metrics | None
    """None until something has been evaluated."""
    ended: str | None
    """`finished`, `early` or `diverged`; None if it has not ended, or is a lone schedule."""
    history: History | None = None
    """Where the run is in memory."""

    @classmethod
    def of(cls, history: History, config: Config | None = None) -> Record:
        """A run in memory."""
        if history.schedule is None:
            raise InputError("a history without a schedule: needs one that train() has returned")
        metrics = history.metrics if history.rows else None
        return cls(None, history.schedule, config, metrics, history.ended, history)

    @property
    def is_run(self) -> bool:
        """Whether it is more than a plan."""
        return self.config is not None or self.history is not None

    @property
    def name(self) -> str:
        """Of its folder or file."""
        return "in memory" if self.path is None else self.path.name or str(self.path)

    def frame(self) -> pandas.DataFrame:
        """All evaluations, with the columns of metrics.csv; empty where there are none."""
        import pandas

        if self.history is not None:
            return self.history.frame()
        file = None if self.path is None else self.path / "metrics.csv"
        return pandas.DataFrame() if file is None or not file.exists() else pandas.read_csv(file)

    @property
    def trial(self) -> int:
        return self.schedule.trial

    @property
    def state(self) -> str:
        """As people read it."""
        if not self.is_run:
            return "planned only"
        if self.ended is not None:
            return ENDED.get(self.ended, self.ended)
        if self.metrics is None:
            return "unfinished, nothing evaluated yet"
        return f"unfinished, evaluated up to slot {int(self.metrics.slot[-1]):,}"

    @cached_property
    def figures(self) -> dict[str, Any]:
        """The schedule in figures (see `pipecycle.schedule.summary`)."""
        return summarise(self.schedule)

    @cached_property
    def facts(self) -> dict[str, Any]:
        """Everything that decides the outcome, by name, but for the trial."""
        meta = self.schedule.meta
        facts = {"policy": meta["policy"], **{f"policy.{key}": value for key, value in recorded(meta).items()}}
        if self.config is None:
            length = np.unique(self.schedule.length)
            facts |= {
                "world.clients": meta["clients"],
                "world.session": int(length[0]) if len(length) == 1 else f"{length[0]} to {length[-1]}",
                "world.slots": meta.get("horizon", self.schedule.slots),
                "world.harvest": meta["harvest"],
                "world.budget": meta.get("budget"),
                "world.fleet": meta.get("fleet"),
            }
            facts |= {} if self.history is None else self.history.facts
        else:
            facts |= self.config.fields()
            facts |= {f"contents.{name}": digest for name, digest in self.config.contents.items()}
        facts.pop("world.trial", None)
        return facts


@frozen(eq=False)
class Group:
    """The trials of one policy with one configuration."""

    label: str
    records: tuple[Record, ...]
    """In the order of their trials."""

    @property
    def policy(self) -> str:
        return self.records[0].schedule.policy

    @property
    def facts(self) -> dict[str, Any]:
        return self.records[0].facts

    @property
    def scenario(self) -> str:
        """What must be equal for trials to be paired: the same weather, data, horizon and judge."""
        same = {
            key: value
            for key, value in self.facts.items()
            if key.startswith(("world.", "data.")) or (key.startswith("contents.") and not key.endswith(".py"))
        }
        if self.judge != "test":
            same["look.on"] = self.judge
        return json.dumps(same, sort_keys=True, default=str)

    @property
    def judge(self) -> str:
        """The samples that accuracy is about: test or validation."""
        return str(self.facts.get("look.on") or "test")

    @property
    def trained(self) -> tuple[Record, ...]:
        """The runs that came to an end."""
        return tuple(record for record in self.records if record.ended is not None and record.metrics is not None)

    @property
    def curves(self) -> list[Metrics]:
        """The runs to draw: those that ended, or what there is if none did."""
        return [record.metrics for record in self.trained or self.records if record.metrics is not None]

    @property
    def metrics(self) -> dict[int, Metrics]:
        """What the runs that ended have shown, by trial."""
        return {record.trial: record.metrics for record in self.trained if record.metrics is not None}

    @property
    def accuracies(self) -> dict[int, float]:
        """Percent at the budget (or at the end), by trial."""
        return {trial: float(shown.accuracy[shown.at_budget]) for trial, shown in self.metrics.items()}

    @property
    def unspent(self) -> list[float]:
        """Units that runs have spent which ended before they had spent their budget."""
        budget = self.facts.get("world.budget")
        if budget is None:
            return []
        ended = [record.schedule for record in self.trained]
        return [plan.end[1] for plan in ended if plan.budget_slot(budget) is None]

    @property
    def planned(self) -> tuple[Record, ...]:
        """The runs whose schedules count: those that ended, or all if none did."""
        return self.trained or self.records

    @property
    def example(self) -> Record:
        """The run that stands for all where only one can be drawn."""
        return self.planned[0]


def load(paths: Iterable[str | Path]) -> list[Group]:
    """Run folders, folders of run folders and lone schedules, grouped by all that decides them but the trial."""
    return grouped(map(read, _runs(paths)))


def grouped(records: Iterable[Record]) -> list[Group]:
    """Records grouped by all that decides them but the trial."""
    by_facts: dict[str, dict[int, Record]] = {}
    for record in records:
        trials = by_facts.setdefault(json.dumps(record.facts, sort_keys=True, default=str), {})
        if record.trial in trials:
            other = trials[record.trial]
            both = f"{record.schedule.policy}, trial {record.trial}"
            if record.path is None or other.path is None:
                raise InputError(f"two runs of {both}, with the same settings: give them names, {{name: run, ...}}")
            raise InputError(f"{record.path}: is the same run as {other.path} ({both}); give one of them")
        trials[record.trial] = record
    groups = [tuple(trials[trial] for trial in sorted(trials)) for trials in by_facts.values()]
    if not groups:
        raise InputError("no runs: needs at least one run folder, history or schedule")
    order = {name: place for place, name in enumerate(REGISTRY)}
    groups.sort(key=lambda records: (order.get(records[0].schedule.policy, len(order)), _rank(records[0])))
    named = labels([records[0].facts for records in groups], [records[0].is_run for records in groups])
    numbers = [named[: place + 1].count(label) for place, label in enumerate(named)]
    named = [label if number == 1 else f"{label} #{number}" for label, number in zip(named, numbers, strict=True)]
    return [Group(label, records) for label, records in zip(named, groups, strict=True)]


def read(path: Path) -> Record:
    """One run folder, or a schedule on its own."""
    if path.is_file():
        return Record(path, Schedule.load(path), None, None, None)
    schedule = Schedule.load(path / "schedule.npz")
    if not (path / "config.toml").exists():
        return Record(path, schedule, None, None, None)
    config = read_recorded(path / "config.toml")
    result = folders.result(path)
    ended = None if result is None else str(result["ended"])
    end = schedule.end if ended in ("early", "diverged") else None
    metrics = read_metrics(path / "metrics.csv", diverged=ended == "diverged", end=end)
    return Record(path, schedule, config, metrics, ended)


def _runs(paths: Iterable[str | Path]) -> Iterator[Path]:
    for path in map(Path, paths):
        if not path.exists():
            raise InputError(f"{path}: there is no such run")
        if path.is_file():
            if path.suffix != ".npz":
                raise InputError(f"{path}: is not a run; give its folder, or a schedule.npz")
            yield path
        elif (path / "schedule.npz").exists():
            yield path
        elif (path / "config.toml").exists():
            raise InputError(f"{path}: holds a config.toml but no schedule.npz, so the run has not begun")
        else:
            inside = sorted(file.parent for file in path.rglob("schedule.npz"))
            if not inside:
                raise InputError(f"{path}: is not a run, nor does it hold any (no schedule.npz)")
            yield from inside


def read_metrics(path: Path, **about: Any) -> Metrics | None:
    """metrics.csv; None where nothing has been evaluated."""
    if not path.exists():
        return None
    try:
        with path.open(newline="") as file:
            head, *lines = list(csv.reader(file)) or [[]]
        classes = [name for name in head if CLASS.fullmatch(name)]
        rows = [dict(zip(head, line, strict=True)) for line in lines]
        columns = {name: np.array([float(row[name]) for row in rows], np.float64) for name in COLUMNS}
        for number, name in enumerate(classes):
            if name != f"class_{number}":
                raise ValueError(name)
            columns[name] = np.array([float(row[name] or "nan") for row in rows], np.float64)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({reason(error)})") from None
    except (KeyError, ValueError, TypeError, csv.Error):
        raise InputError(f"{path}: is not the metrics of a run, or is damaged") from None
    if not rows:
        return None
    metrics = Metrics.of(columns, **about)
    if not metrics.possible:
        raise InputError(f"{path}: is not the metrics of a run, or is damaged (numbers out of range or order)")
    return metrics


def _rank(record: Record) -> tuple[Any, ...]:
    """Plans after runs, then by configuration, 2 groups before 10."""
    facts = record.facts.values()
    values = [(0, value, "") if isinstance(value, int | float) else (1, 0, str(value)) for value in facts]
    return (not record.is_run, values)


def labels(facts: Sequence[Mapping[str, Any]], trained: Sequence[bool] | None = None) -> list[str]:
    """For each of several runs: the policy, and of the rest only what tells them apart.  Those that are only planned,
    among others that are trained, say so."""
    made = []
    kinds = [True] * len(facts) if trained is None else trained
    for mine, has_training in zip(facts, kinds, strict=True):
        namesakes = [other for other in facts if other["policy"] == mine["policy"]]
        words = [str(mine["policy"])]
        for key, value in mine.items():
            rivals = namesakes if key.startswith("policy.") else facts
            if key == "policy" or (key == "world.harvest" and mine.get("world.fleet")):  # a fleet has its own
                continue
            if any(key in other and other[key] != value for other in rivals):
                said = Path(parted(value)[0]).stem if key == "world.fleet" and value else value
                words.append(f"{key.split('.', 1)[1]}={'none' if said is None else said}")
        if not has_training and any(kinds):
            words.append("(plan)")
        made.append(" ".join(words))
    return made
