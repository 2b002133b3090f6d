"""What an accuracy costs: energy to a target, and whose is the least."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from pipecycle.report.tables import Table
from pipecycle.reproduce import paper
from pipecycle.reproduce.paper import BASELINES, DELTAS, GROUPS
from pipecycle.reproduce.study import Cell, Study, Value
from pipecycle.reproduce.tables import CAPTIONS, MISSING, TARGETS, label, trials


def choices(policies: Sequence[str]) -> Iterator[tuple[str, int | None]]:
    """Some of the paper's schedulers with every number of groups that they have."""
    for policy in policies:
        yield from ((policy, groups) for groups in ((None,) if policy in paper.UNGROUPED else GROUPS))


def reached(cell: Cell, target: float) -> int:
    """Trials that get to an accuracy within the budget."""
    return sum(run.reaches(target) is not None for run in cell)


def gets_there(cell: Cell, target: float) -> bool:
    """Whether at least half of the trials do."""
    return 2 * reached(cell, target) >= len(cell)


def cost(cell: Cell, target: float) -> Value:
    """Energy to an accuracy, the mean over the trials; one that never gets there counts with what it spent.

    Its error is what the error of the accuracy amounts to, or the spread over trials if that is more."""
    spent, blurred = [run.cost(target) for run in cell], []
    for run in cell:
        row = run.reaches(target)
        if row is None:
            continue
        at, before = float(run.energy[row]), float(run.energy[row - 1]) if row else 0.0
        around = [one for one in (run.energy_to(target - run.noise), run.energy_to(target + run.noise)) if one]
        blurred.append(max(at - before, *(abs(one - at) for one in around)))
    sd = float(np.std(spent, ddof=1)) if len(spent) > 1 else None
    wide = max(float(np.mean(blurred)) if blurred else 0.0, sd or 0.0)
    return Value(float(np.mean(spent)), sd, len(spent), 2 * wide / math.sqrt(len(spent)))


Cheapest = tuple[str, Value]


def cheapest(
    found: Study, where: str, policies: Sequence[str], delta: float, target: float
) -> tuple[bool, Cheapest | None]:
    """Whether all of some schedulers were run, and which gets to a target with the least energy, each at its best G."""
    bills: list[Cheapest] = []
    complete = True
    for policy, groups in choices(policies):
        cell = found.cell(where, policy, groups, delta)
        complete = complete and cell is not None
        if cell is not None and gets_there(cell, target):
            bills.append((label(policy, groups).replace(",", ""), cost(cell, target)))
    return complete, min(bills, key=lambda one: one[1].mean, default=None)


def ratios(found: Study, where: str) -> Table:
    """Energy to the targets as a multiple of the best baseline's."""
    rivals = {
        (delta, target): cheapest(found, where, BASELINES, delta, target)[1] for delta in DELTAS for target in TARGETS
    }
    body = []
    for scheme, groups in found.rows:
        line = [label(scheme, groups)]
        for delta in DELTAS:
            cell = found.cell(where, scheme, groups, delta)
            line += [MISSING if cell is None else _ratio(cell, target, rivals[delta, target]) for target in TARGETS]
        body.append(tuple(line))
    names = ["the best baseline", *("-" if one is None else _named(one) for one in rivals.values())]
    head = ["Scheme"]
    for delta in DELTAS:
        head += [f"δ = {delta:g}: {TARGETS[0]:g} %", *(f"{target:g} %" for target in TARGETS[1:])]
    title = f"Energy to reach an accuracy as a multiple of the best baseline's, {CAPTIONS[where]}: {trials(found)}"
    return Table(title, tuple(head), (tuple(names), *body))


def _ratio(cell: Cell, target: float, rival: Cheapest | None) -> str:
    if not gets_there(cell, target):
        return "never"
    if rival is None:
        return "alone"
    return f"{cost(cell, target).mean / rival[1].mean:.2f}"


def _named(rival: Cheapest) -> str:
    return f"{rival[0]}: {rival[1].mean / 1000:,.0f} k"
