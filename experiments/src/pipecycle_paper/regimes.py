"""Candidates for the training regime: what the paper does not say, tried out on its own cells."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import frozen

from pipecycle.files import write
from pipecycle.report.markup import markdown
from pipecycle.report.tables import TextTable
from pipecycle.runs.config import Config
from pipecycle.runs.parquet import Results, code, load
from pipecycle.words import number
from pipecycle_paper import paper, selection
from pipecycle_paper.grid import Cell, cells_of, key_of_config
from pipecycle_paper.tables import MISSING, signed

if TYPE_CHECKING:
    from rich.console import Console

NEAR = 0.5
"""Points of r.m.s. difference within which the cheaper candidate is taken."""
REGIME = ("train.model", "data.scale", "train.augment")
"""The columns in which candidates differ."""
RULE = (
    "The candidate with the smallest root mean square difference to the paper is taken for everything; among those "
    "within half a point of it, the one that trains the most client-steps per second. Nothing is tuned to a cell or a "
    "scheduler."
)


@frozen(eq=False, slots=False)
class Candidate:
    """One candidate of the regime, and how far its cells are from the paper's."""

    name: str
    regime: Mapping[str, Any]
    cells: Mapping[tuple[str, int | None, float], Cell]
    wanted: int
    """Cells that it should have."""
    pace: float | None = None
    """Client-steps per second, where a command trained this candidate alone."""

    @cached_property
    def gaps(self) -> dict[tuple[str, int | None, float], float]:
        """Ours less the paper's, in points, by policy, groups and charging probability."""
        both = {key: (cell.accuracy().mean, paper.value("iid", *key)) for key, cell in self.cells.items()}
        return {key: ours - printed for key, (ours, printed) in both.items() if printed is not None}

    @property
    def rms(self) -> float:
        return rms(list(self.gaps.values()))

    @property
    def complete(self) -> bool:
        return len(self.gaps) == self.wanted


def rms(gaps: Sequence[float]) -> float:
    return math.sqrt(float(np.mean(np.square(gaps)))) if len(gaps) else math.nan


def candidates(results: Results) -> list[Candidate]:
    """The candidates of regimes.toml as far as they were run, in its order."""
    sweep = selection.read(selection.experiment(selection.REGIMES), "1")
    out = []
    for name, names in sweep.parts.items():
        configs = [sweep.runs[run] for run in names]
        regime = {key: selection.columns(configs[0])[key] for key in REGIME}
        known = cells_of(results, regime)
        cells = {_place(config): known[key_of_config(config)] for config in configs if key_of_config(config) in known}
        if cells:
            out.append(Candidate(name, regime, cells, len(configs), _pace(results, name)))
    return out


def choose(candidates: Sequence[Candidate]) -> Candidate | None:
    """The candidate that the rule takes, among those whose cells were all run."""
    whole = [candidate for candidate in candidates if candidate.complete]
    if not whole:
        return None
    least = min(candidate.rms for candidate in whole)
    near = [candidate for candidate in whole if candidate.rms <= least + NEAR]
    if all(candidate.pace is not None for candidate in near):
        return max(near, key=lambda candidate: (candidate.pace or 0.0, -candidate.rms))
    return min(near, key=lambda candidate: candidate.rms)


def summary(candidates: Sequence[Candidate]) -> TextTable:
    """A line per candidate, the closest first."""
    body = []
    taken = choose(candidates)
    for candidate in sorted(candidates, key=lambda candidate: candidate.rms):
        worst = max(candidate.gaps, key=lambda key: abs(candidate.gaps[key]))
        diverged = sum(run.diverged for cell in candidate.cells.values() for run in cell)
        body.append(
            (
                candidate.name + (" (taken)" if candidate is taken else ""),
                f"{candidate.rms:.1f}",
                signed(float(np.mean(list(candidate.gaps.values())))),
                f"{signed(candidate.gaps[worst])} ({_cell(worst)})",
                f"{len(candidate.gaps)} of {candidate.wanted}",
                str(diverged),
                "-" if candidate.pace is None else number(round(candidate.pace)),
            )
        )
    head = ("Candidate", "r.m.s.", "mean", "largest", "cells", "diverged", "client-steps per s")
    return TextTable("Candidates for the regime: difference to the paper in points, IID", head, tuple(body))


def accuracies(candidates: Sequence[Candidate]) -> TextTable:
    """All cells of all candidates beside the paper's."""
    cells = dict.fromkeys(key for candidate in candidates for key in candidate.cells)
    body = []
    for key in cells:
        printed = paper.value("iid", *key)
        line = [_cell(key), "-" if printed is None else f"{printed:.1f}"]
        line += [
            f"{candidate.cells[key].accuracy().mean:.1f}" if key in candidate.cells else MISSING
            for candidate in candidates
        ]
        body.append(tuple(line))
    head = ("Cell", "paper", *(candidate.name for candidate in candidates))
    return TextTable("Accuracy (%) at the budget, by candidate", head, tuple(body))


def verdict(candidates: Sequence[Candidate]) -> str:
    """Which candidate is taken, in a sentence."""
    taken = choose(candidates)
    if taken is None:
        return "No candidate is complete yet: none is taken."
    best = min((candidate for candidate in candidates if candidate.complete), key=lambda candidate: candidate.rms)
    said = f"Taken: {taken.name}, {taken.rms:.1f} points from the paper (root mean square over {taken.wanted} cells)"
    if taken is best:
        return f"{said}."
    return f"{said}; {best.name} has {best.rms:.1f}, less than {NEAR:g} points fewer, and takes longer to compute."


def write_regimes(out: Path, console: Console) -> list[Path]:
    """`regimes.md` beside `results.parquet` in a folder; its first table is printed."""
    results = load(out / "results.parquet")
    known = candidates(results)
    tables = [summary(known), accuracies(known)]
    path = out / "regimes.md"
    text = ["# Which training regime was the paper's", ABOUT, RULE, verdict(known), code(results.sources)]
    write(path, "\n\n".join([*text, markdown(tables)]))
    console.print(markdown(tables[:1]), soft_wrap=True)
    console.print(verdict(known), soft_wrap=True)
    return [path]


ABOUT = (
    "The paper gives the learning rate, the batch and the kinds of layers, but neither the widths of the layers nor "
    "how images were scaled and augmented. Each candidate below is a model, a scaling of inputs and an augmentation "
    "(`experiments/regimes.toml`), run on the IID cells in which no scheme of the paper collapses."
)


def _place(config: Config) -> tuple[str, int | None, float]:
    return config.policy, config.settings.get("groups"), float(selection.columns(config)["delta"])  # type: ignore[arg-type]


def _cell(key: tuple[str, int | None, float]) -> str:
    return f"{paper.label(key[0], key[1])}, δ = {key[2]:g}"


def _pace(results: Results, name: str) -> float | None:
    mine = [piece for piece in results.pieces if piece.get("parts") == [name]]
    seconds = sum(float(piece["seconds"]) for piece in mine)
    return sum(float(piece["steps"]) for piece in mine) / seconds if seconds else None
