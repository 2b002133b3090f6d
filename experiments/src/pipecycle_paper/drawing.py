"""The figures of the paper's evaluation, and two that explain them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from pipecycle.report.figures import DOUBLE, blank, drawn
from pipecycle.report.styles import Style, style_of
from pipecycle.results import Axis, Measure, mean_curve
from pipecycle_paper import paper
from pipecycle_paper.grid import Cell, Grid
from pipecycle_paper.paper import DELTAS, DISTRIBUTIONS, GROUPS
from pipecycle_paper.tables import trials

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ORDER = ("pipecycle", "fedavg", "flda", "fedseq", "cycp", "mifa", "pipecycle+", "fedbacys")
STYLES: dict[str, Style] = {policy: style_of(policy) for policy in ORDER}
Draw = Callable[[], "Figure"]


def figures(grid: Grid) -> dict[str, tuple[str, Draw]]:
    """Captions and functions that draw, by the name of the file; only those that something was run for."""
    out: dict[str, tuple[str, Draw]] = {}
    for where in DISTRIBUTIONS:
        if any(key[0] == where and cell in grid.cells for key, cell in grid.places.items()):
            out[f"accuracy_slots_{where.replace('-', '')}"] = (
                f"Accuracy over slots, {DISTRIBUTIONS[where]}, G = 2 for grouped schemes. Above, the mean over all "
                "clients' current models, as in the paper; below, the global model, averaged over the last five "
                f"checkpoints (pale: as it was). Runs end at the energy budget.{_bands(grid)}",
                lambda where=where: over_slots(grid, where),  # type: ignore[misc]
            )
    if any(grid.cell(where, policy, paper.two_groups(policy), 0.5) for where in DISTRIBUTIONS for policy in ORDER):
        which = "G = 2 for grouped schemes, which is the best G of each at the budget."
        if not _two_is_best(grid):
            which = "Above, G = 2 for grouped schemes; below, every scheme with the G that is best at the budget."
        out["accuracy_energy"] = (
            f"Accuracy of the global model over the energy that the fleet has spent, δ = 0.5. {which}{_bands(grid)}",
            lambda: over_energy(grid),
        )
    if grid.filled:
        out["ours_and_paper"] = (
            "Our accuracy against the paper's, cell by cell; on the line they agree. Bars are twice the standard error "
            "of ours, the dotted lines five points.",
            lambda: beside_paper(grid),
        )
        out["coverage_lag"] = (
            "Accuracy at the budget against the fewest clients that a chain has met (left; where several chains live "
            "side by side) and the mean lag of updates (right). The larger a mark, the larger its G.",
            lambda: against_plan(grid),
        )
    return out


def _bands(grid: Grid) -> str:
    return f" Bands are the standard deviation over {trials(grid)}." if grid.trials[1] > 1 else ""


def over_slots(grid: Grid, where: str) -> Figure:
    figure, panes = blank(DOUBLE, 4.2, 2, len(DELTAS), sharey=True, sharex=True)
    measures: tuple[tuple[Measure, str], ...] = (
        ("clients_accuracy", "mean over clients (%)"),
        ("accuracy", "global model (%)"),
    )
    for row, (measure, name) in enumerate(measures):
        for pane, delta in zip(panes[row], DELTAS, strict=True):
            for policy in ORDER[::-1]:
                cell = grid.cell(where, policy, paper.two_groups(policy), delta)
                _line(pane, cell, policy, "slot", measure)
            _floor(pane)
            _say_if_empty(pane)
            if row == 0:
                pane.set_title(f"δ = {delta:g}")
        panes[row][0].set_ylabel(name)
    longest = max((run.horizon for cell in grid.cells.values() for run in cell), default=15_000)
    own = [run.horizon for (data, *_), key in grid.places.items() if data == where for run in grid.cells.get(key, ())]
    panes[0][0].set_xlim(0, max(own, default=longest))
    for pane in panes[-1]:
        _in_thousands(pane)
    figure.supxlabel("thousand slots", fontsize=8)
    _legend(figure, panes.flat)
    return figure


def over_energy(grid: Grid) -> Figure:
    rows = 1 if _two_is_best(grid) else 2
    figure, panes = blank(DOUBLE, 2.9 if rows == 1 else 5.0, rows, 2, sharey=True, sharex=True, squeeze=False)
    for column, where in enumerate(DISTRIBUTIONS):
        for row in range(rows):
            pane, chosen = panes[row][column], []
            for policy in ORDER[::-1]:
                groups = paper.two_groups(policy) if row == 0 else best_groups(grid, where, policy)
                _line(pane, grid.cell(where, policy, groups, 0.5), policy, "energy", "accuracy")
                if row and groups is not None:
                    chosen.append(f"{_short(policy)} {groups}")
            shown = f"best G: {', '.join(chosen[::-1])}" if row else "G = 2"
            pane.set_title(f"{DISTRIBUTIONS[where]}, {shown}")
            pane.title.set_fontsize(8 if row == 0 else 6)
            _floor(pane)
            _say_if_empty(pane)
    for row in range(rows):
        panes[row][0].set_ylabel("global model (%)")
    panes[0][0].set_xlim(0, float(grid.world.get("world.budget") or paper.BUDGET))
    for pane in panes[-1]:
        _in_thousands(pane)
    figure.supxlabel("energy spent by the fleet (thousand units)", fontsize=8)
    _legend(figure, panes.flat)
    return figure


def _two_is_best(grid: Grid) -> bool:
    """Whether no scheme is more accurate with more groups, so that one row of panes shows all."""
    best = [best_groups(grid, where, policy) for where in DISTRIBUTIONS for policy in ORDER]
    return set(best) <= {None, 2}


def best_groups(grid: Grid, where: str, policy: str) -> int | None:
    """The G with the highest accuracy at the budget at δ = 0.5, among those that were run."""
    if policy in paper.UNGROUPED:
        return None
    known = {groups: grid.value(where, policy, groups, 0.5) for groups in GROUPS}
    means = {groups: value.mean for groups, value in known.items() if value is not None}
    return max(means, key=lambda groups: means[groups], default=2)


def beside_paper(grid: Grid) -> Figure:
    figure, panes = blank(DOUBLE, 3.7, 1, 2, sharex=True, sharey=True)
    for pane, where in zip(panes, DISTRIBUTIONS, strict=True):
        for policy in ORDER[::-1]:
            points = []
            for scheme, groups, delta, printed in paper.cells(where):
                value = grid.value(where, scheme, groups, delta) if scheme == policy else None
                if value is not None:
                    points.append((printed, value.mean, value.error, groups))
            if points:
                x, y, error, groups_of = zip(*points, strict=True)
                pane.errorbar(x, y, error, fmt="none", ecolor=STYLES[policy].ink, elinewidth=0.5, alpha=0.6, zorder=2)
                _dots(pane, policy, x, y, groups_of)
        pane.plot([0, 100], [0, 100], color="#666666", linewidth=0.7, zorder=1)
        for shift in (-5, 5):
            pane.plot([0, 100], [shift, 100 + shift], color="#999999", linewidth=0.6, linestyle=":", zorder=1)
        pane.set_title(DISTRIBUTIONS[where])
        pane.set_xlabel("the paper's accuracy (%)")
    panes[0].set_ylabel("our accuracy (%)")
    ours = [cell.accuracy().mean for key in grid.places.values() if (cell := grid.cells.get(key)) is not None]
    top = max([75.0, *(accuracy + 3 for accuracy in ours)])
    panes[0].set(xlim=(5, 75), ylim=(5, min(top, 100)))
    _legend(figure, panes)
    return figure


def against_plan(grid: Grid) -> Figure:
    from matplotlib.ticker import MaxNLocator

    figure, panes = blank(DOUBLE, 5.2, 2, 2, sharey="row", sharex="col")
    for row, where in enumerate(DISTRIBUTIONS):
        for column, name in enumerate(("chains.coverage_min", "lag.mean")):
            pane = panes[row][column]
            # A scheme with a single model has one chain, which meets everybody.
            for policy in ("pipecycle+", "pipecycle") if column == 0 else ORDER[::-1]:
                points = []
                for (data, who, groups, _), key in grid.places.items():
                    cell = grid.cells.get(key)
                    if cell is not None and (data, who) == (where, policy) and cell.plan(name) is not None:
                        points.append((cell.plan(name), cell.accuracy().mean, groups))
                if points:
                    x, y, groups_of = zip(*points, strict=True)
                    _dots(pane, policy, x, y, groups_of)
            pane.set_title(DISTRIBUTIONS[where])
            _floor(pane)
        panes[row][0].set_ylabel("accuracy at the budget (%)")
    panes[1][0].set_xlabel("clients that every chain has met, at least")
    panes[1][1].set_xlabel("mean lag of updates (versions)")
    panes[0][0].xaxis.set_major_locator(MaxNLocator(6, integer=True))
    panes[0][0].set_xlim(left=0)
    panes[0][1].set_xlim(left=-0.3)
    _legend(figure, panes.flat)
    return figure


def _line(pane: Axes, cell: Cell | None, policy: str, axis: Axis, measure: Measure) -> None:
    """The mean over trials, and their spread as a band."""
    curve = mean_curve(cell or (), axis, measure)
    if curve is None:
        return
    style = STYLES[policy]
    if curve.sd is not None:
        low, high = np.maximum(curve.mean - curve.sd, 0.0), np.minimum(curve.mean + curve.sd, 100.0)
        pane.fill_between(curve.x, low, high, color=style.ink, alpha=0.13, linewidth=0)
    look = drawn(style) | {"markersize": 3.2, "linewidth": 1.4 if policy.startswith("pipecycle") else 0.9}
    y = curve.mean
    if (axis, measure) == ("slot", "accuracy"):
        pane.plot(curve.x, y, color=style.ink, linewidth=0.4, alpha=0.25)
        y = np.array([np.mean(y[max(0, k - 4) : k + 1]) for k in range(len(y))])
    # Marks of different schemes at different places, so that they do not cover each other.
    step = max(1, len(y) // 4)
    first = min(len(y) - 1, ORDER.index(policy) * step // len(ORDER))
    pane.plot(curve.x, y, markevery=(first, step), label=_short(policy), **look)


def _dots(pane: Axes, policy: str, x: Sequence[float], y: Sequence[float], groups: Sequence[int | None]) -> None:
    sizes = [{2: 18, 5: 34, 10: 58}.get(count or 2, 18) for count in groups]
    style = STYLES[policy]
    pane.scatter(
        x, y, s=sizes, marker=style.point, facecolor=style.ink, edgecolor="white", linewidth=0.5, alpha=0.85,
        label=_short(policy), zorder=3,
    )  # fmt: skip


def _short(policy: str) -> str:
    return paper.NAMES[policy].replace(" (ours)", "").replace("+SGD", "")


def _floor(pane: Axes) -> None:
    """Where guessing is."""
    pane.axhline(paper.CHANCE, color="#888888", linewidth=0.7, linestyle=":", zorder=1)


def _say_if_empty(pane: Axes) -> None:
    if not pane.get_legend_handles_labels()[0]:
        pane.annotate("not run", (0.5, 0.5), xycoords="axes fraction", ha="center", color="#666666", fontsize=7)


def _in_thousands(pane: Axes) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    pane.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    pane.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x / 1000:g}"))


def _legend(figure: Figure, panes: Iterable[Axes]) -> None:
    """One legend for all panes, in one order whatever each of them shows."""
    from matplotlib.lines import Line2D

    known = {label: handle for pane in panes for handle, label in zip(*pane.get_legend_handles_labels(), strict=True)}
    names = [_short(policy) for policy in ORDER if _short(policy) in known]
    handles = []
    for policy in ORDER:
        if _short(policy) in known:
            look = drawn(STYLES[policy])
            if not isinstance(known[_short(policy)], Line2D):
                look |= {"linestyle": "none", "markersize": 4.5}
            handles.append(Line2D([], [], **look))
    figure.legend(
        handles, names, loc="outside upper center", ncols=min(8, len(names) or 1), columnspacing=1.2, handlelength=2.8
    )
