"""Every plot in words, for readers who cannot see it (and for those in a hurry)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pipecycle.report.tables import Summary, to_target
from pipecycle.runs.records import Group
from pipecycle.schedule.summary import PURPOSES, number


def alternatives(groups: Sequence[Group], rows: Sequence[Summary], data: dict[str, Any]) -> dict[str, str]:
    """A sentence or two per plot, by the plot's name."""
    labels = [group.label for group in groups]
    words = {}
    for axis, unit in (("slot", "slots"), ("energy", "units of energy")):
        ends = [
            f"{label} ends at {line['mean'][-1]:.1f} % after {number(line['x'][-1])} {unit}"
            for label, line in zip(labels, data["curves"][axis], strict=True)
            if line is not None
        ]
        words[axis] = f"{'; '.join(ends)}." if ends else "Nothing was trained."
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
    panels = data["panels"]
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


def _each(rows: Sequence[Summary], say: Callable[[Summary], str]) -> str:
    said = [text for text in map(say, rows) if text != "-"]
    return f"{'; '.join(said)}." if said else "Nothing to show."


def _pairs(labels: Sequence[str], panels: Sequence[dict[str, Any]], say: Callable[[dict[str, Any]], str]) -> str:
    return "; ".join(f"{label}: {say(panel)}" for label, panel in zip(labels, panels, strict=True)) + "."


def _percent(row: Summary) -> str:
    spent = row["spent"] or 1
    told = [key for key in PURPOSES if key in ("training", "to_hub", "to_server") or row[key]]
    return ", ".join(f"{100 * row[key] / spent:.0f} % {PURPOSES[key]}" for key in told)
