"""Where our figures differ from the paper's, and why, as far as that is known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attrs import frozen

from pipecycle.report.tables import TextTable
from pipecycle.theory import stability_limit
from pipecycle_paper import paper
from pipecycle_paper.grid import Cell, Grid
from pipecycle_paper.paper import CYCLIC, DELTAS, DISTRIBUTIONS, Printed
from pipecycle_paper.tables import CAPTIONS, label, signed

APART = 5.0
"""Points from which on a cell differs."""
OPEN, HIGHER, LIMIT, RESONANCE = "open", "open: ours is higher", "stability limit", "chain resonance"
PROVEN = (LIMIT, RESONANCE)
ABOUT = (
    f"Cells more than {APART:g} points from the paper's. Two reasons are proven. The stability limit: a server "
    "that adds whole updates which are l versions old is unstable in every direction in which a session removes more "
    "than 2 sin(π / (4 l + 2)) of the error, and stiff directions lose nearly all of it (docs/stability.md). Chain "
    "resonance: with plentiful energy each chain of PipeCycle meets the same few clients for ever. A reason is given "
    "only where ours is the lower figure, as it predicts; everything else is open."
)


@frozen(eq=False)
class Difference:
    """A cell of ours and how far it is from the paper's."""

    delta: float
    gap: float
    cell: Cell
    kind: str
    """Why it differs, in a word."""


def differences(grid: Grid, where: str, row: Printed) -> Iterator[Difference]:
    """Every cell of a row of the paper's that was run."""
    for printed, delta in zip(row.values, DELTAS, strict=True):
        cell = grid.cell(where, row.policy, row.groups, delta)
        if cell is not None:
            gap = cell.accuracy().mean - printed
            yield Difference(delta, gap, cell, _kind(grid, row.policy, cell, gap))


def _kind(grid: Grid, policy: str, cell: Cell, gap: float) -> str:
    if gap > 0:
        return HIGHER
    lag, coverage = cell.plan("lag.mean"), cell.plan("chains.coverage_min")
    if policy in CYCLIC and lag is not None and stability_limit(lag) < 1:
        return LIMIT
    if policy == "pipecycle" and coverage is not None and coverage < 0.9 * float(grid.world["world.clients"]):
        return RESONANCE
    return OPEN


def reasons(grid: Grid) -> TextTable:
    """A line for every configuration and reason with cells that differ."""
    body = []
    for where in DISTRIBUTIONS:
        for row in paper.TABLES[where]:
            apart: dict[str, list[Difference]] = {}
            for one in differences(grid, where, row):
                if abs(one.gap) > APART:
                    apart.setdefault(one.kind, []).append(one)
            for kind, cells in apart.items():
                words = ", ".join(f"{signed(one.gap)} at {one.delta:g}" for one in cells)
                name = f"{label(row.policy, row.groups)}, {CAPTIONS[where].split(',')[0]}"
                body.append((name, words, _words(kind, cells)))
    title = f"Cells more than {APART:g} points from the paper's: difference in points at δ"
    return TextTable(title, ("Scheme", "difference", "reason"), tuple(body) or (("none", "-", "-"),))


def _words(kind: str, cells: Sequence[Difference]) -> str:
    if kind == LIMIT:
        lags = sorted(one.cell.plan("lag.mean") or 0.0 for one in cells)
        shares = [100 * stability_limit(lag) for lag in reversed(lags)]
        return f"{kind}: lag {_range(lags, 1)}, stable where a session removes below {_range(shares, 0)} % of an error"
    if kind == RESONANCE:
        met = sorted(one.cell.plan("chains.coverage_min") or 0.0 for one in cells)
        return f"{kind}: a chain meets {_range(met, 0)} clients"
    return kind


def _range(values: Sequence[float], digits: int) -> str:
    ends = dict.fromkeys(f"{value:.{digits}f}" for value in (values[0], values[-1]))
    return " to ".join(ends)


def counted(grid: Grid) -> str:
    """How many cells differ, and how many of them for a proven reason, as a sentence."""
    every = [one for where in DISTRIBUTIONS for row in paper.TABLES[where] for one in differences(grid, where, row)]
    apart = [one for one in every if abs(one.gap) > APART]
    proven = sum(one.kind in PROVEN for one in apart)
    return (
        f"{len(apart)} of {len(every)} cells are more than {APART:g} points from the paper's: {proven} of them for a "
        f"proven reason, {len(apart) - proven} open."
    )
