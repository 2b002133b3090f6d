"""A study as tables and sentences that a person can read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isinf, isnan
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from pipecycle.screen import lead
from pipecycle.theory import bounds, rates
from pipecycle.theory.rates import KINDS
from pipecycle.theory.study import Study
from pipecycle.words import plural

if TYPE_CHECKING:
    from pipecycle.theory.measure import Measured

NAMES = {
    "L": "L, smoothness",
    "sigma2": "sigma^2, noise of a batch",
    "alpha": "alpha, client to group",
    "beta": "beta, group to all",
    "omega2": "omega^2, squared weights",
    "f0_gap": "f(x_0) - f*",
}


def show(study: Study, console: Console) -> None:
    """Everything, most important last."""
    system = study.system
    about = (
        f": {system.clients:,} clients, sessions of B = {system.B} slots, lr {system.gamma:g}, {system.slots:,} slots, "
        f"delta = {brief(system.delta)}" + (f"; d_max = {system.d_max:,}" if study.about else "")
    )
    console.print(lead(study.config.policy, about))
    if study.measured:
        data = study.config.data
        kind = "IID" if data.alpha is None else f"Dirichlet({data.alpha:g})"
        kind = f"split by {data.split}" if data.split else kind
        console.print(f"Measured on {data.name} with {study.config.train.model}, {kind}.")
        _measured(study, console)
    if study.plans:
        if study.about:
            _bounds(study, console)
        _events(study, console)
        _chains(study, console)
    advice = study.advice
    if advice is not None:
        what = "No recommendation." if advice.groups is None else f"Recommended: G = {advice.groups}."
        console.print(lead(what, f" {advice.reason}"))


def brief(value: float | None, digits: int = 3) -> str:
    """As short as it can be: 1.38e-09, 0.042, 741, 5.3e+08."""
    if value is None or isnan(value):
        return "-"
    if isinf(value):
        return "inf"
    if value and not 1e-3 <= abs(value) < 1e6:
        return f"{value:.{digits - 1}e}"
    return f"{value:,.0f}" if abs(value) >= 1000 or value == round(value) else f"{value:.{digits}g}"


def _table(console: Console, title: str, heads: Sequence[str], rows: Iterable[Sequence[str]], left: str = "") -> None:
    """`left` names the columns that are words."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for head in heads:
        table.add_column(head, justify="left" if head in left.split(", ") else "right")
    for row in rows:
        table.add_row(*row)
    console.print(lead(f"\n{title}", ""))
    console.print(table)


def _bounds(study: Study, console: Console) -> None:
    known, system = study.constants, study.system
    bound_rows = [study.bound_row(plan) for plan in study.plans]
    rows = []
    for row in bound_rows:
        bound = "vacuous" if row["as_printed"]["vacuous"] else brief(row["as_printed"]["value"])
        limits = (brief(row[key]) for key in ("step_limit", "largest_L", "zeta"))
        rows.append((str(row["groups"]), *limits, bound, brief(row["at_best_step"]), brief(row["least_ratio"])))
    given = "assumed, see --L and --measure" if study.assumed else "measured, the largest seen"
    _table(
        console,
        f"The paper's bound on the smallest squared gradient norm; L = {brief(known.L)}, {given}",
        ("G", "holds for lr <", "and for L <", "zeta", "bound", "at its best lr", "ratio at least"),
        rows,
    )
    if known.f0_gap == 0:
        console.print(f"There is no bound: {bounds.UNLEARNT}.")
        return
    star = bounds.optimal_groups(system, known.L)
    trivial = bounds.smoothness_alone(known)
    console.print(
        f"Smoothness alone gives 2 L (f(x_0) - f*) = {brief(trivial)}. 'ratio at least' is the smallest that bound / "
        "this can be, at any lr and any L; above 1 the theorem adds nothing."
    )
    useful = [row["groups"] for row in bound_rows if row["as_printed"]["value"] < trivial]
    says = f"says something at G = {', '.join(map(str, useful))}" if useful else "says nothing at any of these G"
    derived = "is derived from this bound and says no more than it does"
    console.print(f"So the bound {says}. The paper's G* = {brief(star, 7)} {derived}.")
    if study.config.policy != "pipecycle":
        console.print("It is a bound for pipecycle; servers that mix models or add to them are outside its proof.")


def _events(study: Study, console: Console) -> None:
    if not study.about:
        rows = [(str(plan.groups), brief(plan.group_size), brief(plan.aggregations)) for plan in study.plans]
        _table(console, "Aggregations, planned", ("G", "mean size", "planned"), rows)
        return
    lines = []
    for plan in study.plans:
        system = plan.system
        row = [str(plan.groups), str(system.n_G), brief(plan.group_size)]
        row += [brief(rates.event_rate(system, kind)) for kind in KINDS]
        row += [brief(round(rates.expected_events(system, kind))) for kind in KINDS]
        lines.append([*row, brief(plan.aggregations)])
    heads = ("G", "n_G", "mean size", "rate, printed", "corrected", "S r, printed", "corrected", "planned")
    _table(console, "Aggregations: the paper's event rate r, and what a plan does", heads, lines)


def _chains(study: Study, console: Console) -> None:
    rows = []
    for plan in study.plans:
        figures = (plan.depth, round(plan.rounds, 1), plan.lag, plan.staleness, plan.stable_curvature)
        rule = "-" if plan.rule is None else str(plan.rule)
        met = f"{plan.coverage} of {plan.participants}"
        rows.append((str(plan.groups), *map(brief, figures), rule, met, f"{100 * plan.share:.0f} %"))
    heads = ("G", "depth", "rounds", "lag", "stale", "stable to", "rule", "a chain meets", "served")
    _table(console, "Models: planned, nothing trained", heads, rows)
    console.print(
        "rounds: full group updates in the published model. stale: mean lag of updates added to a newer model than "
        "they started from. stable to: largest stable curvature at that lag. rule: N / gcd(ceil(B / R), N / n_G) "
        "clients at saturation. served: share of sessions in the published model."
    )


def _measured(study: Study, console: Console) -> None:
    first = study.measured[0]
    _table(
        console,
        f"Constants of {first.label}, by {plural(len(first.points), 'model')}",
        ("constant", "bounds take", "which is the", "mean ± error", "error of the mean is"),
        [
            (NAMES[name], brief(seen.value), seen.which, f"{brief(seen.mean)} ± {brief(seen.error, 2)}", seen.kind)
            for name, seen in first.constants.items()
        ],
        left="constant, which is the, error of the mean is",
    )
    if len(study.measured) > 1:
        _table(
            console,
            "Constants of all runs, as the bounds take them",
            ("run", *NAMES),
            [(run.label, *(brief(run.constants[name].value) for name in NAMES)) for run in study.measured],
            left="run",
        )
    heads = ["run", "aggregations", "depth", "tau - pi(tau)"]
    if study.about:
        heads = ["run", "aggregations", "S r, printed", "corrected", "depth", "d_max", "tau - pi(tau)", "G"]
    rows = []
    for run in study.measured:
        counts = [brief(run.events["measured"]), brief(run.depth), brief(run.ancestry_max)]
        if study.about:
            expected = [brief(round(run.events[kind])) for kind in KINDS]
            limits = [brief(run.system.d_max), brief(run.system.G)]
            counts = [counts[0], *expected, counts[1], limits[0], counts[2], limits[1]]
        rows.append([run.label, *counts])
    what = "Events and depth: measured against predicted" if study.about else "Events and depth, measured"
    _table(console, what, heads, rows, left="run")
    subject = [run for run in study.measured if run.compared]
    if subject:
        _lemmas(subject, console)
    _stability(study.measured, console)


def _lemmas(subject: Sequence[Measured], console: Console) -> None:
    rows = []
    for run in subject:
        late = run.points[-1]
        assert late.lemma_2 is not None
        update = max(point.update2 for point in run.points[1:])
        allowed = min(point.lemma_1 or 0.0 for point in run.points[1:])
        lemma_2 = [late.lemma_2[key] for key in ("as_printed", "consistent", "counted")]
        figures = (update, allowed, late.perturbation2, *lemma_2, run.gradient2, late.virtual_gradient2)
        rows.append((run.label, *map(brief, figures)))
    _table(
        console,
        "Lemmas: squared norms of the largest update, the last z - x, the smallest and last gradient",
        ("run", "update^2", "Lemma 1", "(z-x)^2", "Lemma 2", "all copies", "counted", "grad^2 at x", "at z"),
        rows,
        left="run",
    )
    console.print(
        "Lemma 2: as printed in the paper. all copies: with every copy of Gamma^2. counted: with the actual number of "
        "updates from other chains instead of d_max (G - 1). All use the measured models; others may allow more. "
        "grad^2: squared gradient norm of f, smallest at any measured x, and at the last z."
    )


def _stability(runs: Sequence[Measured], console: Console) -> None:
    from pipecycle.theory.estimate import SAMPLES  # there is something measured, so torch is loaded

    rows = []
    for run in runs:
        limit, curve = run.stable_curvature, run.curvatures
        rise = "diverged" if isinf(run.peak_loss) else f"{brief(run.peak_loss / run.start_loss)} x"
        verdict = ("unstable" if curve[0] > limit else "stable", rise if run.blew_up else "no")
        figures = (run.staleness, limit, curve[0], max(curve), curve[-1])
        rows.append((run.label, *map(brief, figures), *verdict, f"{run.accuracy:.1f} %"))
    heads = ("run", "stale", "stable to", "at x_0", "largest", "last", "predicted", "loss rose", "accuracy")
    _table(
        console,
        f"Stability: the curvature of f (at x_0, largest, last; on at most {SAMPLES:,} samples) against the largest "
        "curvature at which stale updates are stable",
        heads,
        rows,
        left="run",
    )
