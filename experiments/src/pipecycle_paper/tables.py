"""The paper's two tables with ours beside them, and the tables that the paper does not have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from pipecycle.report.tables import TextTable, counted
from pipecycle.results import Difference, Value, gaps, paired
from pipecycle.runs.config import Config
from pipecycle.runs.sweep import flat
from pipecycle.theory import chain_coverage
from pipecycle.words import plural
from pipecycle_paper import paper, selection
from pipecycle_paper.grid import LEARNT, Cell, Grid, Kind, key_of_config

MISSING = "·"
"""Stands where nothing was run."""
TARGETS = (50.0, 55.0, 60.0, 65.0)
CAPTIONS = {"iid": "IID", "non-iid": "non-IID, Dirichlet(0.1)"}
NUMERALS = {"iid": "Table I", "non-iid": "Table II"}
Tables = dict[str, TextTable]
"""By the name of their files."""


def signed(points: float) -> str:
    """A difference with its sign, and no minus before zero."""
    return f"{round(points, 1) + 0.0:+.1f}"


def tables(grid: Grid) -> Tables:
    """All tables but that of the claims."""
    out: Tables = {}
    for where in paper.DISTRIBUTIONS:
        short = where.replace("-", "")
        out[f"accuracy_{short}"] = _against_paper(grid, where, "budget", "at the budget")
        out[f"best_{short}"] = _against_paper(grid, where, "best", "best checkpoint within the budget")
        for kind, how in (("literal", "as printed"), ("late", "armed late")):
            out[f"stopped_{kind}_{short}"] = _against_paper(grid, where, kind, f"with early stopping, {how}")  # type: ignore[arg-type]
        out[f"energy_to_target_{short}"] = _to_target(grid, where)
        out[f"coverage_{short}"] = _coverage(grid, where)
    if any(run.fell_apart for cell in grid.cells.values() for run in cell):
        out["fell_apart"] = fell_apart(grid)
    out["isolated"] = isolated(grid)
    if grid.precisions:
        out["precision"] = precision(grid)
    for name in grid.parts:
        if name != "isolated clients":
            slug = "".join(letter if letter.isalnum() else "_" for letter in name.lower().replace("'", ""))
            out[f"sensitivity_{slug}"] = sensitivity(grid, name)
    return out


def trials(grid: Grid) -> str:
    """How many trials stand behind a number."""
    fewest, most = grid.trials
    if not most:
        return "no trial yet"
    return plural(most, "trial") if fewest == most else f"{fewest} to {most} trials"


def _spread(grid: Grid) -> str:
    return f"mean ± standard deviation over {trials(grid)}" if grid.trials[1] > 1 else trials(grid)


def rows(grid: Grid, where: str, text: Callable[[Cell, float], Sequence[str]], width: int) -> Iterator[tuple[str, ...]]:
    """A row of text per configuration, `width` columns for each charging probability."""
    for policy, groups in grid.rows:
        line = [paper.label(policy, groups)]
        for delta in paper.DELTAS:
            cell = grid.cell(where, policy, groups, delta)
            line += (MISSING,) * width if cell is None else text(cell, delta)
        yield tuple(line)


def _count(grid: Grid, value: Value) -> str:
    """Says the trials of a cell that has fewer than the others."""
    return "" if value.trials == grid.trials[1] else f" (n = {value.trials})"


def _against_paper(grid: Grid, where: str, kind: Kind, how: str) -> TextTable:
    head = ["Scheduler"]
    for delta in paper.DELTAS:
        head += [f"δ = {delta:g}", "paper", "diff."]
    stops = kind in ("literal", "late")
    body = []
    for policy, groups in grid.rows:
        line, stopped = [paper.label(policy, groups)], []
        for delta in paper.DELTAS:
            cell, printed = grid.cell(where, policy, groups, delta), paper.value(where, policy, groups, delta)
            theirs = "-" if printed is None else f"{printed:.1f}"
            if cell is None:
                line += [MISSING, theirs, MISSING]
                continue
            value = cell.accuracy(kind)
            line += [value.text() + _count(grid, value) + " †" * any(run.diverged for run in cell), theirs]
            line.append("-" if printed is None else signed(value.mean - printed))
            if stops:
                stopped += [run.stop(kind) for run in cell]  # type: ignore[arg-type]
        if stops:
            line.append(f"{sum(row is not None for row in stopped)} of {len(stopped)}")
        body.append(tuple(line))
    title = f"{NUMERALS[where]}, {CAPTIONS[where]}: accuracy (%), {how}; {_spread(grid)}"
    title += "; † diverged" if any("†" in cell for line in body for cell in line) else ""
    return TextTable(title, (*head, "stopped") if stops else tuple(head), tuple(body))


def _to_target(grid: Grid, where: str) -> TextTable:
    def text(cell: Cell, _: float) -> list[str]:
        out = []
        for target in TARGETS:
            mean, count = float(np.mean([trial.cost(target) for trial in cell])), cell.reached(target)
            text = f"{mean / 1000:,.{0 if mean >= 10_000 else 1}f}"
            out.append(counted(text, count, len(cell)) if count else "never")
        return out

    title = f"Energy to reach an accuracy, {CAPTIONS[where]}: thousand units, mean over {trials(grid)}"
    return TextTable(title, ("Scheduler", *target_heads()), tuple(rows(grid, where, text, len(TARGETS))))


def target_heads() -> list[str]:
    """A column for each target, at each charging probability."""
    rest = [f"{target:g} %" for target in TARGETS[1:]]
    return [head for delta in paper.DELTAS for head in (f"δ = {delta:g}: {TARGETS[0]:g} %", *rest)]


def _coverage(grid: Grid, where: str) -> TextTable:
    def text(cell: Cell, _: float) -> tuple[str, ...]:
        fewest, lag, depth = (cell.plan(name) for name in ("chains.coverage_min", "lag.mean", "chains.depth_max"))
        return (
            "-" if fewest is None else f"{fewest:.0f}",
            "-" if lag is None else f"{lag:.1f}",
            "-" if depth is None else f"{depth:,.0f}",
            f"{cell.accuracy().mean:.1f}",
        )

    clients, session = grid.world.get("world.clients"), grid.world.get("world.session")
    body = []
    for (policy, groups), line in zip(grid.rows, rows(grid, where, text, 4), strict=True):
        rule = None
        if policy == "pipecycle" and groups is not None and clients and session:
            rule = chain_coverage(int(clients), groups, int(session)) or int(clients)
        body.append((line[0], "-" if rule is None else str(rule), *line[1:]))
    head = ["Scheduler", "coverage, by the rule"]
    for delta in paper.DELTAS:
        head += [f"δ = {delta:g}: coverage", "lag", "depth", "accuracy"]
    what = "fewest clients that a chain has met, mean lag of updates, longest chain, accuracy (%)"
    title = f"Chains, {CAPTIONS[where]}: {what}"
    return TextTable(title, tuple(head), tuple(body))


def fell_apart(grid: Grid) -> TextTable:
    """Runs of the grid that learnt and then diverged: what they were before."""
    body = []
    for (where, policy, groups, delta), key in grid.places.items():
        for run in grid.cells.get(key, ()):
            if not run.fell_apart:
                continue
            end, stop = run.at_budget, run.stop("late")
            before = int(np.flatnonzero(run.slot < run.slot[end])[-1])
            body.append(
                (
                    f"{paper.label(policy, groups)}, {CAPTIONS[where]}, δ = {delta:g}, trial {run.number}",
                    f"{run.best[end]:.1f}",
                    f"{run.accuracy[before]:.1f}",
                    f"{run.slot[before]:,.0f}",
                    f"{run.slot[end]:,.0f}",
                    f"{run.energy[before] / 1000:,.0f}",
                    "never" if stop is None else f"{run.accuracy[stop]:.1f} at {run.slot[stop]:,.0f}",
                )
            )
    figures = ("best (%)", "last (%)", "at slot", "no model at", "thousand units by then", "early stopping, late (%)")
    head = ("Run", *figures)
    return TextTable(f"Runs that passed {LEARNT:g} % and diverged later", head, tuple(body))


def isolated(grid: Grid) -> TextTable:
    """Clients that never talk to anybody."""
    body = []
    for key, cell in grid.cells.items():
        value = cell.clients
        if key[0] == "isolated" and value is not None:
            harvest, alpha = key[2], key[3]
            where = "IID" if alpha is None else f"Dirichlet({alpha:g})"
            sessions, energy = cell.plan("sessions"), cell.plan("energy.spent")
            body.append(
                (
                    f"{where}, δ = {harvest.split(':')[-1]}",
                    value.text(),
                    "about 10",
                    signed(value.mean - paper.CHANCE),
                    "-" if sessions is None or not grid.world else f"{sessions / grid.world['world.clients']:,.0f}",
                    "-" if energy is None else f"{energy:,.0f}",
                    str(value.trials),
                )
            )
    head = ("Data", "mean over clients (%)", "paper", "diff.", "sessions per client", "energy (units)", "trials")
    empty = (("not run", *(MISSING,) * (len(head) - 1)),)
    return TextTable("Isolated clients: each trains on its own samples only", head, tuple(sorted(body)) or empty)


def precision(grid: Grid) -> TextTable:
    """Cells of the tables again, with other products; differences trial by trial."""
    names = sorted(grid.precisions)
    body: list[tuple[str, ...]] = []
    all_gaps: dict[str, list[float]] = {name: [] for name in names}
    for (where, policy, groups, delta), key in grid.places.items():
        cell = grid.cells.get(key)
        if cell is None or not any(key in grid.precisions[name] for name in names):
            continue
        line = [f"{paper.label(policy, groups)}, {paper.column(where, delta)}", _counted(cell)]
        for name in names:
            other = grid.precisions[name].get(key)
            some = [] if other is None else gaps(cell.by_trial(), other.by_trial())
            all_gaps[name] += some
            line += ["-", "-"] if other is None or not some else [_counted(other), signed(float(np.mean(some)))]
        body.append(tuple(line))
    last = ["mean difference, and its standard error", ""]
    for name in names:
        whole = Difference.of(all_gaps[name]) if all_gaps[name] else None
        tail = "" if whole is None or whole.error is None else f" ± {whole.error:.1f}"
        last += ["", "-" if whole is None else signed(whole.mean) + tail]
    ours = str(grid.world.get("train.precision"))
    head = ("Cell", ours, *(word for name in names for word in (name, f"{ours} - {name}")))
    return TextTable("What the precision of products does: accuracy (%) at the budget", head, (*body, tuple(last)))


def sensitivity(grid: Grid, name: str) -> TextTable:
    """A part of the sensitivity study: what was varied in rows, the worlds in columns, the difference to the cell of
    the paper's grid (same policy, groups, world) in brackets."""
    configs = grid.parts[name]
    fields = _varied(configs)
    worlds = sorted({_world(config) for config in configs})
    rows: dict[tuple[str, ...], dict[Any, str]] = {}
    for config in configs:
        line = rows.setdefault(tuple(_said(config, key) for key in fields), {})
        line[_world(config)] = _compared(grid, config, configs)
    own = {key_of_config(config) for config in configs}
    for config in configs:  # the cells that they are compared with, where these are not among them
        key = grid.places.get(_place(config))
        if key is not None and key not in own:
            known = ("policy", "policy.groups")
            words = (_said(config, name) if name in known else "as in the tables" for name in fields)
            rows.setdefault(tuple(words), {})[_world(config)] = _reference(grid, config, configs)
    names = (key.split(".")[-1].replace("_", " ").replace("groups", "G") for key in fields)
    head = (*names, *(paper.column(where, delta) for where, delta in worlds))
    body = tuple((*words, *(line.get(world, "-") for world in worlds)) for words, line in rows.items())
    policies = "" if "policy" in fields else f" ({paper.NAMES[configs[0].policy]})"
    title = f"Sensitivity, {name}{policies}: accuracy (%), difference to the cell of the tables in brackets"
    return TextTable(title, head, body)


def _compared(grid: Grid, config: Config, part: Sequence[Config]) -> str:
    key = key_of_config(config)
    if grid.places.get(_place(config)) == key:
        return _reference(grid, config, part)
    cell, reference = grid.cells.get(key), grid.cell(*_place(config))
    if cell is None:
        return MISSING
    gap = None if reference is None else paired(cell.by_trial(), reference.by_trial())
    return _counted(cell) + ("" if gap is None else f" [{signed(gap.mean)}]")


def _reference(grid: Grid, config: Config, part: Sequence[Config]) -> str:
    """The cell that a variant is compared with, on their trials; all of its own beside, if it has more."""
    whole = grid.cell(*_place(config))
    if whole is None:
        return MISSING
    keys = {key_of_config(other) for other in part if _place(other) == _place(config)}
    cells = [grid.cells[key] for key in keys - {grid.places[_place(config)]} if key in grid.cells]
    shared = whole.among({number for cell in cells for number in cell.trials})
    if not len(shared) or len(shared) == len(whole):
        return f"{_counted(whole)} [the cell]"
    return f"{_counted(shared)} [the cell; {_counted(whole)}]"


def _counted(cell: Cell) -> str:
    value = cell.accuracy()
    return value.text() + ("" if value.trials == 1 else f" (n = {value.trials})")


def _place(config: Config) -> tuple[str, str, int | None, float]:
    """The cell of the tables that a variant is compared with."""
    where, delta = _world(config)
    return where, config.policy, config.settings.get("groups"), delta


def _world(config: Config) -> tuple[str, float]:
    where, _, _, delta = selection.place(config)
    return where, delta


def _varied(configs: Sequence[Config]) -> list[str]:
    """The settings in which a part's runs differ in one world; `served` also where all differ from the tables."""
    facts = [flat(config) for config in configs]
    out = []
    for key in facts[0]:
        if key.startswith(("policy", "train.", "look.")) and key != "look.clients_every":
            worlds: dict[Any, set[Any]] = {}
            for config, fact in zip(configs, facts, strict=True):
                worlds.setdefault(_world(config), set()).add(fact.get(key))
            if any(len(values) > 1 for values in worlds.values()) or (key == "look.served" and facts[0][key]):
                out.append(key)
    return out


def _said(config: Config, key: str) -> str:
    return paper.NAMES[config.policy] if key == "policy" else _word(flat(config).get(key))


def _word(value: Any) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
