"""Claims about the accuracies of Tables I and II.  Each is a function of any such table: ours, and the paper's own."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from pipecycle.results import Value
from pipecycle_paper import paper
from pipecycle_paper.paper import BASELINES, CYCLIC, DELTAS, DISTRIBUTIONS, GROUPS
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


def best(source: Source, where: str, policies: Sequence[str], delta: float) -> tuple[str, Value] | None:
    """The most accurate of some schedulers, each at its best G; None unless all were run."""
    values = [
        (paper.label(*choice).replace(",", ""), source(where, *choice, delta)) for choice in paper.choices(policies)
    ]
    known = [(name, value) for name, value in values if value is not None]
    return max(known, key=lambda named: named[1].mean) if len(known) == len(values) else None


def _lead(source: Source, where: str, deltas: Iterable[float], groups: int | None = None) -> Finding:
    """PipeCycle (at its best G, or at one) is ahead of every baseline at its best G."""
    checks: list[Check | None] = []
    for delta in deltas:
        if groups is None:
            ours = best(source, where, ("pipecycle",), delta)
        else:
            value = source(where, "pipecycle", groups, delta)
            ours = None if value is None else (f"G = {groups}", value)
        rival = best(source, where, BASELINES, delta)
        known = ours is not None and rival is not None
        checks.append(above(f"δ = {delta:g}", ours[1], rival[1], ("", rival[0])) if known else None)  # type: ignore[index]
    return judge(checks)


def _order(source: Source, where: Iterable[str], deltas: Iterable[float], *, rising: bool) -> Finding:
    """PipeCycle's accuracy rises (or falls) with G."""
    checks = []
    for data in where:
        for delta in deltas:
            for few, many in ((2, 5), (5, 10)):
                low, high = (source(data, "pipecycle", groups, delta) for groups in (few, many))
                pair = (
                    (high, low, (f"G = {many}", f"G = {few}")) if rising else (low, high, (f"G = {few}", f"G = {many}"))
                )
                checks.append(above(f"{DISTRIBUTIONS[data]}, δ = {delta:g}", *pair))
    return judge(checks)


def highest_iid(source: Source) -> Finding:
    return _lead(source, "iid", DELTAS)


def never_drops(source: Source) -> Finding:
    return _order(source, ["iid"], DELTAS, rising=True)


def others_drop(source: Source) -> Finding:
    checks = []
    for policy in CYCLIC:
        drops: list[Check] = []
        for delta in DELTAS:
            values = [source("iid", policy, groups, delta) for groups in GROUPS]
            pairs = zip(GROUPS, GROUPS[1:], values, values[1:], strict=False)
            for few, many, low, high in pairs:
                check = above(f"{paper.NAMES[policy]}, δ = {delta:g}", low, high, (f"G = {few}", f"G = {many}"))
                drops += [] if check is None else [check]
        checks.append(max(drops, key=lambda check: check.margin, default=None))
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


def functional_to_five(source: Source) -> Finding:
    return judge(at_least(f"δ = {delta:g}", source("non-iid", "pipecycle", 5, delta), FUNCTIONAL) for delta in AMPLE)


def degrades_at_ten(source: Source) -> Finding:
    return judge(
        above(
            f"δ = {delta:g}",
            source("non-iid", "pipecycle", 5, delta),
            source("non-iid", "pipecycle", 10, delta),
            ("G = 5", "G = 10"),
        )
        for delta in AMPLE
    )


def two_is_best_when_scarce(source: Source) -> Finding:
    two = source("non-iid", "pipecycle", 2, 0.1)
    return judge(
        above("δ = 0.1", two, source("non-iid", "pipecycle", groups, 0.1), ("G = 2", f"G = {groups}"))
        for groups in (5, 10)
    )


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


def small_wins_when_scarce(source: Source) -> Finding:
    return _order(source, DISTRIBUTIONS, [0.1], rising=False)


def large_settles_lower(source: Source) -> Finding:
    return _order(source, DISTRIBUTIONS, DELTAS, rising=False)


def larger_is_better_iid(source: Source) -> Finding:
    checks = []
    for delta in DELTAS:
        two = source("iid", "pipecycle", 2, delta)
        for groups in (5, 10):
            value = source("iid", "pipecycle", groups, delta)
            checks.append(above(f"δ = {delta:g}", value, two, (f"G = {groups}", "G = 2")))
    return judge(checks)


def two_beats_all_iid(source: Source) -> Finding:
    return _lead(source, "iid", DELTAS, groups=2)


def highest_noniid(source: Source) -> Finding:
    return _lead(source, "non-iid", AMPLE, groups=2)


def sixty_at_two(source: Source) -> Finding:
    return judge(at_least(f"δ = {delta:g}", source("non-iid", "pipecycle", 2, delta), 60.0) for delta in AMPLE)


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


def _near_chance(source: Source, policies: Sequence[str], groups: Sequence[int]) -> Finding:
    return judge(
        at_most(f"{paper.NAMES[policy]} G = {many}, δ = {delta:g}", source("non-iid", policy, many, delta), NEAR_CHANCE)
        for policy in policies
        for many in groups
        for delta in DELTAS
    )


def cyclic_collapse(source: Source) -> Finding:
    return _near_chance(source, CYCLIC, GROUPS)


def collapse_at_ten(source: Source) -> Finding:
    return _near_chance(source, CYCLIC, [10])


def fedbacys_fails(source: Source) -> Finding:
    return _near_chance(source, ["fedbacys"], GROUPS)


def keeps_45(source: Source) -> Finding:
    return judge(
        at_least(f"G = {groups}, δ = {delta:g}", source("non-iid", "pipecycle", groups, delta), 45.0)
        for groups in GROUPS
        for delta in DELTAS
    )


def comparable_to_fedseq(source: Source) -> Finding:
    ours, theirs = (source("non-iid", policy, 2, 0.1) for policy in ("pipecycle", "fedseq"))
    check = above("δ = 0.1", ours, theirs, ("", "FedSeq"))
    return judge([None if check is None else Check(check.what, 2.0 - abs(check.margin), check.error, check.text)])


def best_groups_depend(source: Source) -> Finding:
    """Two cells whose best G differ; the pair that is surest of it counts."""
    leads = []
    for where in DISTRIBUTIONS:
        for delta in DELTAS:
            values = [(source(where, "pipecycle", groups, delta), groups) for groups in GROUPS]
            ranked = sorted(((v, groups) for v, groups in values if v is not None), key=lambda lead: -lead[0].mean)
            if len(ranked) == len(GROUPS):
                (top, groups), (second, _) = ranked[:2]
                leads.append(
                    (
                        top.mean - second.mean,
                        math.hypot(top.error, second.error),
                        groups,
                        f"{DISTRIBUTIONS[where]}, {delta:g}",
                    )
                )
    if len(leads) < 2:
        return judge([None])
    text = ", ".join(f"{what}: G = {groups}" for _, _, groups, what in leads)
    pairs = [(a, b) for a in leads for b in leads if a[2] < b[2]]
    if not pairs and len(leads) < len(DELTAS) * len(DISTRIBUTIONS):
        return untestable("the same G is best wherever it was run, but not all was run", text)
    if not pairs:
        close = any(lead < error for lead, error, _, _ in leads)
        return Finding("does not hold", text, "the same G is best everywhere", close)
    sure = max(pairs, key=lambda pair: min(lead[0] - lead[1] for lead in pair))
    weak = min(sure, key=lambda lead: lead[0] - lead[1])
    return judge([Check("best G", weak[0], weak[1], text)])


def reaches_65(source: Source) -> Finding:
    """Whether any G gets to 65 % at all, by the tables."""
    values = [source("non-iid", "pipecycle", groups, 0.5) for groups in GROUPS]
    known = [value for value in values if value is not None]
    top = max(known, key=lambda value: value.mean) if len(known) == len(GROUPS) else None
    return judge([at_least("δ = 0.5, best G", top, 65.0)])


def bold_is_best(source: Source) -> Finding:
    """Only the print can be right or wrong here: `source` is not asked."""
    checks = []
    for where, rows in paper.TABLES.items():
        for place, delta in enumerate(DELTAS):
            top = max(row.values[place] for row in rows)
            for row in rows:
                if delta in row.bold:
                    text = f"{row.values[place]:.1f} in bold, {top:.1f} is the largest"
                    checks.append(Check(f"{DISTRIBUTIONS[where]}, δ = {delta:g}", row.values[place] - top, 0.0, text))
    return judge(checks)
