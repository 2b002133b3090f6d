"""Accuracy over the server's step, one line per number of groups, with the stability limits drawn in."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas

from pipecycle.errors import InputError
from pipecycle.policies.steps import LAG_STABLE, stability_limit
from pipecycle.report.figures import SINGLE, blank
from pipecycle.report.styles import styles
from pipecycle.results import Metrics
from pipecycle.runs.parquet import Results, load

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Curves = Mapping[int, Mapping[float, float]]
"""Accuracy in percent by groups and step."""


def read(path: Path) -> Curves:
    """Of a sweep's results.parquet, the runs with a fixed step: accuracy at the budget, the mean over trials."""
    results = load(path)
    missing = {"policy.groups", "policy.step", "slot", "accuracy", "budget"} - set(results.frame.columns)
    if missing:
        raise InputError(f"{path}: holds no runs with steps, the column {min(missing)} is missing")
    return curves(results)


def curves(results: Results) -> Curves:
    """One figure for each step of each number of groups.  A step that is not stated is the default, 1."""
    histories, runs = results.histories(), results.first
    accuracies: dict[int, dict[float, list[float]]] = {}
    for run in runs[runs["policy.groups"].notna() & (runs["policy.step"] != LAG_STABLE)].to_dict("records"):
        shown = Metrics.of(histories[run["identity"]])
        step = 1.0 if pandas.isna(run["policy.step"]) else float(run["policy.step"])
        trials = accuracies.setdefault(int(run["policy.groups"]), {}).setdefault(step, [])
        trials.append(float(shown.accuracy[shown.at_budget]))
    if not accuracies:
        raise InputError("the results hold no run with a fixed step")
    return {
        groups: {step: float(np.mean(trials)) for step, trials in sorted(steps.items())}
        for groups, steps in sorted(accuracies.items())
    }


def draw(curves: Curves) -> Figure:
    """One line per G; the dashed line of the same colour is where its steps become unstable."""
    figure, pane = blank(SINGLE * 1.4, 2.9)
    for style, (groups, points) in zip(styles(len(curves)), sorted(curves.items()), strict=True):
        limit = stability_limit(groups - 1)
        steps = sorted(points)
        pane.plot(steps, [points[step] for step in steps], marker=style.point, ms=3.5, color=style.ink,
                  label=f"G = {groups}, limit {limit:.3g}")  # fmt: skip
        pane.axvline(limit, color=style.ink, linestyle=(0, (4, 3)), linewidth=0.9)
    pane.set_xscale("log")
    ticks = [tick for tick in (0.05, 0.1, 0.2, 0.5, 1.0, 2.0) if tick <= 1.2 * pane.get_xlim()[1]]
    pane.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    pane.minorticks_off()
    pane.set_xlabel("step s")
    pane.set_ylabel("accuracy at the budget, %")
    pane.set_ylim(bottom=0)
    pane.legend(loc="lower left")
    return figure
