"""Claims about the accuracies of Tables I and II.  Each is a function of any such table: ours, and the paper's own."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from attrs import evolve

from pipecycle.results import Value
from pipecycle_paper import paper
from pipecycle_paper.paper import BASELINES, COLUMNS, CYCLIC, DELTAS, DISTRIBUTIONS, GROUPS, column
from pipecycle_paper.verdicts import Check, Finding, above, at_least, at_most, judge, untestable

Source = Callable[[str, str, int | None, float], Value | None]
"""Distribution, policy, groups, delta -> accuracy."""
NEAR_CHANCE = 15.0
"""Percent; ten classes, so guessing gives 10."""
FUNCTIONAL = 50.0
AMPLE = (0.3, 0.5, 1.0)
"""Charging probabilities that the paper singles out as not scarce."""


def printed(distribution: str, policy: str, groups: int | None, delta: float) -> Value | None:
    """The paper's own tables as a source; they come without a spread."""
    accuracy = paper.value(distribution, policy, groups, delta)
    return None if accuracy is None else Value(accuracy, None, paper.TRIALS, 0.0)


def best(source: Source, where: str, policies: Sequence[str], delta: float) -> tuple[str, Value | None]:
    """The most accurate of some schedulers, each at its best G; no value unless all were run."""
    values = {paper.label(*choice): source(where, *choice, delta) for choice in paper.choices(policies)}
    known = {name: value for name, value in values.items() if value is not None}
    top = max(known, key=lambda name: known[name].mean, default="")
    return top.replace(",", ""), known[top] if len(known) == len(values) else None


def _ahead(source: Source, what: str, where: str, policy: str, delta: float, first: int, second: int) -> Check | None:
    """A scheduler is at least as accurate with the first number of groups as with the second."""
    ours, theirs = (source(where, policy, groups, delta) for groups in (first, second))
    return above(what, ours, theirs, (f"G = {first}", f"G = {second}"))


def leads(source: Source, where: str, deltas: Iterable[float], groups: int | None = None) -> Finding:
    """PipeCycle (at its best G, or at one) is ahead of every baseline at its best G."""
    checks = []
    for delta in deltas:
        ours = source(where, "pipecycle", groups, delta) if groups else best(source, where, ("pipecycle",), delta)[1]
        rival, theirs = best(source, where, BASELINES, delta)
        checks.append(above(f"δ = {delta:g}", ours, theirs, ("", rival)))
    return judge(checks)


def ordered(source: Source, where: Iterable[str], deltas: Iterable[float], *, rising: bool) -> Finding:
    """PipeCycle's accuracy rises (or falls) with G."""
    return judge(
        _ahead(source, column(data, delta), data, "pipecycle", delta, *(pair[::-1] if rising else pair))
        for data in where
        for delta in deltas
        for pair in pairwise(GROUPS)
    )


def stays_ahead(source: Source, where: str, deltas: Iterable[float], pairs: Sequence[tuple[int, int]]) -> Finding:
    """PipeCycle is at least as accurate with the first number of groups of every pair as with the second."""
    return judge(
        _ahead(source, f"δ = {delta:g}", where, "pipecycle", delta, *pair) for delta in deltas for pair in pairs
    )


def keeps(source: Source, groups: Sequence[int], deltas: Sequence[float], limit: float) -> Finding:
    """Without IID data PipeCycle has at least some accuracy."""
    return judge(
        at_least(
            f"G = {count}, δ = {delta:g}" if len(groups) > 1 else f"δ = {delta:g}",
            source("non-iid", "pipecycle", count, delta),
            limit,
        )
        for count in groups
        for delta in deltas
    )


def others_drop(source: Source) -> Finding:
    checks = []
    for policy in CYCLIC:
        drops = [
            _ahead(source, f"{paper.NAMES[policy]}, δ = {delta:g}", "iid", policy, delta, few, many)
            for delta in DELTAS
            for few, many in pairwise(GROUPS)
        ]
        known = (check for check in drops if check is not None)
        checks.append(max(known, key=lambda check: check.margin, default=None))
    return judge(checks)


def grouped_break(source: Source) -> Finding:
    checks: list[Check | None] = []
    for policy in CYCLIC:
        for delta in DELTAS:
            start, *rest = (source("non-iid", policy, groups, delta) for groups in GROUPS)
            for groups, value in zip(GROUPS[1:], rest, strict=True):
                what = f"{paper.NAMES[policy]} G = {groups}, δ = {delta:g}"
                if start is None or value is None:
                    checks.append(None)
                    continue
                guessing = NEAR_CHANCE - value.mean, value.error
                fallen = start.mean - value.mean - 10.0, math.hypot(value.error, start.error)
                text = f"{value.mean:.1f} after {start.mean:.1f} at G = 2"
                checks.append(Check(what, *max(guessing, fallen), text))
    return judge(checks)


def gap_narrows(source: Source) -> Finding:
    spreads: dict[float, tuple[float, float] | None] = {}
    for delta in DELTAS:
        values = [source("non-iid", "pipecycle", groups, delta) for groups in GROUPS]
        known = sorted((value for value in values if value is not None), key=lambda value: value.mean)
        ends = (known[-1].mean - known[0].mean, math.hypot(known[-1].error, known[0].error)) if known else None
        spreads[delta] = ends if len(known) == len(GROUPS) else None
    first = spreads[0.1]
    checks: list[Check | None] = []
    for delta in AMPLE:
        gap = spreads[delta]
        if first is None or gap is None:
            checks.append(None)
        else:
            text = f"{gap[0]:.1f} against {first[0]:.1f} at δ = 0.1"
            checks.append(Check(f"δ = {delta:g}", first[0] - gap[0], math.hypot(first[1], gap[1]), text))
    return judge(checks)


def degrade_or_collapse(source: Source) -> Finding:
    checks: list[Check | None] = []
    for policy in CYCLIC:
        scarce, ample = (source("non-iid", policy, 2, delta) for delta in (0.1, 1.0))
        many = [source("non-iid", policy, 10, delta) for delta in DELTAS]
        known = [value for value in many if value is not None]
        if scarce is None or ample is None or len(known) < len(many):
            checks.append(None)
            continue
        top = max(known, key=lambda value: value.mean)
        margins = (scarce.mean - ample.mean, math.hypot(scarce.error, ample.error)), (NEAR_CHANCE - top.mean, top.error)
        text = f"G = 2 {scarce.mean:.1f} at δ = 0.1, {ample.mean:.1f} at 1; G = 10 at most {top.mean:.1f}"
        checks.append(Check(paper.NAMES[policy], *max(margins), text))
    return judge(checks)


def near_chance(source: Source, policies: Sequence[str], groups: Sequence[int]) -> Finding:
    """Without IID data some schedulers do no better than guessing."""
    return judge(
        at_most(f"{paper.NAMES[policy]} G = {many}, δ = {delta:g}", source("non-iid", policy, many, delta), NEAR_CHANCE)
        for policy in policies
        for many in groups
        for delta in DELTAS
    )


def comparable_to_fedseq(source: Source) -> Finding:
    ours, theirs = (source("non-iid", policy, 2, 0.1) for policy in ("pipecycle", "fedseq"))
    check = above("δ = 0.1", ours, theirs, ("", "FedSeq"))
    return judge([None if check is None else evolve(check, margin=2.0 - abs(check.margin))])


def best_groups_depend(source: Source) -> Finding:
    """Two cells whose best G differ; the pair that is surest of it counts."""
    leads = []
    for where, delta in COLUMNS:
        values = [(source(where, "pipecycle", groups, delta), groups) for groups in GROUPS]
        ranked = sorted(((v, groups) for v, groups in values if v is not None), key=lambda lead: -lead[0].mean)
        if len(ranked) == len(GROUPS):
            (top, groups), (second, _) = ranked[:2]
            error = math.hypot(top.error, second.error)
            leads.append((top.mean - second.mean, error, groups, f"{DISTRIBUTIONS[where]}, {delta:g}"))
    if len(leads) < 2:
        return judge([None])
    text = ", ".join(f"{what}: G = {groups}" for _, _, groups, what in leads)
    pairs = [(a, b) for a in leads for b in leads if a[2] < b[2]]
    if not pairs and len(leads) < len(COLUMNS):
        return untestable("the same G is best wherever it was run, but not all was run", text)
    if not pairs:
        close = any(lead < error for lead, error, _, _ in leads)
        return Finding("does not hold", text, "the same G is best everywhere", close)
    sure = max(pairs, key=lambda pair: min(lead[0] - lead[1] for lead in pair))
    weak = min(sure, key=lambda lead: lead[0] - lead[1])
    return judge([Check("best G", weak[0], weak[1], text)])


def reaches_65(source: Source) -> Finding:
    """Whether any G gets to 65 % at all, by the tables."""
    return judge([at_least("δ = 0.5, best G", best(source, "non-iid", ("pipecycle",), 0.5)[1], 65.0)])


def bold_is_best(source: Source) -> Finding:
    """Only the print can be right or wrong here: `source` is not asked."""
    checks = []
    for where, delta in COLUMNS:
        rows, place = paper.TABLES[where], DELTAS.index(delta)
        top = max(row.values[place] for row in rows)
        for row in rows:
            if delta in row.bold:
                text = f"{row.values[place]:.1f} in bold, {top:.1f} is the largest"
                checks.append(Check(column(where, delta), row.values[place] - top, 0.0, text))
    return judge(checks)
