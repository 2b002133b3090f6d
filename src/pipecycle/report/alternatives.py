"""Every plot in words, for readers who cannot see it (and for those in a hurry)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pipecycle.report.tables import Summary, to_target
from pipecycle.runs.records import Group
from pipecycle.schedule.summary import PURPOSES
from pipecycle.words import number


def alternatives(groups: Sequence[Group], rows: Sequence[Summary], data: dict[str, Any]) -> dict[str, str]:
    """A sentence or two per plot, by the plot's name."""
    labels = [group.label for group in groups]
    panels = data["panels"]
    words = {}
    for axis, unit in (("slot", "slots"), ("energy", "units of energy")):
        ends = [
            f"{label} ends at {line['mean'][-1]:.1f} % after {number(line['x'][-1])} {unit}"
            for label, line in zip(labels, data["curves"][axis], strict=True)
            if line is not None
        ]
        words[axis] = f"{'; '.join(ends)}." if ends else "Nothing was trained."
    words["differences"] = "; ".join(_apart(line, labels) for line in data["differences"]) + "."
    words["classes"] = _known(labels, [panel["classes"] for panel in panels], _classes)
    words["clients"] = _known(
        labels,
        [panel["clients"]["y"] for panel in panels],
        lambda values: f"{values[0]:.1f} % for the worst served client, {values[-1]:.1f} % for the best",
    )
    held = data["holdings"]
    words["holdings"] = (
        f"{len(held['z'])} classes, {len(held['x'])} clients or sets of them: the largest share of a single class is "
        f"{sum(map(max, zip(*held['z'], strict=True))) / len(held['x']):.0f} % on average."
        if "z" in held
        else "Not known."
    )
    words["target"] = _each(
        rows,
        lambda row: (
            "-"
            if row["reached"] is None
            else f"{row['label']} {to_target(row)} units"
            if row["reached"]
            else f"{row['label']} did not reach it"
        ),
    )
    words["purpose"] = _each(rows, lambda row: f"{row['label']} {_percent(row)}")
    words["coverage"] = _pairs(labels, panels, lambda panel: f"{panel['coverage']['y'][-1]} clients at the end")
    words["lag"] = _each(rows, lambda row: f"{row['label']} {number(row['lag_mean'])} on average")
    words["participation"] = _pairs(
        labels,
        panels,
        lambda panel: (
            f"{panel['participation']['y'][0]} sessions of the busiest client, "
            f"{panel['participation']['y'][-1]} of the least busy"
        ),
    )
    return words


def _apart(line: dict[str, Any], labels: Sequence[str]) -> str:
    """One line of the paired differences."""
    name, best = labels[line["group"]], labels[line["best"]]
    if line["group"] == line["best"]:
        return f"{name} is the best with {line['accuracy']:.1f} %"
    if line["mean"] is None:
        return f"{name} shares no trial with {best}"
    interval = "no interval" if line["low"] is None else f"95 % interval {line['low']:+.1f} to {line['high']:+.1f}"
    return f"{name} {line['mean']:+.1f} points against {best} ({interval})"


def _classes(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{min(known):.0f} to {max(known):.0f} %" if known else "not known"


def _known(labels: Sequence[str], values: Sequence[Any], say: Callable[[Any], str]) -> str:
    said = [f"{label}: {say(value)}" for label, value in zip(labels, values, strict=True) if value]
    return f"{'; '.join(said)}." if said else "Not known."


def _each(rows: Sequence[Summary], say: Callable[[Summary], str]) -> str:
    said = [text for text in map(say, rows) if text != "-"]
    return f"{'; '.join(said)}." if said else "Nothing to show."


def _pairs(labels: Sequence[str], panels: Sequence[dict[str, Any]], say: Callable[[dict[str, Any]], str]) -> str:
    return "; ".join(f"{label}: {say(panel)}" for label, panel in zip(labels, panels, strict=True)) + "."


def _percent(row: Summary) -> str:
    spent = row["spent"] or 1
    told = [key for key in PURPOSES if key in ("training", "to_hub", "to_server") or row[key]]
    return ", ".join(f"{100 * row[key] / spent:.0f} % {PURPOSES[key]}" for key in told)
