"""The numbers behind the page's plots, small enough to travel inside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from attrs import astuple
from numpy.typing import NDArray

from pipecycle.errors import InputError
from pipecycle.report.battery import binned, levels
from pipecycle.report.holdings import class_accuracy, client_accuracy, holdings
from pipecycle.report.lanes import letter, pipeline
from pipecycle.report.mixing import mixing
from pipecycle.report.styles import CHAINS, styles_of
from pipecycle.report.tables import Summary, best_of, rivals
from pipecycle.results import Axis, evenly, gaps, mean_curve
from pipecycle.runs.records import Group, Record
from pipecycle.schedule.schedule import Schedule
from pipecycle.world.streams import Floats

Step = Callable[[], None]


def payload(
    groups: Sequence[Group], rows: Sequence[Summary], references: Mapping[str, float], step: Step = lambda: None
) -> dict[str, Any]:
    """Everything the page draws, as JSON; `step` is called once per group."""
    panels = []
    held = _Held()
    for group in groups:
        classes = class_accuracy(group)
        panels.append(
            {
                "trial": group.example.trial,
                "battery": battery(group.example),
                "pipeline": gantt(group.example),
                "mixing": mix(group.example),
                "classes": None if classes is None else _short(classes, 1),
                "clients": per_client(group.example, held),
                "coverage": coverage(group.example.schedule),
                "lag": lag(group.planned),
                "participation": participation(group.example),
            }
        )
        step()
    return {
        "groups": [
            {"label": group.label, "colour": style.colour, "dash": style.dash, "marker": style.marker}
            for group, style in zip(groups, styles_of([group.policy for group in groups]), strict=True)
        ],
        "chains": CHAINS,
        "differences": differences(groups, rows),
        "holdings": held.drawn(groups),
        "references": [{"name": name, "accuracy": value} for name, value in references.items()],
        "target": rows[0]["target"],
        "budget": common_budget(groups),
        "curves": {axis: [line(group, axis) for group in groups] for axis in ("slot", "energy")},
        "rows": [{key: row[key] for key in _ROW_KEYS} for row in rows],
        "panels": panels,
    }


def differences(groups: Sequence[Group], rows: Sequence[Summary]) -> list[dict[str, Any]]:
    """Every group against the best that met the same weather and data, trial by trial; the best first."""
    out = []
    for place, (group, row) in enumerate(zip(groups, rows, strict=True)):
        best = best_of(groups, group.scenario)
        if best is None or not group.trained or not rivals(groups, group):
            continue
        trials = [] if best is group else gaps(group.accuracies, best.accuracies)
        out.append(
            {
                "group": place,
                "best": groups.index(best),
                "accuracy": row["accuracy"],
                "mean": row["difference"],
                "low": row["difference_low"],
                "high": row["difference_high"],
                "trials": [round(value, 3) for value in trials],
            }
        )
    return sorted(out, key=lambda line: (line["best"], line["group"] != line["best"], -line["accuracy"]))


class _Held:
    """Who holds which classes, by trial and data; worked out once for all schedulers that meet them."""

    def __init__(self) -> None:
        self.known: dict[str, Floats | str] = {}

    def of(self, record: Record) -> Floats | str:
        """Or a sentence that says why it is not known."""
        facts = {key: value for key, value in record.facts.items() if key.startswith("data.")}
        key = repr((record.config is None, record.trial, record.schedule.clients, facts))
        if key not in self.known:
            try:
                self.known[key] = holdings(record)
            except InputError as error:
                self.known[key] = str(error)
        return self.known[key]

    def drawn(self, groups: Sequence[Group], most: int = 200) -> dict[str, Any]:
        """A heat map of the first group's trial; of the others it says whether they differ."""
        held = self.of(groups[0].example)
        if isinstance(held, str):
            return {"reason": held}
        shares, names = binned(held, most)
        same = all(self.of(group.example) is held for group in groups)
        trial = groups[0].example.trial
        return {"x": names, "z": [_short(row, 1) for row in 100 * shares.T], "same": same, "trial": trial}


def per_client(record: Record, held: _Held, most: int = 400) -> dict[str, Any]:
    """The accuracy on every client's mix of classes, the worst served client first."""
    known = held.of(record)
    values = None if isinstance(known, str) else client_accuracy(record, known)
    if values is None:
        return {"x": [], "y": []}
    ranked = np.sort(values[np.isfinite(values)])
    picks = evenly(len(ranked), most)
    return {"x": (picks + 1).tolist(), "y": _short(ranked[picks], 2)}


def mix(record: Record) -> dict[str, Any]:
    """What every adopted model is made of, by chain, or a sentence where there is nothing to tell apart."""
    try:
        made = mixing(record.schedule)
    except InputError as error:
        return {"reason": str(error)}
    if len(made.chain) == 1:
        return {"reason": "Every model that the server adopted continues the same chain."}
    return {
        "slot": made.slot.tolist(),
        "chain": made.chain.tolist(),
        "letter": [letter(int(chain)) for chain in made.chain],
        "share": [_short(row, 1) for row in made.share],
        "sources": round(made.sources, 2),
        "whole": made.whole,
    }


_ROW_KEYS = ("energy_to_target", "energy_to_target_by_trial", "slots_to_target", "reached", "trials", "training",
             "to_hub", "to_server", "download", "lost")  # fmt: skip


def line(group: Group, axis: Axis) -> dict[str, Any] | None:
    band = mean_curve(group.curves, axis)
    if band is None:
        return None
    values = {"x": _short(band.x, 1), "mean": _short(band.mean, 2), "trials": band.trials}
    return values if band.sd is None else values | {"sd": _short(band.sd, 2)}


def battery(record: Record) -> dict[str, Any]:
    """A heat map, or a sentence where the levels cannot be known."""
    try:
        known = levels(record)
    except InputError as error:
        return {"reason": str(error)}
    units, names = known.binned(100)
    return {"x": known.slot.tolist(), "y": names, "z": [_short(row, 1) for row in units]}


def gantt(record: Record) -> dict[str, Any]:
    drawing = pipeline(record.schedule)
    columns = ("lane", "start", "end", "chain", "letter", "state", "about")
    return {
        "by": drawing.by,
        "lanes": drawing.lanes,
        **{name: [getattr(bar, name) for bar in drawing.bars] for name in columns},
        "handovers": [[int(value) for value in astuple(handover)] for handover in drawing.handovers],
        **{name: getattr(drawing, name) for name in ("published", "first", "last", "view", "whole")},
    }


def coverage(schedule: Schedule, most: int = 60) -> dict[str, list[int]]:
    """Clients whose updates are in the served model, after some of the publications."""
    published = schedule.publications
    if not len(published.slot):
        return {"x": [0, schedule.slots], "y": [0, 0]}
    # Early publications are where coverage grows, so the picks are dense there.
    count = len(published.slot)
    picks = np.unique(
        np.concatenate(
            [np.geomspace(1, count, min(most, count)).astype(int) - 1, np.linspace(0, count - 1, min(12, count))]
        ).astype(int)
    )
    met = schedule.ancestry.met(published.version[picks]).sum(axis=1).tolist()
    return {"x": [0, *(published.slot[picks] + 1).tolist(), schedule.slots], "y": [0, *met, met[-1]]}


def lag(records: Sequence[Record], most: int = 40) -> dict[str, Any]:
    """The share of updates with each lag, in percent, all trials together; the last bar holds the rest."""
    lags = np.concatenate([record.schedule.ancestry.lags for record in records])
    if not len(lags):
        return {"x": [], "y": []}
    shares = 100 * np.bincount(np.minimum(lags, most)) / len(lags)
    return {"x": list(range(len(shares))), "y": _short(shares, 2)}


def participation(record: Record, most: int = 400) -> dict[str, Any]:
    """Sessions per client, the busiest first."""
    counts = np.sort(record.schedule.participation())[::-1]
    picks = evenly(len(counts), most)
    return {"x": (picks + 1).tolist(), "y": counts[picks].tolist()}


def common_budget(groups: Sequence[Group]) -> float | None:
    """The budget, if all groups have the same."""
    budgets = {group.facts.get("world.budget") for group in groups}
    return float(budget) if len(budgets) == 1 and (budget := budgets.pop()) is not None else None


def _short(values: NDArray[Any], digits: int) -> list[float | int | None]:
    """As few characters as say it; what is not a number is null."""
    rounded = [round(float(value), digits) if np.isfinite(value) else None for value in values]
    return [int(value) if value is not None and value == int(value) else value for value in rounded]
