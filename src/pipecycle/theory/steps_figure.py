"""Accuracy over the server's step, one line per number of groups, with the stability limits drawn in."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pipecycle.errors import InputError
from pipecycle.files import reason
from pipecycle.policies.steps import LAG_STABLE, stability_limit
from pipecycle.report.figures import SINGLE
from pipecycle.report.styles import styles

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

Curves = Mapping[int, Mapping[float, float]]
"""Accuracy in percent by groups and step."""


def read(path: Path) -> Curves:
    """Of a sweep's results.parquet, the runs with a fixed step: accuracy at the budget, the mean over trials."""
    import pandas
    from pyarrow import ArrowInvalid

    try:
        frame = pandas.read_parquet(io.BytesIO(path.read_bytes()))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({reason(error)})") from None
    except ArrowInvalid:
        raise InputError(f"{path}: cannot be read (it is not a Parquet file)") from None
    missing = {"run", "policy.groups", "policy.step", "slot", "accuracy", "budget"} - set(frame.columns)
    if missing:
        raise InputError(f"{path}: holds no runs with steps, the column {min(missing)} is missing")
    return curves(frame)


def curves(frame: pandas.DataFrame) -> Curves:
    """One figure for each step of each number of groups.  A step that is not stated is the default, 1."""
    frame = frame[frame["policy.groups"].notna() & (frame["policy.step"] != LAG_STABLE)]
    last = frame.sort_values(["run", "budget", "slot"]).groupby("run").tail(1)  # the budget's row, if there is one
    last = last.assign(step=last["policy.step"].astype(float).fillna(1.0), groups=last["policy.groups"].astype(int))
    if not len(last):
        raise InputError("the results hold no run with a fixed step")
    means = last.groupby(["groups", "step"], as_index=False)["accuracy"].mean()
    out: dict[int, dict[float, float]] = {}
    for groups, step, accuracy in means.itertuples(index=False):
        out.setdefault(int(groups), {})[float(step)] = float(accuracy)
    return out


def draw(found: Curves) -> Figure:
    """One line per G; the dashed line of the same colour is where its steps become unstable."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(SINGLE * 1.4, 2.9))
    pane = figure.subplots()
    for style, (groups, points) in zip(styles(len(found)), sorted(found.items()), strict=True):
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
