"""Rivals that the paper does not compare with, in one column of its evaluation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from pipecycle.policies import TITLES
from pipecycle.report.tables import TextTable, counted
from pipecycle.runs.parquet import Results
from pipecycle.words import plural
from pipecycle_paper import paper
from pipecycle_paper.grid import Cell, Grid, cells_of
from pipecycle_paper.tables import MISSING

DELTA = 0.5
TARGETS = {"iid": 60.0, "non-iid": 55.0}
ABOUT = (
    "Schedulers made for clients that come and go (FedAsync, FedBuff, FedAU, FedVARP, F3AST) and FedProx (FedAvg with "
    "a proximal term of 0.01), with their default settings and in the regime of the tables (experiments/rivals.toml). "
    "Beside them are the schemes of the tables on the same trials, each with its most accurate number of groups. "
    "A trial that never gets to an accuracy counts with what it spent."
)
Row = Mapping[str, Cell]
"""A scheduler's cells by distribution."""


def table(grid: Grid, results: Results) -> TextTable | None:
    """Accuracy at the budget and energy to an accuracy, the most accurate on IID data first; None if none was run in
    the world of the grid."""
    theirs = _theirs(grid, results)
    counts = [set(cell.trials) for row in theirs.values() for cell in row.values()]
    trials = set(range(grid.trials[0])).intersection(*counts) if counts else set()
    if not trials:
        return None
    rows: dict[str, Row] = {name: {where: row[where].among(trials) for where in row} for name, row in theirs.items()}
    rows |= dict(_ours(grid, trials))
    ranked = sorted(rows.items(), key=lambda row: -_mean(row[1].get("iid")))
    body = tuple((name, *(text for where in TARGETS for text in _texts(row.get(where), where))) for name, row in ranked)
    head = ["Scheduler"]
    for where, target in TARGETS.items():
        head += [f"{paper.DISTRIBUTIONS[where]}: accuracy (%)", f"thousand units to {target:g} %"]
    title = f"Other rivals, δ = {DELTA:g}: at the budget, mean ± standard deviation over {plural(len(trials), 'trial')}"
    return TextTable(title, tuple(head), body)


def _theirs(grid: Grid, results: Results) -> dict[str, dict[str, Cell]]:
    world = {name: value for name, value in grid.world.items() if name not in ("world.slots", "train.proximal")}
    rows: dict[str, dict[str, Cell]] = {}
    for (policy, _, _, alpha, *_), cell in cells_of(results, world).items():
        name = "FedProx" if policy == "fedavg" else TITLES.get(policy, str(policy))
        rows.setdefault(name, {})["iid" if alpha is None else "non-iid"] = cell
    return rows


def _ours(grid: Grid, trials: set[int]) -> Iterator[tuple[str, Row]]:
    """The schemes of the tables, each with its best number of groups over both distributions."""
    schemes: dict[str, dict[int | None, Row]] = {}
    for scheme, groups in grid.rows:
        cells = {where: grid.cell(where, scheme, groups, DELTA) for where in TARGETS}
        schemes.setdefault(scheme, {})[groups] = {
            where: cell.among(trials) for where, cell in cells.items() if cell is not None and cell.among(trials)
        }
    for scheme, options in schemes.items():
        best = max(options, key=lambda groups: float(np.mean([_mean(options[groups].get(where)) for where in TARGETS])))
        if options[best]:
            yield paper.label(scheme, best), options[best]


def _mean(cell: Cell | None) -> float:
    return 0.0 if cell is None else cell.accuracy().mean


def _texts(cell: Cell | None, where: str) -> tuple[str, str]:
    if cell is None:
        return MISSING, MISSING
    reached, mean = cell.reached(TARGETS[where]), float(np.mean([trial.cost(TARGETS[where]) for trial in cell]))
    cost = counted(f"{mean / 1000:,.0f}", reached, len(cell)) if reached else "never"
    return cell.accuracy().text() + " †" * any(trial.diverged for trial in cell), cost
