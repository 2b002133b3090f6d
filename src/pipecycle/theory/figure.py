"""Bounds, plans and measurements against G, as one figure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite
from typing import TYPE_CHECKING

from pipecycle.report.figures import DOUBLE, blank
from pipecycle.report.styles import Style, styles
from pipecycle.theory import bounds, rates
from pipecycle.theory.rates import KINDS
from pipecycle.theory.study import Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MEASURED, PLANNED, PAPER, TRIVIAL = "#D55E00", "#0072B2", "#555555", "#009E73"
Pane = Callable[["Axes", Study], None]


def draw(studies: Sequence[Study]) -> Figure:
    """A row per study; with measurements, three more panels in each."""
    rows: list[tuple[Study, tuple[Pane, ...]]] = []
    for study in studies:
        if study.plans:
            first: Pane = _gradient if study.about else _rounds
            rows.append((study, (first, _events, _coverage)))
        if study.measured:
            middle = _perturbation if study.about else _loss
            rows.append((study, (_curvature, middle, _accuracy)))
    figure, panes = blank(DOUBLE, 2.9 * len(rows), len(rows), 3, squeeze=False)
    for line, (study, kinds) in zip(panes, rows, strict=True):
        for pane, kind in zip(line, kinds, strict=True):
            kind(pane, study)
            _axis(pane, study)
        if len(studies) > 1:
            line[0].annotate(
                study.config.policy, (0, 1), (0, 18), "axes fraction", "offset points", weight="bold", fontsize=9
            )
    return figure


def _axis(pane: Axes, study: Study) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator

    ticks = sorted({plan.groups for plan in study.plans} | {run.system.G for run in study.measured})
    pane.set_xscale("log")
    if len(ticks) > 8:
        ticks = [tick for tick in ticks if tick in (1, 2, 3, 5, 10, 20, 40, 100)] or ticks[:: len(ticks) // 6]
    pane.set_xticks(ticks, [str(tick) for tick in ticks])
    pane.minorticks_off()
    pane.set_xlim(ticks[0] / 1.15, ticks[-1] * 1.15)
    pane.set_xlabel("G")
    if pane.get_yscale() == "log":
        low, high = pane.get_ylim()
        if high / low < 300:
            pane.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            pane.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    pane.legend(loc="upper center", bbox_to_anchor=(0.5, -0.24), fontsize=6.5, handlelength=2.4, labelspacing=0.3)


def _gradient(pane: Axes, study: Study) -> None:
    rows = [study.bound_row(plan) for plan in study.plans]
    x = [row["groups"] for row in rows]
    here = [(row["groups"], row["as_printed"]["value"]) for row in rows if isfinite(row["as_printed"]["value"])]
    if here:
        pane.plot(*zip(*here, strict=True), "s-", color="black", ms=4, label="bound, this step size")
    trivial = bounds.smoothness_alone(study.constants)
    if trivial > 0:  # else f(x_0) - f* is not known
        pane.plot(x, [row["at_best_step"] for row in rows], "--", color=PAPER, label="bound, best step size")
        pane.axhline(trivial, color=TRIVIAL, linestyle=":", label="smoothness alone")
    points = [(run.system.G, run.gradient2) for run in study.measured]
    if points:
        pane.plot(*zip(*points, strict=True), "o", color=MEASURED, ms=4, label="measured minimum")
    pane.set_yscale("log")
    low, high = pane.get_ylim()
    void = [row["groups"] for row in rows if row["as_printed"]["vacuous"]]
    if void:
        pane.set_ylim(low, high * (high / low) ** 0.35)
        pane.plot(void, [0.95] * len(void), "x", color="black", ms=4, transform=pane.get_xaxis_transform(),
                  label="bound, this step size: vacuous")  # fmt: skip
    pane.set_title("squared gradient norm", loc="left")


def _events(pane: Axes, study: Study) -> None:
    x = [plan.groups for plan in study.plans]
    for kind, stroke in zip(KINDS if study.about else (), (":", "--"), strict=study.about):
        y = [rates.expected_events(plan.system, kind) for plan in study.plans]
        pane.plot(x, y, stroke, color=PAPER, label=f"$S_{{tot}}\\,r$, {kind}")
    pane.plot(x, [plan.aggregations for plan in study.plans], "o-", color=PLANNED, ms=4, mfc="white", label="planned")
    points = [(run.system.G, run.events["measured"]) for run in study.measured]
    if points:
        pane.plot(*zip(*points, strict=True), ".", color=MEASURED, ms=5, label="in the runs")
    pane.set_yscale("log")
    pane.set_title("aggregations", loc="left")


def _coverage(pane: Axes, study: Study) -> None:
    x = [plan.groups for plan in study.plans]
    share = [100 * plan.coverage / plan.system.clients for plan in study.plans]
    pane.plot(x, share, "o-", color=PLANNED, ms=4, label="clients that a chain meets")
    rule = [(plan.groups, 100 * plan.rule / plan.system.clients) for plan in study.plans if plan.rule is not None]
    if rule:
        pane.plot(*zip(*rule, strict=True), "s", color="black", ms=7, mfc="none", mew=0.8, label="the same by the rule")
    served = [100 * plan.share for plan in study.plans]
    pane.plot(x, served, "^--", color=TRIVIAL, ms=4, label="sessions in the served model")
    pane.set_ylim(0, 108)
    pane.set_title("planned, %", loc="left")


def _rounds(pane: Axes, study: Study) -> None:
    x = [plan.groups for plan in study.plans]
    pane.plot(x, [plan.rounds for plan in study.plans], "o-", color=PLANNED, ms=4, label="rounds in the served model")
    pane.set_yscale("log")
    pane.set_title("rounds", loc="left")


def _perturbation(pane: Axes, study: Study) -> None:
    subject = sorted((run for run in study.measured if run.compared), key=lambda run: run.system.G)
    last = [run.points[-1] for run in subject]
    x = [run.system.G for run in subject]
    for key, stroke, marker in (("as_printed", ":", "v"), ("consistent", "--", "^"), ("counted", "-", "+")):
        y = [point.lemma_2[key] if point.lemma_2 else 0.0 for point in last]
        pane.plot(x, y, stroke, marker=marker, ms=4, lw=0.8, color=PAPER, label=f"Lemma 2, {key.replace('_', ' ')}")
    pane.plot(x, [point.perturbation2 for point in last], "o", color=MEASURED, ms=4, label="measured at the end")
    pane.set_yscale("symlog", linthresh=1.0)
    pane.set_ylim(bottom=0)
    pane.set_title(r"perturbation $\|z - x\|^2$", loc="left")
    if not subject:
        pane.annotate("not covered by the lemmas", (0.5, 0.5), xycoords="axes fraction", ha="center", fontsize=7)


def _curvature(pane: Axes, study: Study) -> None:
    if study.plans:
        x = [plan.groups for plan in study.plans]
        limit = [plan.stable_curvature for plan in study.plans]
        pane.plot(x, limit, "s--", color=PAPER, ms=3, label="stable below")
    for place, run in enumerate(study.measured):
        low, high = min(run.curvatures), max(run.curvatures)
        label = "measured, at $x_0$ and range" if not place else None
        pane.errorbar([run.system.G], [run.curvatures[0]], [[run.curvatures[0] - low], [high - run.curvatures[0]]],
                      fmt="o", ms=4, color=MEASURED, capsize=2, linewidth=0.8, label=label)  # fmt: skip
    pane.set_yscale("log")
    pane.set_title("curvature", loc="left")


def _loss(pane: Axes, study: Study) -> None:
    points = [(run.system.G, run.peak_loss / run.start_loss) for run in study.measured]
    pane.plot(*zip(*points, strict=True), "o", color=MEASURED, ms=4, label="largest loss / initial loss")
    pane.axhline(1.0, color=PAPER, linestyle=":")
    pane.set_yscale("log")
    pane.set_title("loss on the way", loc="left")


def _accuracy(pane: Axes, study: Study) -> None:
    style: Style = styles(1)[0]
    for run in study.measured:
        label = None if pane.get_legend_handles_labels()[0] else "± standard error by the test samples"
        pane.errorbar([run.system.G], [run.accuracy], [run.accuracy_error], fmt=style.point, ms=4, color=MEASURED,
                      capsize=2, linewidth=0.8, label=label)  # fmt: skip
    advice = study.advice
    if advice is not None and advice.groups is not None:
        pane.axvline(advice.groups, color=TRIVIAL, linewidth=4, alpha=0.25, label="recommended")
    pane.set_title("measured accuracy, %", loc="left")
