"""Run folders as records, and records that differ by nothing but the trial as groups."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import attrs
import numpy as np
from attrs import frozen

from pipecycle.errors import InputError
from pipecycle.files import reason
from pipecycle.policies import REGISTRY
from pipecycle.policies.registry import recorded
from pipecycle.results.metrics import COLUMNS, Metrics
from pipecycle.runs import folders
from pipecycle.runs.config import SECTIONS, Config, read_recorded
from pipecycle.schedule.schedule import Schedule
from pipecycle.schedule.summary import summarise
from pipecycle.world.devices_file import parted
from pipecycle.world.energy import units


@frozen(eq=False, slots=False)
class Record:
    """One run as it lies on disk, or a schedule that nobody trained on."""

    path: Path
    schedule: Schedule
    config: Config | None
    """None for a lone schedule."""
    metrics: Metrics | None
    """None as long as nothing was evaluated."""
    ended: str | None
    """`finished`, `early` or `diverged`; None if it has not ended, or is a lone schedule."""

    @property
    def trial(self) -> int:
        return self.schedule.trial

    @property
    def state(self) -> str:
        """As people read it."""
        if self.config is None:
            return "planned only"
        words = {"finished": "finished", "early": "stopped early (saturated)", "diverged": "diverged"}
        if self.ended is not None:
            return words.get(self.ended, self.ended)
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
        else:
            for section in SECTIONS:
                values = attrs.asdict(getattr(self.config, section))
                facts |= {f"{section}.{key}": value for key, value in values.items()}
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
        """What must be equal for trials to be paired: the same weather, data and horizon."""
        same = {key: value for key, value in self.facts.items() if key.startswith(("world.", "data."))}
        return json.dumps(same, sort_keys=True, default=str)

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
    def planned(self) -> tuple[Record, ...]:
        """The runs whose schedules count: those that ended, or all if none did."""
        return self.trained or self.records

    @property
    def example(self) -> Record:
        """The run that stands for all where only one can be drawn."""
        return self.planned[0]


def load(paths: Iterable[str | Path]) -> list[Group]:
    """Run folders, folders of run folders and lone schedules, grouped by all that decides them but the trial."""
    by_facts: dict[str, dict[int, Record]] = {}
    for path in _runs(paths):
        record = read(path)
        trials = by_facts.setdefault(json.dumps(record.facts, sort_keys=True, default=str), {})
        if record.trial in trials:
            raise InputError(
                f"{path}: is the same run as {trials[record.trial].path} "
                f"({record.schedule.policy}, trial {record.trial}); give one of them"
            )
        trials[record.trial] = record
    groups = [tuple(trials[trial] for trial in sorted(trials)) for trials in by_facts.values()]
    if not groups:
        raise InputError("no runs: needs at least one folder that `pipecycle run` has written")
    order = {name: place for place, name in enumerate(REGISTRY)}
    groups.sort(key=lambda records: (order.get(records[0].schedule.policy, len(order)), _rank(records[0])))
    return [Group(label, records) for label, records in zip(_labels(groups), groups, strict=True)]


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
    end = (schedule.slots, units(int(schedule.energy.spent[-1]))) if ended in ("early", "diverged") else None
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
            rows = list(csv.DictReader(file))
        columns = {name: np.array([float(row[name]) for row in rows], np.float64) for name in COLUMNS}
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
    values = [
        (0, value, "") if isinstance(value, int | float) else (1, 0, str(value)) for value in record.facts.values()
    ]
    return (record.config is None, values)


def _labels(groups: Sequence[tuple[Record, ...]]) -> list[str]:
    """The policy, and of the rest only what tells the groups apart."""
    facts = [records[0].facts for records in groups]
    trained = [records[0].config is not None for records in groups]
    labels = []
    for mine, has_training in zip(facts, trained, strict=True):
        namesakes = [other for other in facts if other["policy"] == mine["policy"]]
        words = [str(mine["policy"])]
        for key, value in mine.items():
            rivals = namesakes if key.startswith("policy.") else facts
            if key == "policy" or (key == "world.harvest" and mine.get("world.fleet")):  # a fleet has its own
                continue
            if any(key in other and other[key] != value for other in rivals):
                said = Path(parted(value)[0]).stem if key == "world.fleet" and value else value
                words.append(f"{key.split('.', 1)[1]}={'none' if said is None else said}")
        if not has_training and any(trained):
            words.append("(plan)")
        labels.append(" ".join(words))
    repeated: dict[str, int] = {}
    for place, label in enumerate(labels):
        repeated[label] = repeated.get(label, 0) + 1
        if repeated[label] > 1:
            labels[place] = f"{label} #{repeated[label]}"
    return labels
