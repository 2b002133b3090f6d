"""What was asked of the evaluation before it was run, and what the runs say; no goal is moved afterwards."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from attrs import frozen

from pipecycle.report.tables import TextTable
from pipecycle.results import Difference, paired
from pipecycle_paper import paper, selection
from pipecycle_paper.grid import Cell, Grid
from pipecycle_paper.paper import BASELINES, COLUMNS, DISTRIBUTIONS, GROUPS, choices, column, label
from pipecycle_paper.regimes import rms
from pipecycle_paper.tables import signed, trials

NEAR_PAPER = 3.5
"""Points r.m.s. to the paper on the IID cells of the regime experiment."""
BEHIND, ENOUGH = -0.5, 7
"""Points that PipeCycle+ may be behind the best of the paper's schemes, and in how many columns it must hold."""
OF_FEDAVG = 0.75
"""Share of FedAvg's energy to 60 % IID."""
OF_BEST = 1.1
"""Share of the best scheme's energy to 55 % non-IID."""
AMPLE = (0.5, 1.0)
SCHEMES = (*BASELINES, "pipecycle")
"""The paper's, its own among them."""


@frozen
class Goal:
    """A sentence with its numbers, and whether it holds; None if the runs cannot say."""

    text: str
    holds: bool | None

    @property
    def sentence(self) -> str:
        word = {True: "holds", False: "does not hold", None: "cannot be said yet"}[self.holds]
        return f"{word[0].upper()}{word[1:]}: {self.text}"


@frozen(eq=False)
class Contest:
    """PipeCycle+ in one column, against the best of the paper's schemes there."""

    where: str
    delta: float
    ours: float
    rival: str
    theirs: float
    gap: Difference
    """Trial by trial."""


def goals(grid: Grid) -> list[Goal]:
    groups, judged = chosen(grid)
    rest = grid.among(judged)
    return [_near_paper(grid), _ahead(rest, groups, judged), *_energy(rest, groups)]


def chosen(grid: Grid) -> tuple[int | None, list[int]]:
    """The G of PipeCycle+ with the highest accuracy on the first trial, mean over all columns, and the other trials."""
    means: dict[int, float] = {}
    every: set[int] = set()
    for groups in GROUPS:
        cells = [grid.cell(where, "pipecycle+", groups, delta) for where, delta in COLUMNS]
        every |= {number for cell in cells if cell is not None for number in cell.trials}
        if all(cell is not None and 0 in cell.trials for cell in cells):
            means[groups] = float(np.mean([cell.trials[0].value() for cell in cells if cell is not None]))
    return max(means, key=lambda groups: means[groups], default=None), sorted(every - {0})


def contests(grid: Grid, groups: int | None) -> list[Contest]:
    """Column by column, over the trials that both have; the rival is the best over those very trials."""
    out = []
    for where, delta in COLUMNS if groups is not None else ():
        ours = grid.cell(where, "pipecycle+", groups, delta)
        rivals = {place: grid.cell(where, *place, delta) for place in choices(SCHEMES)}
        known = {place: cell.by_trial() for place, cell in rivals.items() if cell is not None}
        if ours is not None and len(known) == len(rivals):
            best = max(known, key=lambda place: float(np.mean(list(known[place].values()))))
            pair = (ours.by_trial(), known[best])
            gap = paired(*pair)
            if gap is not None:
                common = pair[0].keys() & pair[1].keys()
                mine, theirs = (float(np.mean([some[n] for n in common])) for some in pair)
                out.append(Contest(where, delta, mine, label(*best), theirs, gap))
    return out


def contest_table(grid: Grid) -> TextTable:
    groups, judged = chosen(grid)
    body = []
    for contest in contests(grid.among(judged), groups):
        gap = signed(contest.gap.mean) + ("" if contest.gap.error is None else f" ± {contest.gap.error:.1f}")
        line = (column(contest.where, contest.delta), f"{contest.ours:.1f}", contest.rival, f"{contest.theirs:.1f}")
        body.append((*line, gap, "yes" if contest.gap.mean >= BEHIND else "no"))
    title = "PipeCycle+ against the best of the paper's schemes, column by column: accuracy (%)"
    if groups is not None and judged:
        title += f"; G = {groups}, chosen on trial 0, judged on {_trials(judged)}"
    head = ("Column", "PipeCycle+", "best of the paper's", "its", "paired difference, standard error", "at least -0.5")
    return TextTable(title, head, tuple(body) or (("no trial to judge on yet", *("-",) * (len(head) - 1)),))


def _near_paper(grid: Grid) -> Goal:
    """The IID cells of the regime experiment, over all trials; the same cells without IID data beside."""
    sweep = selection.read(selection.experiment(selection.REGIMES), "1")
    first = next(iter(sweep.parts.values()))
    places = [selection.place(sweep.runs[name])[1:] for name in first]
    gaps: dict[str, list[float]] = {where: [] for where in DISTRIBUTIONS}
    for where in DISTRIBUTIONS:
        for scheme, groups, delta, printed in paper.cells(where):
            value = grid.value(where, scheme, groups, delta) if (scheme, groups, delta) in places else None
            if value is not None:
                gaps[where].append(value.mean - printed)
    text = (
        f"the {len(places)} IID cells of the regime experiment are at most {NEAR_PAPER:g} points (root mean square) "
        "from the paper's"
    )
    if not gaps["iid"]:
        return Goal(f"{text}; none was run.", None)
    text += f": {rms(gaps['iid']):.1f} over {len(gaps['iid'])} cells and {trials(grid)}"
    text += f" (the same cells without IID data: {rms(gaps['non-iid']):.1f})." if gaps["non-iid"] else "."
    return Goal(text, rms(gaps["iid"]) <= NEAR_PAPER if len(gaps["iid"]) == len(places) else None)


def _ahead(grid: Grid, groups: int | None, judged: Sequence[int]) -> Goal:
    text = (
        "PipeCycle+ with one G for all columns, chosen on trial 0 and judged on the others, is at most "
        f"{-BEHIND:g} points behind the best of the paper's schemes at its best G in at least {ENOUGH} of "
        f"{len(COLUMNS)} columns"
    )
    fought = contests(grid, groups)
    if not fought:
        return Goal(f"{text}; there is no trial to judge on.", None)
    good = sum(contest.gap.mean >= BEHIND for contest in fought)
    worst, top = (pick(fought, key=lambda contest: contest.gap.mean) for pick in (min, max))
    text += (
        f": G = {groups}, {_trials(judged)}: {good} of {len(fought)}; from {signed(worst.gap.mean)} "
        f"({column(worst.where, worst.delta)}, against {worst.rival}) to {signed(top.gap.mean)} "
        f"({column(top.where, top.delta)}, against {top.rival})."
    )
    missing = len(COLUMNS) - len(fought)
    return Goal(text, True if good >= ENOUGH else False if good + missing < ENOUGH else None)


def _energy(grid: Grid, groups: int | None) -> list[Goal]:
    asked = {
        "iid": (60.0, f"at most {OF_FEDAVG:g} of FedAvg's and below that of every scheme of the paper"),
        "non-iid": (55.0, f"at most {OF_BEST:g} of the least of the paper's schemes"),
    }
    out = []
    for where, (target, limit) in asked.items():
        for delta in AMPLE:
            text = f"energy to {target:g} % ({column(where, delta)}), with the same G and trials, is {limit}"
            out.append(_bill(grid, where, delta, target, groups, text))
    return out


def _bill(grid: Grid, where: str, delta: float, target: float, groups: int | None, text: str) -> Goal:
    ours = _cost(grid.cell(where, "pipecycle+", groups, delta), target)
    bills = {place: _cost(grid.cell(where, *place, delta), target) for place in choices(SCHEMES)}
    known = {place: bill for place, bill in bills.items() if bill is not None}
    if ours is None or len(known) < len(bills):
        return Goal(f"{text}; not all of it was run.", None)
    best = min(known, key=lambda place: known[place][0])
    fedavg = known["fedavg", None]
    text += f": {_k(ours)} with G = {groups}"
    if where == "iid":
        text += f"; FedAvg {_k(fedavg)}, a ratio of {ours[0] / fedavg[0]:.2f}"
    text += f"; the least of the paper's {_k(known[best])} ({label(*best)}), a ratio of {ours[0] / known[best][0]:.2f}."
    least = ours[0] / known[best][0]
    good = ours[0] <= OF_FEDAVG * fedavg[0] and least < 1 if where == "iid" else least <= OF_BEST
    return Goal(text, bool(good and 2 * ours[1] >= ours[2]))


def _cost(cell: Cell | None, target: float) -> tuple[float, int, int] | None:
    """Mean energy to a target, how many get there, of how many; those that do not count with what they spent."""
    if cell is None:
        return None
    return float(np.mean([trial.cost(target) for trial in cell])), cell.reached(target), len(cell)


def _k(bill: tuple[float, int, int]) -> str:
    mean, reached, of = bill
    part = "" if reached == of else f", {reached} of {of} get there"
    return f"{mean / 1000:,.0f} k{part}"


def _trials(judged: Sequence[int]) -> str:
    return f"trial{'s' * (len(judged) > 1)} {', '.join(map(str, judged))}"
