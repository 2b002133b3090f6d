"""What came out, in figures: rows for programs, Markdown and LaTeX for people and papers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
from attrs import frozen

from pipecycle.errors import InputError
from pipecycle.report.styles import proper
from pipecycle.results import Value, paired
from pipecycle.runs.records import Group, Record
from pipecycle.schedule.ancestry import mean as average
from pipecycle.schedule.summary import flattened, joules
from pipecycle.words import number

Summary = dict[str, Any]


@frozen
class TextTable:
    """A title, column heads and text cells."""

    title: str
    head: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]
    name: str = ""
    """What the command line calls it."""


def rivals(groups: Sequence[Group], group: Group) -> list[Group]:
    """The other groups that were trained under the same weather and on the same data."""
    return [other for other in groups if other is not group and other.trained and other.scenario == group.scenario]


def named(groups: Sequence[Group], given: Mapping[str, str] | None = None) -> list[Group]:
    """The groups by the names that people know their schedulers by, or by the names that are given."""
    return [attrs.evolve(group, label=proper(group.label, group.policy, given)) for group in groups]


def best_of(groups: Sequence[Group], scenario: str) -> Group | None:
    """The group with the highest mean accuracy among those that met the same weather and data."""
    rivals = [group for group in groups if group.scenario == scenario and group.trained]
    return max(rivals, key=_accuracy, default=None)


def _accuracy(group: Group) -> float:
    return float(np.mean(list(group.accuracies.values())))


def default_target(groups: Sequence[Group]) -> float | None:
    """Nine tenths of the best mean accuracy, in whole percent: high enough to matter, reached by somebody."""
    means = [_accuracy(group) for group in groups if group.trained]
    return float(math.floor(0.9 * max(means))) if means else None


def when(groups: Sequence[Group]) -> str:
    """Where the accuracy of runs is taken."""
    trained = [group for group in groups if group.trained]
    limited = [group for group in trained if group.facts.get("world.budget") is not None]
    if all(len(group.unspent) == len(group.trained) for group in limited):
        return "at the end"
    spent = len(limited) == len(trained) and not any(group.unspent for group in limited)
    return f"at the budget{'' if spent else ', or at the end of runs that did not spend it'}"


def judges(groups: Sequence[Group]) -> str:
    """The samples that accuracy is about: `test`, `validation`, or some of either."""
    return " or ".join(sorted({group.judge for group in groups if group.trained})) or "test"


def check_page(path: Path) -> None:
    if path.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"{path}: is for an HTML page, needs a name that ends with .html")


def check_target(target: float | None) -> None:
    if target is not None and not 1 <= target <= 100:
        raise InputError(f"target = {target:g}: needs an accuracy in percent, from 1 to 100")


def summary_rows(groups: Sequence[Group], target: float | None = None) -> list[Summary]:
    """One row per group, figures averaged over its trials; None where there is nothing to say."""
    target = default_target(groups) if target is None else target
    return [_row(group, best_of(groups, group.scenario) if rivals(groups, group) else None, target) for group in groups]


def _row(group: Group, best: Group | None, target: float | None) -> Summary:
    reached = group.accuracies
    value = Value.of(list(reached.values())) if reached else None
    behind = None if best is None or best is group else paired(reached, best.accuracies)
    row: Summary = {
        "label": group.label,
        "policy": group.policy,
        "trials": len(group.planned),
        "unfinished": sum(record.ended is None and record.is_run for record in group.records),
        "diverged": sum(record.ended == "diverged" for record in group.records),
        "accuracy": None if value is None else value.mean,
        "accuracy_sd": None if value is None else value.sd,
        "accuracy_by_trial": {str(trial): accuracy for trial, accuracy in reached.items()},
        "best_accuracy": average([float(shown.best[shown.at_budget]) for shown in group.metrics.values()]),
        "is_best": best is group,
        "best": None if best is None else best.label,
        "difference": None if behind is None else behind.mean,
        "difference_low": None if behind is None else behind.low,
        "difference_high": None if behind is None else behind.high,
        "pairs": None if behind is None else behind.pairs,
    }
    return row | _to_target(group, target) | _schedule_figures(group.planned)


def _to_target(group: Group, target: float | None) -> Summary:
    energy, slots = [], []
    meta = group.records[0].schedule.meta
    for shown in group.metrics.values():
        at = None if target is None else shown.reaches(target)
        if at is not None:
            energy.append(float(shown.energy[at]))
            slots.append(float(shown.slot[at]))
    return {
        "target": target,
        "reached": len(energy) if group.trained else None,
        "energy_to_target": average(energy),
        "energy_to_target_by_trial": energy,
        "slots_to_target": average(slots),
        "joules_to_target": average([units * meta["joules"] for units in energy if "joules" in meta]),
        "hours_to_target": average([slot * meta["slot_seconds"] / 3600 for slot in slots if "slot_seconds" in meta]),
    }


MEANS = {
    "slots": "slots",
    "hours": "hours",
    "spent_joules": "joules.spent",
    "spent": "energy.spent",
    "training": "spent_on.training",
    "to_hub": "spent_on.to_hub",
    "to_server": "spent_on.to_server",
    "download": "spent_on.download",
    "lost": "spent_on.lost",
    "idle": "energy.idle",
    "leaked": "energy.leaked",
    "sessions_lost": "sessions_by_status.lost",
    "stored": "energy.stored",
    "overflowed": "energy.overflowed",
    "sessions": "sessions",
    "wasted": "wasted",
    "aggregations": "aggregations",
    "participants": "participants",
    "fairness": "fairness",
    "lag_mean": "lag.mean",
    "chains": "chains.count",
    "coverage_mean": "chains.coverage_mean",
}
"""Figures of a row that are means over its trials, by their names in `summarise`."""
IN_THE_FIELD = ("download", "lost", "idle", "leaked", "sessions_lost")
"""Those that other fleets have none of."""


def _schedule_figures(records: Sequence[Record]) -> Summary:
    trials = [flattened(record.figures) for record in records]
    known = {key: [trial[name] for trial in trials if trial.get(name) is not None] for key, name in MEANS.items()}
    means = {key: average(values) for key, values in known.items()}
    return {
        **means,
        **{key: means[key] or 0.0 for key in IN_THE_FIELD},
        "lag_max": max((trial["lag.max"] for trial in trials if trial["lag.max"] is not None), default=None),
        "coverage_min": min(trial["chains.coverage_min"] for trial in trials),
    }


# As text.

Column = tuple[str, Callable[[Summary], str]]


def _rounded(value: float | None) -> str:
    return number(value if value is None or abs(value) < 100 else round(value))


def _n(key: str) -> Callable[[Summary], str]:
    return lambda row: _rounded(row[key])


def spread(row: Summary) -> str:
    """Accuracy and its deviation over the trials."""
    if row["accuracy"] is None:
        return "-"
    tail = "" if row["accuracy_sd"] is None else f" ± {row['accuracy_sd']:.1f}"
    return f"{row['accuracy']:.1f}{tail}"


def gap(row: Summary) -> str:
    """The difference to the best."""
    if row["is_best"] or row["difference"] is None:
        return "best" if row["is_best"] else "-"
    return "equal" if row["difference"] == 0 and row["difference_low"] is None else f"{row['difference']:+.1f}"


def counted(text: str, some: int, trials: int) -> str:
    """`1,200 (1 of 3)` for the mean of some trials only."""
    return text if some == trials else f"{text} ({some} of {trials})"


def to_target(row: Summary, key: str = "energy_to_target") -> str:
    """Energy or slots up to the target, and in how many trials if not in all."""
    return "-" if row[key] is None else counted(number(round(row[key])), row["reached"], row["trials"])


def always(row: Summary) -> bool:
    """Whether every trial reached the target: only then schedulers can be ranked by what it took."""
    return bool(row["reached"]) and row["reached"] == row["trials"]


def _interval(row: Summary) -> str:
    if row["difference_low"] is None:
        return "-"
    return f"{row['difference_low']:+.1f} to {row['difference_high']:+.1f}"


def _trials(row: Summary) -> str:
    notes = [f"{row[key]} {key}" for key in ("unfinished", "diverged") if row[key]]
    return f"{row['trials']}{' (' + ', '.join(notes) + ')' if notes else ''}"


def _reached(row: Summary) -> str:
    return "-" if row["reached"] is None else f"{row['reached']} of {row['trials']}"


def _share(part: str, whole: str) -> Callable[[Summary], str]:
    def text(row: Summary) -> str:
        if row[part] is None or not row[whole]:
            return _rounded(row[part])
        percent = 100 * row[part] / row[whole]
        return f"{_rounded(row[part])} ({'<1' if 0 < percent < 0.5 else f'{percent:.0f}'} %)"

    return text


def tables(groups: Sequence[Group], target: float | None = None) -> list[TextTable]:
    """The tables of a report; those about accuracy only if something was trained, and differences only if somebody
    can be compared."""
    compares = any(rivals(groups, group) for group in groups if group.trained)
    target = default_target(groups) if target is None else target
    rows = summary_rows(groups, target)
    rows.sort(key=lambda row: -math.inf if row["accuracy"] is None else row["accuracy"], reverse=True)
    out = []
    if any(row["accuracy"] is not None or row["unfinished"] for row in rows):
        differences: list[Column] = [("Difference to the best (points)", gap), ("95 % interval (points)", _interval)]
        out.append(
            _table(
                "accuracy",
                f"Accuracy{'' if judges(groups) == 'test' else f' on {judges(groups)} samples'} {when(groups)}",
                rows,
                ("Accuracy (%), mean ± sd", spread),
                *(differences if compares else []),
                ("Best so far (%)", lambda row: "-" if row["best_accuracy"] is None else f"{row['best_accuracy']:.1f}"),
                ("Trials", _trials),
            )
        )
    if target is not None and any(row["reached"] is not None for row in rows):
        order = sorted(rows, key=lambda row: row["energy_to_target"] if always(row) else math.inf)
        out.append(
            _table(
                "target",
                f"To reach {target:g} % accuracy",
                order,
                ("Trials that did", _reached),
                ("Energy (units)", to_target),
                ("Slots", lambda row: to_target(row, "slots_to_target")),
                *_physical(order, ("Energy", "joules_to_target"), "hours_to_target"),
            )
        )
    out.append(
        _table(
            "energy",
            "Where the energy went (units)",
            rows,
            ("Spent", _n("spent")),
            ("Training", _share("training", "spent")),
            ("To hubs", _share("to_hub", "spent")),
            ("To the server", _share("to_server", "spent")),
            *_if_any(rows, ("Downloads", "download", "spent"), ("Lost", "lost", "spent")),
            ("Left in batteries", _n("stored")),
            ("Overflowed", _n("overflowed")),
            *_if_any(rows, ("Idled away", "idle", ""), ("Leaked", "leaked", "")),
            *_physical(rows, ("Spent", "spent_joules"), "hours"),
        )
    )
    out.append(
        _table(
            "sessions",
            "Sessions, fairness, lag and coverage",
            rows,
            ("Sessions", _n("sessions")),
            ("Wasted", _share("wasted", "sessions")),
            *_if_any(rows, ("Lost", "sessions_lost", "sessions")),
            ("Fairness", lambda row: "-" if row["fairness"] is None else f"{row['fairness']:.3f}"),
            ("Aggregations", _n("aggregations")),
            ("Lag, mean", _n("lag_mean")),
            ("Lag, max", _n("lag_max")),
            ("Chains", _n("chains")),
            ("Coverage, fewest", _n("coverage_min")),
            ("Coverage, mean", _n("coverage_mean")),
            ("Participants", _n("participants")),
        )
    )
    return out


def _if_any(rows: Sequence[Summary], *columns: tuple[str, str, str]) -> list[Column]:
    """Columns (heading, key, whole) that say something of at least one row."""
    return [
        (head, _share(key, whole) if whole else _n(key))
        for head, key, whole in columns
        if any(row[key] for row in rows)
    ]


def _physical(rows: Sequence[Summary], energy: tuple[str, str], hours: str) -> list[Column]:
    """Energy (what it is, its key) in joules and time in hours, where fleets say what a unit and a slot are."""
    what, key = energy
    columns: dict[str, Column] = {
        key: (f"{what}, physically", lambda row: "-" if row[key] is None else joules(row[key])),
        hours: ("Hours", _n(hours)),
    }
    return [column for key, column in columns.items() if any(row[key] is not None for row in rows)]


def _table(key: str, title: str, rows: Sequence[Summary], *columns: Column) -> TextTable:
    cells = tuple((str(row["label"]), *(text(row) for _, text in columns)) for row in rows)
    return TextTable(title, ("Scheduler", *(head for head, _ in columns)), cells, key)
