"""`pipecycle reproduce`."""

from __future__ import annotations

import json
import platform
import shlex
import sys
import time
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import attrs
import typer
from rich.console import Console

from pipecycle import __version__
from pipecycle.commands.shared import Device, Json, SaveEvery, Workers, check_execution
from pipecycle.commands.sweeping import carry_out, foresee, how_long, tell_failed
from pipecycle.files import make_folder, writable_folder
from pipecycle.runs import parquet
from pipecycle.runs.config import Config
from pipecycle.runs.folders import alone, unlocked
from pipecycle.runs.parquet import Results
from pipecycle.runs.run import RunFolder, source
from pipecycle.runs.sweep import Sweep, check_runs
from pipecycle.runs.workers import Tally
from pipecycle.screen import progress, screen
from pipecycle.words import number, some
from pipecycle_paper import selection


def reproduce(
    trials: Annotated[
        str | None, typer.Option(metavar="T", help="How many trials, or which: 3, or 3-5. \\[default: the file's, 1]")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUES", help="Run only these: policy=, groups=, delta=, data=iid|non-iid or part=."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Where runs and results go, and come from. \\[default: runs/paper]")
    ] = None,
    piece: Annotated[
        str | None, typer.Option(metavar="I/N", help="The I-th of N pieces of about the same length.")
    ] = None,
    merge: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="Take in results of another folder or machine.")
    ] = None,
    report: Annotated[
        bool, typer.Option("--report", help="Write the report: tables, figures and claims beside the paper's.")
    ] = False,
    sensitivity: Annotated[
        bool, typer.Option("--sensitivity", help="Instead of the grid: vary settings that the paper leaves open.")
    ] = False,
    regimes: Annotated[
        bool, typer.Option("--regimes", help="Instead of the grid: compare candidates for the training regime.")
    ] = False,
    file: Annotated[Path | None, typer.Option(help="Another sweep file instead of the paper's.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print the number of runs and the estimated time.")
    ] = False,
    device: Device = "auto",
    workers: Workers = None,
    save_every: SaveEvery = 300.0,
    as_json: Json = False,
) -> None:
    """The paper's evaluation on CIFAR-10: two tables, three figures, 15 configurations and five of ours.

    One trial is 160 runs and about 65 million client-steps: minutes on a large GPU, days on a laptop. Runs that are
    finished, here or in merged results, are skipped; an interrupted command resumes. Pieces can be run on different
    days and machines and merged: the outcome is the same.

    Examples:

      pipecycle reproduce --dry-run

      pipecycle reproduce --only policy=pipecycle,fedavg --only delta=0.5

      pipecycle reproduce --trials 3 --piece 2/4 --out piece-2

      pipecycle reproduce --merge piece-1/results.parquet --merge piece-2/results.parquet

      pipecycle reproduce --report --out experiments/results/paper"""
    console = screen(stderr=as_json)
    check_execution(device, save_every, workers)
    out = out or Path("runs", "regimes" if regimes else "paper")
    if report:
        made = _report(out, console, regimes)
        if as_json:
            print(json.dumps({"files": [str(path) for path in made]}))
        else:
            more = f" and {len(made) - 1} more files" if len(made) > 1 else ""
            console.print(f"{made[0]}{more}", soft_wrap=True)
        return
    if piece is not None:
        selection.share(piece)
    writable_folder(out)
    unlocked(out)
    path = out / "results.parquet"
    known = _whole(path, console) if path.exists() else parquet.merge([])
    if merge:
        known = _added(path, [_whole(other, console) for other in merge])
        _tell(console, as_json, known, path, {})
        return
    name = selection.REGIMES if regimes else selection.SENSITIVITY if sensitivity else selection.PAPER
    sweep = selection.read(file or selection.experiment(name), trials, only or [])
    runs = dict(sweep.runs) if piece is None else selection.piece(sweep.runs, piece)
    check_runs(Sweep(runs))
    every = Sweep(runs).folders(out / "runs")
    folders = [folder for folder in every if folder.config.identity() not in known.identities]
    _announce(console, runs, folders)
    if dry_run:
        expected = foresee(folders, device=device, workers=workers)
        if as_json:
            print(json.dumps(attrs.asdict(expected) | {"runs": len(runs)}))
        else:
            console.print(f"{number(expected.steps)} client-steps to go{how_long(expected, folders)}")
        return
    for folder in every:  # another process may have saved the results of a run whose own was killed
        folder.tidy()
    began, tally = time.monotonic(), Tally()
    open_before = sum(not folder.finished for folder in folders)
    parts = [part for part, names in sweep.parts.items() if any(name in runs for name in names)]
    try:
        failed = carry_out(folders, console, device=device, workers=workers, save_every=save_every, tally=tally)
    finally:  # also when it was stopped: what is finished is kept
        wall = time.monotonic() - began
        pieces = [_provenance(tally, wall, parts)] if tally.paces and open_before else []
        new = Results(parquet.collect(folders), pieces)
        if new.runs or new.pieces:
            known = _added(path, [new])
    _tell(console, as_json, known, path, failed)
    if failed:
        raise typer.Exit(1)


def _whole(path: Path, console: Console) -> Results:
    """Results that were saved; runs that are not all there are left out, and said."""
    known, cut = parquet.load(path).whole()
    if cut:
        console.print(f"{path}: {some(cut, 1)} cut short, so not used.", soft_wrap=True)
    return known


def _added(path: Path, parts: list[Results]) -> Results:
    """All results, with those that another command has saved meanwhile."""
    with alone(make_folder(path.parent)):
        saved = [parquet.load(path).whole()[0]] if path.exists() else []
        known = parquet.merge([*saved, *parts])
        known.save(path)
    return known


def _report(out: Path, console: Console, regimes: bool) -> list[Path]:
    if regimes:
        from pipecycle_paper.regimes import write_regimes

        return write_regimes(out, console)
    with progress() as bar:
        bar.add_task("writing the report: tables, claims and figures", total=None)
        from pipecycle_paper.report import write_report

        return write_report(out)


def _announce(console: Console, runs: Mapping[str, Config], folders: list[RunFolder]) -> None:
    left = [folder for folder in folders if not folder.finished]
    steps = sum(selection.expected_steps(folder.config) for folder in left)
    console.print(
        f"{number(len(runs))} runs, {number(len(runs) - len(left))} of them finished; about "
        f"{number(round(steps / 1e6, 1))} million client-steps to go."
    )


def _tell(console: Console, as_json: bool, known: Results, path: Path, failed: Mapping[str, str]) -> None:
    if as_json:
        facts = {"runs": known.runs, "pieces": known.pieces, "sources": known.sources}
        print(json.dumps(facts | {"failed": dict(failed), "results": str(path)}))
        return
    for piece in known.pieces:
        rate = piece["steps"] / max(piece["seconds"], 1e-9)
        console.print(
            f"{number(piece['runs'])} runs, {number(piece['steps'])} client-steps in {piece['seconds']:.1f} s of "
            f"training on {piece['device']}: {number(round(rate))} per second."
        )
    made = f" {parquet.code(known.sources)}" if known.runs else ""
    console.print(f"{path}: {number(known.runs)} runs.{made}", soft_wrap=True)
    tell_failed(console, failed)


def _provenance(tally: Tally, wall: float, parts: list[str]) -> dict[str, Any]:
    """Which command, machine and code trained, and how fast."""
    return {
        "command": _command(sys.argv[1:]),
        "device": tally.paces[0].device,
        "runs": sum(pace.runs for pace in tally.paces),
        "steps": sum(pace.steps for pace in tally.paces),
        "seconds": round(max(pace.seconds for pace in tally.paces), 1),
        "wall_seconds": round(wall, 1),
        "parts": parts,
        "pipecycle": __version__,
        "source": source(),
        "python": platform.python_version(),
        "torch": version("torch"),
        "numpy": version("numpy"),
    }


def _command(arguments: list[str]) -> str:
    """The command without what says where and not what."""
    kept, skip = ["pipecycle"], False
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        if skip:
            skip = False
        elif name in ("--out", "--save-every", "--workers"):
            skip = not equals
        elif argument not in ("--json", "--debug"):
            kept.append(argument)
    return shlex.join(kept)
