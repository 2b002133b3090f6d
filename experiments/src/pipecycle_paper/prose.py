"""What was run, how it differs from the paper's protocol and what came out, in sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pipecycle.report.tables import TextTable
from pipecycle.words import number
from pipecycle_paper import paper
from pipecycle_paper.claims import Claim
from pipecycle_paper.energy import least
from pipecycle_paper.grid import LEARNT, Grid
from pipecycle_paper.regimes import ABOUT, RULE, Candidate, choose, verdict
from pipecycle_paper.tables import TARGETS, signed, trials
from pipecycle_paper.verdicts import Finding

PROTOCOL: Mapping[str, tuple[Any, str]] = {
    "data.name": ("cifar10", "the data are {}, the paper's CIFAR-10"),
    "world.clients": (100, "{} clients, the paper has 100"),
    "world.session": (20, "a session lasts {} slots, the paper's 20"),
    "world.budget": (paper.BUDGET, "the budget is {} units, the paper's 500,000"),
    "train.lr": (0.05, "the learning rate is {}, the paper's 0.05"),
    "train.batch": (15, "batches of {}, the paper's have 15"),
}
"""What the paper fixes (Section VI-A), and what to say where the runs differ."""


def lead(grid: Grid) -> str:
    if not grid.filled:
        return "No run of the paper's grid is in these results."
    runs = sum(len(cell) for cells in (grid.cells, *grid.precisions.values()) for cell in cells.values())
    model = grid.world.get("train.model", "-")
    return (
        f"{number(runs)} runs on {grid.world.get('data.name', '-')} with the model {model}: {grid.filled} of the "
        f"{len(grid.places)} cells of the grid, {trials(grid)} each.{_effort(grid)} Our numbers stand beside the "
        "paper's, and every quantitative claim of the paper beside what our runs say about it."
    )


def _effort(grid: Grid) -> str:
    """What the training took, in all."""
    steps, seconds = (sum(float(piece.get(key) or 0) for piece in grid.pieces) for key in ("steps", "seconds"))
    if not seconds:
        return ""
    devices = " and ".join(dict.fromkeys(str(piece.get("device", "-")) for piece in grid.pieces))
    return (
        f" Trained in {seconds:,.0f} s on {devices}: {steps / 1e6:,.1f} million client-steps, "
        f"{number(round(steps / seconds))} per second."
    )


def differences(grid: Grid) -> list[str]:
    """What a reader must know before comparing."""
    out = []
    fewest, most = grid.trials
    if most and fewest < paper.TRIALS:
        out.append(f"{trials(grid)}, the paper has {paper.TRIALS} and gives no spread")
    for key, (usual, sentence) in PROTOCOL.items():
        if grid.world and grid.world.get(key) != usual:
            out.append(sentence.format(number(grid.world.get(key))))
    slots = str(grid.world.get("world.slots", ""))
    if grid.world and slots != "15000 / 30000":
        out.append(f"the horizon is {slots} slots (IID / non-IID), the paper's 15,000 / 30,000")
    if grid.world:
        precision = {"bf16": "bfloat16 on a GPU, weights in float32", "tf32": "TF32 on a GPU"}.get(
            str(grid.world.get("train.precision")), "float32"
        )
        out.append(
            f"the model is {grid.world.get('train.model')}, inputs are scaled as {_scale(grid)}, augmentation is "
            f"{grid.world.get('train.augment') or 'none'} (the paper does not give the widths of its layers, nor the "
            f"scaling, nor the augmentation); products are taken in {precision} (the paper does not say)"
        )
    out += [
        "runs end where the budget is spent, so that curves over slots end there too; the paper's go on to the horizon",
        "early stopping is not applied; two more tables apply it to the stored histories",
        "where the paper is silent about training and time (layer widths, scaling, augmentation, formation interval, "
        "epoch length) one choice was made for all cells, the one that fits its tables best; what was varied stands "
        "under the regime and under sensitivity",
        "the paper does not say how it adjusted FedSeq and FedBacys; ours are inferred from the pattern of its tables",
    ]
    if any(dict(key[1]).get("queue_threshold") == 2 for key in grid.cells):
        out.append("the limit on waiting hub models for non-IID data is 2 (the paper does not give it)")
    out += _budget(grid)
    runs = [run for cell in grid.cells.values() for run in cell]
    diverged, late = sum(run.diverged for run in runs), sum(run.fell_apart for run in runs)
    if diverged:
        who = f"{diverged} run{'s' * (diverged > 1)} diverged ({late or 'none'} after passing {LEARNT:g} %)"
        out.append(f"{who} and count{'s' * (diverged == 1)} with the accuracy of guessing one class")
    if grid.strangers:
        out.append(f"{grid.strangers} runs in the file are no cell of these tables, by their settings")
    if grid.left_out:
        out.append(f"{grid.left_out} runs in the file belong to other worlds and were left out")
    return out


def _scale(grid: Grid) -> str:
    return str(grid.world.get("data.scale") or "standard")


def _budget(grid: Grid) -> list[str]:
    """Columns of the tables in which no scheme can spend the budget."""
    budget = grid.world.get("world.budget")
    if budget is None:
        return []
    said = []
    for where in paper.DISTRIBUTIONS:
        never = []
        for delta in paper.DELTAS:
            cells = [grid.cell(where, policy, groups, delta) for policy, groups in grid.rows]
            spent = [run.energy[-1] for cell in cells if cell is not None for run in cell]
            if spent and max(spent) < budget:
                never.append(f"{delta:g}")
        if never:
            said.append(f"{paper.DISTRIBUTIONS[where]} δ = {', '.join(never)}")
    if not said:
        return []
    return [
        f"the budget is out of reach for {' and '.join(said)}: these columns are accuracies at the end of the horizon"
    ]


def outcome(grid: Grid, examined: Sequence[tuple[Claim, Finding, Finding | None]]) -> list[str]:
    """The most important figures, computed."""
    out = [f"Of {len(examined)} claims {tally([finding for _, finding, _ in examined])}."]
    own = sum(printed is not None and printed.verdict == "does not hold" for _, _, printed in examined)
    asked = sum(printed is not None for _, _, printed in examined)
    out.append(f"{own} of the {asked} claims that can be held against the paper's own tables do not agree with them.")
    out += _headline(grid)
    for where in paper.DISTRIBUTIONS:
        gaps = []
        for policy, groups, delta, printed in paper.cells(where):
            value = grid.value(where, policy, groups, delta)
            if value is not None:
                gaps.append((value.mean - printed, f"{paper.label(policy, groups)}, δ = {delta:g}"))
        if gaps:
            near = sum(abs(gap) <= 5 for gap, _ in gaps)
            high, low = max(gaps), min(gaps)
            name = "Table I (IID)" if where == "iid" else "Table II (non-IID)"
            middle = float(np.median([gap for gap, _ in gaps]))
            out.append(
                f"{name}: {near} of {len(gaps)} cells within 5 points of the paper's, median difference "
                f"{signed(middle)}; from {signed(low[0])} ({low[1]}) to {signed(high[0])} ({high[1]})."
            )
    return out


def _headline(grid: Grid) -> list[str]:
    """PipeCycle's energy against all baselines, and against all but the one that is ahead of it most often."""
    every = least(grid, paper.BASELINES)
    fewer = {left: least(grid, [name for name in paper.BASELINES if name != left]) for left in paper.BASELINES}
    known = {left: count for left, count in fewer.items() if count is not None}
    if every is None or len(known) < len(fewer):
        return []
    left = max(known, key=lambda name: known[name][0])
    targets = ", ".join(f"{target:g}" for target in TARGETS)
    text = (
        f"Energy to {targets} % (every δ, both distributions, everybody at the best G): PipeCycle needs less than "
        f"every baseline in {every[0]} of {every[1]} cases"
    )
    if known[left][0] > every[0]:
        text += f"; with {paper.NAMES[left]} left aside, in {known[left][0]} of {known[left][1]}"
    return [f"{text}."]


TABLES = (
    "Accuracy of the global model at the last slot within the budget, or at the end where the budget is not reached. "
    "Ours, for which the paper has no value: PipeCycle+, which adds every hub's update to the one server model with a "
    "step that stays stable at its lag, and FedSeq with the same step (lag-stable)."
)


def regime(grid: Grid, regimes: Sequence[Candidate]) -> str:
    """What the regime experiment says, and whether these runs follow it."""
    here = "/".join([str(grid.world.get("train.model")), _scale(grid), str(grid.world.get("train.augment") or "none")])
    ours = f"These runs: {here}." if grid.world else ""
    if not regimes:
        return f"{ours} The results of the experiment that chooses the regime are not beside these.".strip()
    taken = choose(regimes)
    agree = "" if taken is None or taken.name == here else " They do not follow the rule."
    return f"{ABOUT} {RULE} {verdict(regimes)} {ours}{agree}".strip()


def tally(findings: Sequence[Finding]) -> str:
    """`16 hold (7 of them within the error), 25 do not (9 within the error), 2 cannot be tested`."""
    words = []
    for kind, name in (("holds", "hold"), ("does not hold", "do not")):
        some = [finding for finding in findings if finding.verdict == kind]
        close = sum(finding.close for finding in some)
        words.append(f"{len(some)} {name}" + (f" ({close} of them within the error)" if close else ""))
    untested = sum(finding.verdict == "cannot be tested" for finding in findings)
    return ", ".join([*words, *([f"{untested} cannot be tested"] if untested else [])])


ERRORS = (
    "± is the standard deviation over trials. The error that verdicts speak of is twice the standard error of a "
    "mean, from the spread over trials or, if that is more, from what a single trial leaves open: the drawn test "
    "samples (1,000 of them are 1.5 points at 65 %) and how much the accuracy still moves between the last "
    "checkpoints. Where a claim rests on several comparisons their errors are widened together (Bonferroni). A claim "
    "holds if every comparison does; it is “within the error” if a comparison that decides could have come out "
    "otherwise by chance. That the best of several G owes something to chance is not in the error, nor, with a single "
    "trial, what another split and other weather would change. A dot · stands where nothing was run. Thresholds in "
    "brackets (“here: ...”) are ours, since the paper has words there."
)


def provenance(grid: Grid) -> TextTable:
    """Which commands and machines trained, and how fast."""
    body = []
    for piece in grid.pieces:
        names = ("pipecycle", "source", "python", "torch", "numpy")
        versions = ", ".join(f"{name} {piece[name]}" for name in names if name in piece)
        command, device = (str(piece.get(key, "-")) for key in ("command", "device"))
        body.append((command, device, *_pace([piece]), versions))
    if len(body) > 1:
        body.append(("all of them", "", *_pace(grid.pieces), ""))
    head = ("Command", "Device", "Runs", "Client-steps", "Training (s)", "Wall (s)", "Client-steps per s", "Versions")
    empty = (("not recorded", *("-",) * (len(head) - 1)),)
    return TextTable("How the results were made", head, tuple(body) or empty)


def _pace(pieces: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Runs, steps, seconds of training and in all, and steps per second of some pieces; - for what is not known."""

    def total(key: str) -> float | None:
        known = [float(piece[key]) for piece in pieces if piece.get(key) is not None]
        return sum(known) if known else None

    runs, steps, seconds, wall = (total(key) for key in ("runs", "steps", "seconds", "wall_seconds"))
    rate = round((steps or 0) / seconds) if seconds else None
    times = (f"{seconds or 0:,.0f}", "-" if wall is None else f"{wall:,.0f}")
    return number(runs), number(steps), *times, number(rate)
