"""What an accuracy costs: energy to a target, and whose is the least."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipecycle.report.tables import TextTable
from pipecycle.results import Value
from pipecycle_paper.grid import Cell, Grid
from pipecycle_paper.paper import BASELINES, COLUMNS, DELTAS, choices, label
from pipecycle_paper.tables import CAPTIONS, TARGETS, rows, target_heads, trials


def cost(cell: Cell, target: float) -> Value:
    """Energy to an accuracy, the mean over the trials; one that never gets there counts with what it spent.

    Its error is what the error of the accuracy amounts to, or the spread over trials if that is more."""
    blurred = []
    for trial in cell:
        row = trial.reaches(target)
        if row is not None:
            noise, energy = trial.noise(trial.test_samples), float(trial.energy[row])
            around = [trial.energy_to(target - noise), trial.energy_to(target + noise)]
            before = float(trial.energy[row - 1]) if row else 0.0
            blurred.append(max(energy - before, *(abs(near - energy) for near in around if near)))
    return Value.of([trial.cost(target) for trial in cell], float(np.mean(blurred)) if blurred else 0.0)


Cheapest = tuple[str, Value]


def cheapest(
    grid: Grid, where: str, policies: Sequence[str], delta: float, target: float
) -> tuple[bool, Cheapest | None]:
    """Whether all of some schedulers were run, and which gets to a target with the least energy, each at its best G."""
    bills: list[Cheapest] = []
    complete = True
    for policy, groups in choices(policies):
        cell = grid.cell(where, policy, groups, delta)
        complete = complete and cell is not None
        if cell is not None and cell.gets_to(target):
            bills.append((label(policy, groups).replace(",", ""), cost(cell, target)))
    return complete, min(bills, key=lambda bill: bill[1].mean, default=None)


def least(grid: Grid, rivals: Sequence[str]) -> tuple[int, int] | None:
    """In how many cases PipeCycle gets to a target with less energy than all of some rivals, of those in which anybody
    gets there: every target, charging probability and distribution, everybody at the best G.  None if some were not
    run, or nobody gets anywhere."""
    won = asked = 0
    for where, delta in COLUMNS:
        for target in TARGETS:
            (all_ours, ours), (all_theirs, theirs) = (
                cheapest(grid, where, policies, delta, target) for policies in (("pipecycle",), rivals)
            )
            if not (all_ours and all_theirs):
                return None
            asked += ours is not None or theirs is not None
            won += ours is not None and (theirs is None or ours[1].mean < theirs[1].mean)
    return (won, asked) if asked else None


def ratios(grid: Grid, where: str) -> TextTable:
    """Energy to the targets as a multiple of the best baseline's."""
    rivals = {
        (delta, target): cheapest(grid, where, BASELINES, delta, target)[1] for delta in DELTAS for target in TARGETS
    }

    def text(cell: Cell, delta: float) -> list[str]:
        return [_ratio(cell, target, rivals[delta, target]) for target in TARGETS]

    costs = ("-" if rival is None else f"{rival[0]}: {rival[1].mean / 1000:,.0f} k" for rival in rivals.values())
    title = f"Energy to reach an accuracy as a multiple of the best baseline's, {CAPTIONS[where]}: {trials(grid)}"
    body = (("the best baseline", *costs), *rows(grid, where, text, len(TARGETS)))
    return TextTable(title, ("Scheme", *target_heads()), body)


def _ratio(cell: Cell, target: float, rival: Cheapest | None) -> str:
    if not cell.gets_to(target):
        return "never"
    if rival is None:
        return "alone"
    return f"{cost(cell, target).mean / rival[1].mean:.2f}"
