"""Every plot in words, for readers who cannot see it (and for those in a hurry)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
        ends = (
            f"{label} ends at {line['mean'][-1]:.1f} % after {number(line['x'][-1])} {unit}"
            for label, line in zip(labels, data["curves"][axis], strict=True)
            if line is not None
        )
        words[axis] = _joined(ends, "Nothing was trained.")
    words["differences"] = "; ".join(_apart(line, labels) for line in data["differences"]) + "."
    named = list(zip(labels, panels, strict=True))
    words["classes"] = _joined(
        (f"{label}: {_classes(panel['classes'])}" for label, panel in named if panel["classes"]), "Not known."
    )
    words["clients"] = _joined(
        (
            f"{label}: {y[0]:.1f} % for the worst served client, {y[-1]:.1f} % for the best"
            for label, panel in named
            if (y := panel["clients"]["y"])
        ),
        "Not known.",
    )
    held = data["holdings"]
    words["holdings"] = (
        f"{len(held['z'])} classes, {len(held['x'])} clients or sets of them: the largest share of a single class is "
        f"{sum(map(max, zip(*held['z'], strict=True))) / len(held['x']):.0f} % on average."
        if "z" in held
        else "Not known."
    )
    words["target"] = _joined(
        f"{row['label']} {to_target(row)} units" if row["reached"] else f"{row['label']} did not reach it"
        for row in rows
        if row["reached"] is not None
    )
    words["purpose"] = _joined(f"{row['label']} {_percent(row)}" for row in rows)
    words["coverage"] = _joined(f"{label}: {panel['coverage']['y'][-1]} clients at the end" for label, panel in named)
    words["lag"] = _joined(f"{row['label']} {number(row['lag_mean'])} on average" for row in rows)
    words["participation"] = _joined(
        f"{label}: {counts[0]} sessions of the busiest client, {counts[-1]} of the least busy"
        for label, counts in ((label, panel["participation"]["y"]) for label, panel in named)
    )
    return words


def _joined(texts: Iterable[str], nothing: str = "Nothing to show.") -> str:
    text = "; ".join(texts)
    return f"{text}." if text else nothing


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


def _percent(row: Summary) -> str:
    spent = row["spent"] or 1
    keys = [key for key in PURPOSES if key in ("training", "to_hub", "to_server") or row[key]]
    return ", ".join(f"{100 * row[key] / spent:.0f} % {PURPOSES[key]}" for key in keys)
