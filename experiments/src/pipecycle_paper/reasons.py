"""Where our figures differ from the paper's, and why, as far as that is known."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from pipecycle.report.tables import TextTable
from pipecycle.theory import stability_limit
from pipecycle_paper import paper
from pipecycle_paper.grid import Cell, Grid
from pipecycle_paper.paper import CYCLIC, DISTRIBUTIONS
from pipecycle_paper.tables import signed

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
class Compared:
    """A cell of ours beside the paper's."""

    row: str
    delta: float
    gap: float
    """Ours less the paper's, in points."""
    cell: Cell
    kind: str
    """Why it differs, in a word."""


def compared(grid: Grid) -> list[Compared]:
    """Every cell of the paper's that was run."""
    out = []
    for where, data in DISTRIBUTIONS.items():
        for policy, groups, delta, printed in paper.cells(where):
            cell = grid.cell(where, policy, groups, delta)
            if cell is not None:
                gap = cell.accuracy().mean - printed
                name = f"{paper.label(policy, groups)}, {data}"
                out.append(Compared(name, delta, gap, cell, _kind(grid, policy, cell, gap)))
    return out


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
    lines: dict[tuple[str, str], list[Compared]] = {}
    for pair in compared(grid):
        if abs(pair.gap) > APART:
            lines.setdefault((pair.row, pair.kind), []).append(pair)
    body = tuple(
        (row, ", ".join(f"{signed(pair.gap)} at {pair.delta:g}" for pair in pairs), _words(kind, pairs))
        for (row, kind), pairs in lines.items()
    )
    title = f"Cells more than {APART:g} points from the paper's: difference in points at δ"
    return TextTable(title, ("Scheme", "difference", "reason"), body or (("none", "-", "-"),))


def _words(kind: str, pairs: Sequence[Compared]) -> str:
    if kind == LIMIT:
        lags = sorted(pair.cell.plan("lag.mean") or 0.0 for pair in pairs)
        shares = [100 * stability_limit(lag) for lag in reversed(lags)]
        return f"{kind}: lag {_range(lags, 1)}, stable where a session removes below {_range(shares, 0)} % of an error"
    if kind == RESONANCE:
        met = sorted(pair.cell.plan("chains.coverage_min") or 0.0 for pair in pairs)
        return f"{kind}: a chain meets {_range(met, 0)} clients"
    return kind


def _range(values: Sequence[float], digits: int) -> str:
    ends = dict.fromkeys(f"{value:.{digits}f}" for value in (values[0], values[-1]))
    return " to ".join(ends)


def counted(grid: Grid) -> str:
    """How many cells differ, and how many of them for a proven reason, as a sentence."""
    every = compared(grid)
    apart = [pair for pair in every if abs(pair.gap) > APART]
    proven = sum(pair.kind in PROVEN for pair in apart)
    return (
        f"{len(apart)} of {len(every)} cells are more than {APART:g} points from the paper's: {proven} of them for a "
        f"proven reason, {len(apart) - proven} open."
    )
