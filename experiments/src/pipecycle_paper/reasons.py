"""Where our figures differ from the paper's, and why, as far as that is known."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from attrs import frozen

from pipecycle.policies.registry import build
from pipecycle.report.tables import TextTable
from pipecycle.schedule.plan import plan
from pipecycle.theory import stable_share
from pipecycle_paper import paper
from pipecycle_paper.grid import Cell, Grid
from pipecycle_paper.paper import DISTRIBUTIONS
from pipecycle_paper.tables import signed

APART = 5.0
"""Points from which on a cell differs."""
OPEN, HIGHER, LIMIT, RESONANCE = "open", "open: ours is higher", "stability limit", "chain resonance"
PROVEN = (LIMIT, RESONANCE)
SLOTS = 5_000
"""So long are the plans that are asked what they bear: a stale step shows long before the paper's horizons."""
ABOUT = (
    f"Cells more than {APART:g} points from the paper's. Two reasons are proven. The stability limit, for quadratic "
    "losses: with the lags, steps and memories of its own plan, a server that adds stale updates is unstable in every "
    "direction in which a session removes more than a certain part of the error, and stiff directions lose nearly all "
    "of it (docs/stability.md, which also shows how accuracy falls at the limit). Chain resonance: with plentiful "
    "energy each chain of PipeCycle meets the same few clients for ever. A reason is given only where ours is the "
    "lower figure, as it predicts. It says why ours is low, not why the paper's is not as low. Everything else is open."
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
    borne: float
    """The part of an error that a session may remove for the plan to be stable; 1 if all of it, or if nobody asked."""


def compared(grid: Grid) -> list[Compared]:
    """Every cell of the paper's that was run."""
    out = []
    for where, data in DISTRIBUTIONS.items():
        for policy, groups, delta, printed in paper.cells(where):
            cell = grid.cell(where, policy, groups, delta)
            if cell is not None:
                gap = cell.accuracy().mean - printed
                name = f"{paper.label(policy, groups)}, {data}"
                borne = _borne(grid, policy, groups, delta) if gap < -APART else 1.0
                out.append(Compared(name, delta, gap, cell, _kind(grid, policy, cell, gap, borne), borne))
    return out


def _kind(grid: Grid, policy: str, cell: Cell, gap: float, borne: float) -> str:
    if gap > 0:
        return HIGHER
    if borne < 1:
        return LIMIT
    coverage = cell.plan("chains.coverage_min")
    if policy == "pipecycle" and coverage is not None and coverage < 0.9 * float(grid.world["world.clients"]):
        return RESONANCE
    return OPEN


def _borne(grid: Grid, policy: str, groups: int | None, delta: float) -> float:
    clients, session = int(grid.world["world.clients"]), int(grid.world.get("world.session") or 20)
    return _share(policy, groups, delta, clients, session)


@cache
def _share(policy: str, groups: int | None, delta: float, clients: int, session: int) -> float:
    settings = {} if groups is None else {"groups": groups}
    schedule = plan(build(policy, settings), delta, clients, SLOTS, session=session)
    return stable_share(schedule) or 1.0


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
        shares = sorted(100 * pair.borne for pair in pairs)
        return f"{kind}: stable where a session removes at most {_range(shares, 0)} % of an error"
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
