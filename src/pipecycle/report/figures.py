"""The same plots for papers: matplotlib, single- and double-column, fonts embedded."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from pipecycle.errors import InputError
from pipecycle.report.battery import levels
from pipecycle.report.holdings import class_accuracy
from pipecycle.report.lanes import letter, pipeline
from pipecycle.report.mixing import mixing
from pipecycle.report.payload import common_budget, coverage, differences, lag, participation
from pipecycle.report.styles import CHAINS, Style, styles_of
from pipecycle.report.tables import Summary, always, default_target, judges, named, summary_rows
from pipecycle.results import Axis, mean_curve
from pipecycle.runs.records import Group
from pipecycle.world.energy import UNIT

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SINGLE, DOUBLE = 3.5, 7.16
"""Inches: the columns of a two-column paper."""
FORMATS = ("png", "pdf", "svg")
_LOOK: dict[Any, Any] = {
    "font.size": 8, "axes.labelsize": 8, "xtick.labelsize": 7, "ytick.labelsize": 7, "legend.fontsize": 7,
    "axes.titlesize": 8, "font.family": "DejaVu Sans", "axes.spines.top": False, "axes.spines.right": False,
    "axes.linewidth": 0.6, "xtick.major.width": 0.6, "ytick.major.width": 0.6, "axes.grid": True,
    "grid.color": "#dddddd", "grid.linewidth": 0.5, "axes.axisbelow": True, "lines.linewidth": 1.2,
    "hatch.linewidth": 0.5, "legend.frameon": False, "figure.constrained_layout.use": True,
    "pdf.fonttype": 42, "ps.fonttype": 42, "svg.fonttype": "path", "svg.hashsalt": "pipecycle", "savefig.dpi": 300,
}  # fmt: skip
Draw = Callable[[], "Figure"]


@contextmanager
def figure_style(*, formulas: bool = False) -> Iterator[None]:
    """The settings that all figures share, for as long as one is drawn and saved.  Without `formulas` a dollar in
    somebody's name is a dollar."""
    try:
        import matplotlib as mpl
    except ImportError:
        raise InputError("figures need matplotlib, which is not installed (pip install matplotlib)") from None
    with mpl.rc_context({**_LOOK, "text.parse_math": formulas}):
        yield


def figures(
    groups: Sequence[Group],
    target: float | None = None,
    labels: Mapping[str, str] | None = None,
    width: float | None = None,
) -> dict[str, Draw]:
    """Functions that draw, by the name of the file; `labels` are what to call schedulers instead of their names, and
    `width` is that of every figure in inches."""
    slugs = [re.sub(r"[^A-Za-z0-9.+=-]+", "-", group.label).strip("-") for group in groups]
    groups = named(groups, labels)
    target = default_target(groups) if target is None else target
    rows = summary_rows(groups, target)
    made = _Figures(groups, rows, width)
    out: dict[str, Draw] = {}
    if any(group.curves for group in groups):
        out["accuracy_slots"] = lambda: made.accuracy(("slot",))
        out["accuracy_energy"] = lambda: made.accuracy(("energy",))
        out["accuracy"] = lambda: made.accuracy(("slot", "energy"))
        if made.differences:
            out["differences"] = made.apart
        if any(class_accuracy(group) is not None for group in groups):
            out["classes"] = made.classes
        if any(row["energy_to_target"] is not None for row in rows):
            out["energy_to_target"] = made.to_target
    out["energy_by_purpose"] = made.by_purpose
    for name, draw in (("coverage", made.coverage), ("lag", made.lag), ("participation", made.participation)):
        out[name] = draw
    for group, slug in zip(groups, slugs, strict=True):
        out[f"pipeline_{slug}"] = lambda group=group: made.pipeline(group)  # type: ignore[misc]
        out[f"mixing_{slug}"] = lambda group=group: made.mixing(group)  # type: ignore[misc]
        out[f"battery_{slug}"] = lambda group=group: made.battery(group)  # type: ignore[misc]
    return out


def save(figure: Figure, kind: str, dpi: float | None = None) -> bytes:
    """A figure as the bytes of a file; equal figures give equal bytes."""
    data = io.BytesIO()
    undated: dict[str, dict[str, Any]] = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}
    settings: dict[str, Any] = {} if dpi is None else {"dpi": dpi}
    figure.savefig(data, format=kind, metadata=undated.get(kind), **settings)
    return data.getvalue()


def blank(width: float, height: float, rows: int = 1, columns: int = 1, **options: Any) -> tuple[Figure, Any]:
    """A new figure, its size in inches, and its pane or panes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    return figure, figure.subplots(rows, columns, **options)


class _Figures:
    def __init__(self, groups: Sequence[Group], rows: Sequence[Summary], width: float | None) -> None:
        self.groups, self.rows, self.width = groups, rows, width
        self.styles = styles_of([group.policy for group in groups])
        self.differences = differences(groups, rows)

    def _blank(self, width: float, height: float, *shape: int, **options: Any) -> tuple[Figure, Any]:
        """As wide as asked for, and of the usual proportions where lines and labels leave room for it."""
        wanted = width if self.width is None else self.width
        return blank(wanted, height * max(0.8, wanted / width), *shape, **options)

    def _each(self) -> Iterator[tuple[Group, Style]]:
        return zip(self.groups, self.styles, strict=True)

    def accuracy(self, axes: Sequence[Axis]) -> Figure:
        narrow = self.width is not None and self.width < 5  # inches: panes lie below each other
        width = SINGLE if narrow or len(axes) == 1 else DOUBLE
        shape = (len(axes), 1) if narrow else (1, len(axes))
        figure, panes = self._blank(width, 0.6 + 2.3 * shape[0], *shape, sharey=True, squeeze=False)
        for pane, axis in zip(panes.flat, axes, strict=True):
            self._curves(pane, axis)
        for pane in panes[:, 0]:
            pane.set_ylabel(f"{judges(self.groups)} accuracy (%)")
        self._legend(figure, panes.flat[0])
        return figure

    def _curves(self, pane: Axes, axis: Axis) -> None:
        for group, style in self._each():
            line = mean_curve(group.curves, axis)
            if line is None:
                continue
            if line.sd is not None:
                low, high = line.mean - line.sd, line.mean + line.sd
                pane.fill_between(line.x, low, high, color=style.ink, alpha=0.15, linewidth=0)
            pane.plot(line.x, line.mean, markevery=max(1, len(line.x) // 8), label=group.label, **drawn(style))
        if axis == "energy" and (budget := common_budget(self.groups)) is not None:
            pane.axvline(budget, color="#666666", linewidth=0.7, linestyle=":")
        pane.set_xlabel("slots" if axis == "slot" else "energy spent by the fleet (units)")
        pane.set_xlim(left=0)
        thousands(pane)

    def apart(self) -> Figure:
        """Paired differences: a stroke per trial, the mean and its interval; hollow where it is undecided."""
        figure, pane = self._bars([self.groups[line["group"]].label for line in self.differences])
        pane.axvline(0, color="#666666", linewidth=0.8)
        for place, line in enumerate(self.differences):
            colour, mean = self.styles[line["group"]].ink, line["mean"]
            if mean is None:
                words = "best" if line["group"] == line["best"] else "no common trial"
                pane.annotate(
                    words, (0, place), (4, 0), textcoords="offset points", va="center", fontsize=7, color="#555555"
                )
                continue
            sure = line["low"] is not None and (line["low"] > 0 or line["high"] < 0)
            if line["low"] is not None:
                pane.plot([line["low"], line["high"]], [place, place], color=colour, linewidth=1.8)
            pane.plot(line["trials"], [place + 0.28] * len(line["trials"]), "|", color=colour, ms=4, mew=0.9)
            pane.plot(mean, place, "o", ms=5, mfc=colour if sure else "white", mec=colour, mew=1.3)
        pane.set_xlabel("points of accuracy against the best")
        return figure

    def classes(self) -> Figure:
        known = [(group.label, row) for group in self.groups if (row := class_accuracy(group)) is not None]
        values = np.array([row for _, row in known])
        figure, pane = self._blank(DOUBLE, 0.6 + 0.24 * len(known))
        low = min(0.9 * np.nanmax(values), np.nanmin(values))
        pane.imshow(values, cmap="Blues", aspect="auto", vmin=low, vmax=110)
        for (row, column), value in np.ndenumerate(values):
            if values.shape[1] <= 20 and np.isfinite(value):
                ink = "white" if value > low + 0.65 * (110 - low) else "black"
                pane.text(column, row, f"{value:.0f}", ha="center", va="center", fontsize=7, color=ink)
        pane.set_yticks(range(len(known)), [label for label, _ in known])
        if values.shape[1] <= 20:
            pane.set_xticks(range(values.shape[1]))
        pane.grid(visible=False)
        pane.set_xlabel("accuracy by class (%)")
        return figure

    def mixing(self, group: Group) -> Figure:
        """Which chains every adopted model comes from."""
        made = mixing(group.example.schedule)
        figure, pane = self._blank(SINGLE, 1.9)
        x, bottom = np.arange(1, len(made.slot) + 1), np.zeros(len(made.slot))
        for chain, share in zip(made.chain.tolist(), made.share, strict=True):
            colour = CHAINS[(chain - 1) % len(CHAINS)] if chain else "#bbbbbb"
            pane.bar(x, share, 1.0, bottom, color=colour, edgecolor="white", linewidth=0.3, label=letter(chain))
            bottom = bottom + share
        pane.set(
            xlabel="adopted models, in order", ylabel="from each chain (%)", xlim=(0.5, len(x) + 0.5), ylim=(0, 100)
        )
        whole(pane.xaxis)
        pane.set_title(f"{group.label}, trial {group.example.trial}", loc="left")
        return figure

    def to_target(self) -> Figure:
        figure, pane = self._bars()
        for place, (row, style) in enumerate(zip(self.rows, self.styles, strict=True)):
            if always(row):
                pane.barh(place, row["energy_to_target"], height=0.62, color=style.ink)
            else:  # no bar: a mean over some trials cannot be compared with one over all
                count = f" {row['reached']} of {row['trials']} trials" if row["reached"] else " not reached"
                pane.annotate(count, (0, place), va="center", fontsize=7, color="#555555")
            marks = row["energy_to_target_by_trial"]
            pane.plot(marks, [place] * len(marks), "o", ms=3, mfc="white", mec="black", mew=0.7, clip_on=False)
        pane.set_xlabel(f"energy to reach {self.rows[0]['target']:g} % (units)")
        return figure

    def by_purpose(self) -> Figure:
        figure, pane = self._bars()
        left = np.zeros(len(self.rows))
        for key, name, colour, hatch in (
            ("training", "training", "#5F6B76", ""),
            ("to_hub", "to hubs", "#98A3AD", "////"),
            ("to_server", "to the server", "#BFC7CE", "xxxx"),
            ("download", "downloads", "#3D464E", "...."),
            ("lost", "lost", "#A9542F", "\\\\\\\\"),
        ):
            values = np.array([row[key] for row in self.rows])
            if key in ("download", "lost") and not values.any():
                continue
            pane.barh(range(len(values)), values, 0.62, left, color=colour, hatch=hatch, edgecolor="white", label=name)
            left += values
        pane.set_xlabel("energy spent (units)")
        figure.legend(*pane.get_legend_handles_labels(), loc="outside upper center", ncols=3)
        return figure

    def _bars(self, labels: Sequence[str] | None = None) -> tuple[Figure, Axes]:
        labels = [group.label for group in self.groups] if labels is None else labels
        figure, pane = self._blank(SINGLE, 0.9 + 0.22 * len(labels))
        pane.set_yticks(range(len(labels)), labels)
        pane.set_ylim(len(labels) - 0.4, -0.6)
        pane.grid(axis="y", visible=False)
        thousands(pane)
        return figure, pane

    def coverage(self) -> Figure:
        return self._lines(
            [coverage(group.example.schedule) for group in self.groups],
            "slots",
            "clients in the served model",
            "steps-post",
        )

    def lag(self) -> Figure:
        return self._lines([lag(group.planned) for group in self.groups], "lag (versions)", "share of updates (%)")

    def participation(self) -> Figure:
        counts = [participation(group.example) for group in self.groups]
        return self._lines(counts, "clients, busiest first", "sessions")

    def _lines(self, lines: Sequence[dict[str, Any]], x: str, y: str, steps: str = "default") -> Figure:
        figure, pane = self._blank(SINGLE, 2.7)
        for values, (group, style) in zip(lines, self._each(), strict=True):
            every = max(1, len(values["x"]) // 8)
            pane.plot(values["x"], values["y"], drawstyle=steps, markevery=every, label=group.label, **drawn(style))
        pane.set(xlabel=x, ylabel=y)
        pane.set_ylim(bottom=0)
        thousands(pane)
        self._legend(figure, pane)
        return figure

    def _legend(self, figure: Figure, pane: Axes) -> None:
        """As many columns as the figure is wide for; a letter takes about 0.06 inches."""
        handles, labels = pane.get_legend_handles_labels()
        longest = max(map(len, labels), default=0)
        columns = max(1, int(figure.get_figwidth() / (0.48 + 0.06 * longest)))
        figure.legend(
            handles, labels, loc="outside upper center", ncols=min(columns, len(labels) or 1), handlelength=2.6,
            columnspacing=1.2, labelspacing=0.3,
        )  # fmt: skip

    def pipeline(self, group: Group) -> Figure:
        drawing = pipeline(group.example.schedule)
        until = drawing.first + drawing.view
        bars = [bar for bar in drawing.bars if bar.start < until]
        rows = max((bar.lane for bar in bars), default=0) + 1 if drawing.by == "group" else len(drawing.lanes)
        server = rows + max(0.1, rows / 30)
        figure, pane = self._blank(DOUBLE, 0.8 + (0.26 if rows <= 16 else 0.075) * (rows + 1))
        for bar in bars:
            colour = CHAINS[(bar.chain - 1) % len(CHAINS)] if bar.chain else "#bbbbbb"
            pane.barh(
                bar.lane, bar.end - bar.start + 1, 0.78, bar.start, color=colour, edgecolor="white", linewidth=0.5,
                alpha=0.45 if bar.state == "flying" else 1, hatch="////" if bar.state == "unused" else None,
            )  # fmt: skip
            middle = (bar.start + min(bar.end + 1, until)) / 2
            if rows <= 16 and min(bar.end + 1, until) - bar.start > drawing.view / 60:
                pane.text(middle, bar.lane, bar.letter, ha="center", va="center", fontsize=6.5)
        for handover in drawing.handovers:
            if handover.end < until:
                arrow = {"arrowstyle": "-|>", "linewidth": 0.8 if handover.main else 0.3, "color": "black"}
                arrow |= {"shrinkA": 0, "shrinkB": 0, "mutation_scale": 6, "alpha": 1.0 if handover.main else 0.3}
                tip = handover.end + 0.5 + (handover.end - handover.start < 2)
                pane.annotate("", (tip, handover.to), (handover.start - 0.5, handover.lane), arrowprops=arrow)
        shown = [slot + 1 for slot in drawing.published if slot + 1 <= until]
        pane.plot(shown, [server] * len(shown), "D", color="#D55E00", ms=3)
        step = -(-(rows + 1) // 14)
        ticks = [lane for lane in range(0, rows, step) if lane + 0.7 * step < server]
        pane.set_yticks([*ticks, server], [*(drawing.lanes[lane] for lane in ticks), "server"])
        pane.set_ylim(server + max(0.7, rows / 30), -0.7)
        pane.set_xlim(drawing.first - 2, until)
        pane.grid(axis="y", visible=False)
        pane.set_xlabel("slot")
        pane.set_title(f"{group.label}, trial {group.example.trial}", loc="left")
        return figure

    @cached_property
    def fullest(self) -> float:
        """The common end of the batteries' colour scale."""
        known = []
        for group in self.groups:
            with suppress(InputError):
                known.append(levels(group.example).level.ravel())
        return max(1.0, float(np.percentile(np.concatenate(known), 99)) / UNIT)

    def battery(self, group: Group) -> Figure:
        known = levels(group.example)
        units, names = known.binned(200)
        figure, pane = self._blank(SINGLE, 2.3)
        extent = (0.0, float(group.example.schedule.slots), -0.5, known.level.shape[1] - 0.5)
        image = pane.imshow(
            units, cmap="cividis", aspect="auto", origin="lower", extent=extent, interpolation="nearest",
            vmin=0, vmax=self.fullest,
        )  # fmt: skip
        figure.colorbar(image, ax=pane, label="stored (units)", pad=0.02, extend="max")
        pane.grid(visible=False)
        pane.set(xlabel="slot", ylabel="client" if len(names) == known.level.shape[1] else "client (binned)")
        thousands(pane)
        whole(pane.yaxis)
        pane.set_title(f"{group.label}, trial {group.example.trial}", loc="left")
        return figure


def drawn(style: Style) -> dict[str, Any]:
    """A style as the arguments of a plotted line."""
    return {"color": style.ink, "linestyle": style.stroke, "marker": style.point, "markersize": 3.8}


def thousands(pane: Axes) -> None:
    """Whole numbers with commas below."""
    from matplotlib.ticker import StrMethodFormatter

    whole(pane.xaxis)
    pane.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))


def whole(axis: Any) -> None:
    """Ticks at whole numbers: there is no half client, slot or version."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 2.5, 5, 10], integer=True))
