"""Claims that need whole histories or plans: energy to a target, speed, the clients' own models, chains."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import numpy as np
from attrs import evolve

from pipecycle.results import Measure, Value
from pipecycle.theory import System, optimal_groups
from pipecycle_paper import paper
from pipecycle_paper.claims_tables import AMPLE, NEAR_CHANCE, best
from pipecycle_paper.energy import cheapest
from pipecycle_paper.grid import Cell, Grid, key_of_config
from pipecycle_paper.paper import BASELINES, BUDGET, COLUMNS, DELTAS, DISTRIBUTIONS, GROUPS, HARVESTING, column
from pipecycle_paper.tables import TARGETS
from pipecycle_paper.verdicts import Check, Finding, above, at_most, judge, untestable

SUBSTANTIAL = 0.8
"""A share of the rival's energy that we call substantially lower."""
SHARE = " % of the rival's energy"


def _saves(
    grid: Grid, where: str, delta: float, target: float, share: float
) -> tuple[Check | None, float | None] | None:
    """Whether PipeCycle needs at most `share` of the best rival's energy, and the share it does need; None where
    nobody gets to the target."""
    (all_ours, ours), (all_theirs, theirs) = (
        cheapest(grid, where, policies, delta, target) for policies in (("pipecycle",), BASELINES)
    )
    what = f"{column(where, delta)}, {target:g} %"
    if not (all_ours and all_theirs):
        return None, None
    if ours is None and theirs is None:
        return None
    if theirs is None:
        blur = 100 * share * _nearly(grid, where, BASELINES, delta, target)
        return Check(what, 100 * share, blur, "only PipeCycle gets there"), None
    if ours is None:
        blur = 100 * share * _nearly(grid, where, ("pipecycle",), delta, target)
        return Check(what, -100 * share, blur, f"PipeCycle never, {theirs[0]} {_k(theirs[1])}"), None
    ratio = ours[1].mean / theirs[1].mean
    error = ratio * math.hypot(ours[1].error / ours[1].mean, theirs[1].error / theirs[1].mean)
    text = f"{_k(ours[1])} against {_k(theirs[1])} ({theirs[0]})"
    return Check(what, 100 * (share - ratio), 100 * error, text), ratio


def _nearly(grid: Grid, where: str, policies: Sequence[str], delta: float, target: float) -> float:
    """More than 1 if somebody who does not get to a target misses it by no more than the error, else 0."""
    _, top = best(grid.value, where, policies, delta)
    return 1.01 if top is not None and target - top.mean <= top.error else 0.0


def _k(value: Value) -> str:
    return f"{value.mean / 1000:,.3g} k"


def _all_savings(
    grid: Grid, deltas: Sequence[float], targets: Sequence[float], share: float
) -> tuple[list[Check | None], list[float]]:
    pairs = [
        _saves(grid, where, delta, target, share) for where in DISTRIBUTIONS for delta in deltas for target in targets
    ]
    asked = [pair for pair in pairs if pair is not None]
    return [check for check, _ in asked], [ratio for _, ratio in asked if ratio is not None]


def cheaper_to_target(grid: Grid) -> Finding:
    checks, ratios = _all_savings(grid, DELTAS, TARGETS, SUBSTANTIAL)
    out = judge(checks, SHARE) if checks else untestable("nobody reaches any of the targets")
    if not ratios:
        return out
    least = sum(ratio < 1 for ratio in ratios)
    median = f"median {100 * np.median(ratios):.0f} % of the best rival's"
    said = f"least energy in {least} of {len(ratios)} cases that both reach; {median}"
    return Finding(out.verdict, f"{said}. {out.figure}", out.why, out.close)


def least_for_any_target(grid: Grid) -> Finding:
    checks, _ = _all_savings(grid, [0.5], [30.0, 35.0, 40.0, 45.0, *TARGETS, 70.0], 1.0)
    return judge(checks, SHARE) if checks else untestable("nobody reaches any of the targets")


def better_than_harvesting(grid: Grid) -> Finding:
    """Against FedSeq, FLDA and FedBacys: more accurate for the same energy, that of the budget."""
    checks = []
    for where, delta in COLUMNS:
        (_, ours), (rival, theirs) = (best(grid.value, where, some, delta) for some in (("pipecycle",), HARVESTING))
        checks.append(above(column(where, delta), ours, theirs, ("", rival)))
    return judge(checks)


def ahead_at_any_budget(grid: Grid) -> Finding:
    """At delta = 0.5 the upper envelope of PipeCycle's curves against that of all baselines, at twenty budgets."""
    checks: list[Check | None] = []
    for where in DISTRIBUTIONS:
        ours, theirs = (_envelope(grid, where, policies) for policies in (("pipecycle",), BASELINES))
        if ours is None or theirs is None:
            checks.append(None)
            continue
        for place, spent in enumerate(_budgets(grid)):
            (high, error), (rival, other) = ours[place], theirs[place]
            what, text = f"{DISTRIBUTIONS[where]}, {spent / 1000:,.3g} k", f"{high:.1f} against {rival:.1f}"
            checks.append(Check(what, high - rival, math.hypot(error, other), text))
    return judge(checks)


def _budgets(grid: Grid) -> list[float]:
    whole = float(grid.world.get("world.budget") or BUDGET)
    return [whole * part / 20 for part in range(1, 21)]


def _envelope(grid: Grid, where: str, policies: Sequence[str]) -> list[tuple[float, float]] | None:
    """Highest mean accuracy and its error at each of the budgets."""
    rows = []
    for policy, groups in paper.choices(policies):
        cell = grid.cell(where, policy, groups, 0.5)
        lines = [] if cell is None else [line for line in (run.line("energy") for run in cell) if len(line[0])]
        if cell is None or not lines:
            return None
        means = np.mean([np.interp(_budgets(grid), x, y) for x, y in lines], axis=0)
        rows.append([(float(mean), cell.accuracy().error) for mean in means])
    return [max(column) for column in zip(*rows, strict=True)]


def gap_widens(grid: Grid) -> Finding:
    """The share of the best rival's energy at delta = 0.5, where both get to a target under either distribution."""
    shares: dict[str, dict[float, tuple[float, float]]] = {where: {} for where in DISTRIBUTIONS}
    for where in DISTRIBUTIONS:
        for target in TARGETS:
            pair = _saves(grid, where, 0.5, target, 1.0)
            if pair == (None, None):
                return judge([None])
            if pair is not None and pair[0] is not None and pair[1] is not None:
                shares[where][target] = (100 * pair[1], pair[0].error)
    common = sorted(set(shares["iid"]) & set(shares["non-iid"]))
    if not common:
        return untestable("no target is reached by PipeCycle and a baseline under both distributions")
    checks: list[Check | None] = []
    for target in common:
        (iid, error), (other, more) = shares["iid"][target], shares["non-iid"][target]
        text = f"{other:.0f} % non-IID, {iid:.0f} % IID"
        checks.append(Check(f"{target:g} %", iid - other, math.hypot(error, more), text))
    return judge(checks, SHARE)


def half_the_energy_to_65(grid: Grid) -> Finding:
    pair = _saves(grid, "non-iid", 0.5, 65.0, 0.6)
    if pair is not None:
        return judge([pair[0]], SHARE)
    name, top = best(grid.value, "non-iid", ("pipecycle",), 0.5)
    text = "" if top is None else f"at most {top.mean:.1f} ({name})"
    return judge([None if top is None else Check("65 %", top.mean - 65, top.error, text)])


def isolated_guess(grid: Grid) -> Finding:
    checks = []
    for key, cell in grid.cells.items():
        if key[0] == "isolated":
            where = "IID" if key[3] is None else "non-IID"
            checks.append(at_most(f"{where}, δ = {key[2].split(':')[-1]}", cell.clients, NEAR_CHANCE))
    return judge(checks or [None])


def clients_lead(grid: Grid, where: str, deltas: Sequence[float]) -> Finding:
    """The mean over all clients' own models at the end, G = 2: PipeCycle against every baseline."""
    checks: list[Check | None] = []
    for delta in deltas:
        ours = grid.cell(where, "pipecycle", 2, delta)
        rivals = []
        for policy in BASELINES:
            cell = grid.cell(where, policy, paper.two_groups(policy), delta)
            rivals.append((paper.NAMES[policy], None if cell is None else cell.clients))
        known = [(name, value) for name, value in rivals if value is not None]
        if ours is None or len(known) < len(rivals):
            checks.append(None)
            continue
        name, top = max(known, key=lambda rival: rival[1].mean)
        checks.append(above(f"δ = {delta:g}", ours.clients, top, ("", name)))
    return judge(checks)


def _reached(cell: Cell, target: float, measure: Measure = "clients_accuracy") -> float:
    """Slots until a target, the mean over the trials, infinite if fewer than half get there; one that never does counts
    with all its slots, as it does with all its energy."""
    times = [run.slots_to(target, measure) for run in cell]
    if 2 * times.count(None) > len(times):
        return math.inf
    return float(np.mean([run.lasted if time is None else time for run, time in zip(cell, times, strict=True)]))


def _slots(grid: Grid, where: str, policy: str, delta: float, target: float) -> float | None:
    """Slots until the clients' mean reaches a target with G = 2; None if it was not run."""
    cell = grid.cell(where, policy, paper.two_groups(policy), delta)
    if cell is None or cell.clients is None:
        return None
    return _reached(cell, target)


def _sooner(
    what: str, first: float | None, second: float | None, names: tuple[str, str], every: float = 750.0
) -> Check | None:
    """`first` comes before `second`; the error is the slots between two looks."""
    if first is None or second is None:
        return None
    if math.isinf(first) and math.isinf(second):
        return Check(what, 0.0, every, "neither gets there")
    times = ["never" if math.isinf(slots) else f"{slots:,.0f}" for slots in (first, second)]
    return Check(what, second - first, every, f"{names[0]} {times[0]}, {names[1]} {times[1]}")


def pipecycle_first(grid: Grid) -> Finding:
    return judge((_race(grid, delta) for delta in AMPLE), " slots", widen=False)


def fedseq_first_when_scarce(grid: Grid) -> Finding:
    check = _race(grid, 0.1)
    return judge([None if check is None else evolve(check, margin=-check.margin)], " slots")


def _race(grid: Grid, delta: float) -> Check | None:
    times = [_slots(grid, "iid", policy, delta, 50.0) for policy in ("pipecycle", "fedseq")]
    return _sooner(f"δ = {delta:g}", times[0], times[1], ("PipeCycle", "FedSeq"))


def others_lag(grid: Grid) -> Finding:
    checks = []
    for delta in DELTAS:
        pair = [_slots(grid, "iid", policy, delta, 50.0) for policy in ("pipecycle", "fedseq")]
        slower = None if None in pair else max(slots for slots in pair if slots is not None)
        for policy in (*paper.UNGROUPED, "cycp", "fedbacys"):
            time = _slots(grid, "iid", policy, delta, 50.0)
            checks.append(_sooner(f"δ = {delta:g}", slower, time, ("both", paper.NAMES[policy])))
    return judge(checks, " slots", widen=False)


def slower_when_scarce(grid: Grid) -> Finding:
    """Later than FedAvg and FLDA at every ten percent that one of them reaches."""
    checks = []
    for target in range(20, 80, 10):
        ours = _slots(grid, "non-iid", "pipecycle", 0.1, target)
        for policy in ("fedavg", "flda"):
            theirs = _slots(grid, "non-iid", policy, 0.1, target)
            if ours != math.inf or theirs != math.inf:
                checks.append(_sooner(f"{target} %", theirs, ours, (paper.NAMES[policy], "PipeCycle"), every=1500.0))
    return judge(checks, " slots", widen=False) if checks else untestable("none of them gets to 20 %")


def more_groups_start_faster(grid: Grid) -> Finding:
    """Slots until the global model has 40 %, by G."""
    checks: list[Check | None] = []
    for where, delta in COLUMNS:
        times: dict[int, float | None] = {}
        for groups in GROUPS:
            cell = grid.cell(where, "pipecycle", groups, delta)
            times[groups] = None if cell is None else _reached(cell, 40.0, "accuracy")
        for few, many in pairwise(GROUPS):
            names = (f"G = {many}", f"G = {few}")
            checks.append(_sooner(column(where, delta), times[many], times[few], names, every=150.0))
    return judge(checks, " slots", widen=False)


def lag_is_bounded(grid: Grid) -> Finding:
    """tau - pi(tau) <= G in every plan."""
    checks: list[Check | None] = []
    for what, groups, cell in _chains(grid):
        known = [run.plan.get("ancestry_max") for run in cell or ()]
        most = max((lag for lag in known if lag is not None), default=None)
        checks.append(None if most is None else Check(what, groups - float(most), 0.0, f"at most {most:.0f}"))
    return judge(checks, " aggregations")


def _chains(grid: Grid) -> Iterator[tuple[str, int, Cell | None]]:
    """All of PipeCycle's cells, with what to call them and their groups."""
    for where, delta in COLUMNS:
        for groups in GROUPS:
            yield f"{column(where, delta)}, G = {groups}", groups, grid.cell(where, "pipecycle", groups, delta)


def depth_is_bounded(grid: Grid) -> Finding:
    """The deepest chain of every plan against floor(slots / B)."""
    checks: list[Check | None] = []
    session = int(grid.world.get("world.session") or 20)
    for what, _, cell in _chains(grid):
        for plan in [{}] if cell is None else [run.plan for run in cell]:
            depth, slots = plan.get("chains.depth_max"), plan.get("slots")
            if depth is None or slots is None:
                checks.append(None)
                continue
            most = int(slots) // session
            checks.append(Check(what, most - float(depth), 0.0, f"{depth:.0f} of {most} at most"))
    return judge(checks, " aggregations")


def direction_of_the_analysis(grid: Grid) -> Finding:
    """The analysis has one G* for all delta (Section VI-C): it predicts no direction that a best G could follow."""
    roots = {round(optimal_groups(System(delta=delta), 1.0), 6) for delta in DELTAS}
    why = "its G* depends neither on δ nor on the distribution (Section VI-C), so that it predicts no direction"
    return untestable(why, f"G* with L = 1: {', '.join(f'{root:g}' for root in sorted(roots))}")


def _rate(grid: Grid, groups: int, delta: float) -> float | None:
    """Aggregations per slot, IID."""
    cell = grid.cell("iid", "pipecycle", groups, delta)
    events, slots = (None, None) if cell is None else (cell.plan("aggregations"), cell.plan("slots"))
    return None if events is None or not slots else events / slots


def _growth(grid: Grid, deltas: Sequence[float], margin: Callable[[float, int], float]) -> Finding:
    checks: list[Check | None] = []
    for delta in deltas:
        two = _rate(grid, 2, delta)
        for groups in (5, 10):
            rate = _rate(grid, groups, delta)
            if not two or rate is None:
                checks.append(None)
            else:
                text = f"{rate / two:.2f} times as many as with G = 2"
                checks.append(Check(f"δ = {delta:g}, G = {groups}", margin(rate / two, groups), 0.0, text))
    return judge(checks, "")


def events_grow_with_groups(grid: Grid) -> Finding:
    """Within a tenth of G / 2 times those of G = 2."""
    return _growth(grid, DELTAS, lambda ratio, groups: 0.1 - abs(ratio / (groups / 2) - 1))


def events_stop_growing(grid: Grid) -> Finding:
    return _growth(grid, [0.1], lambda ratio, groups: 0.25 - (ratio - 1))


def relay_is_what_helps(grid: Grid) -> Finding:
    """FedBacys, which has no relay, should fail whatever its clients start from; its other reference rules tell."""
    checks: list[Check | None] = []
    for config in grid.parts.get("FedBacys' references", ()):
        rule = config.settings.get("reference_refresh")
        if config.data.alpha is not None and rule == "broadcast":
            cell = grid.cells.get(key_of_config(config))
            what = f"broadcast, G = {config.settings['groups']}, δ = {config.world.harvest.split(':')[-1]}"
            checks.append(at_most(what, None if cell is None else cell.accuracy(), NEAR_CHANCE))
    return judge(checks or [None])


def optimum_ignores_delta(grid: Grid) -> Finding:
    """The formula, for the paper's horizon and L = 1: nothing that was run bears on it."""
    roots = {delta: optimal_groups(System(delta=delta), 1.0) for delta in DELTAS}
    spread = max(roots.values()) - min(roots.values())
    text = f"G* = {roots[0.5]:.3f} for every δ, with L = 1"
    return judge([Check("the formula", -spread, 0.0, text)], "")
