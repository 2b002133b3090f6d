"""`pipecycle sweep` and `pipecycle config`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import attrs
import typer
from rich.console import Console

from pipecycle.commands.fields import among
from pipecycle.commands.shared import (
    ConfigFile,
    Device,
    Fresh,
    Json,
    PolicyName,
    SaveEvery,
    Settings,
    Workers,
    check_execution,
    configured,
    settings,
    stopped,
)
from pipecycle.data.catalogue import CATALOGUE, Entry
from pipecycle.errors import InputError, shown
from pipecycle.files import writable_folder, write
from pipecycle.policies.registry import policy_class
from pipecycle.policies.settings import allowed, described
from pipecycle.runs.cluster import execute_on_ray
from pipecycle.runs.config import BY_THE_MODEL, SECTIONS, Config, toml
from pipecycle.runs.estimate import Estimate, estimate
from pipecycle.runs.folders import clear
from pipecycle.runs.parquet import Results, collect
from pipecycle.runs.run import RunFolder
from pipecycle.runs.sweep import check_runs, read_sweep
from pipecycle.runs.workers import Tally, execute
from pipecycle.screen import lead, progress, screen
from pipecycle.stopping import Interrupted
from pipecycle.words import number, plural, some


def sweep(
    file: Annotated[Path, typer.Argument(help="A TOML file with \\[base], \\[matrix], trials and \\[\\[exclude]].")],
    out: Annotated[Path | None, typer.Option(help="Where the runs and results go. \\[default: runs/FILE]")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say how many runs and steps, and how long it will take.")
    ] = False,
    device: Device = "auto",
    workers: Workers = None,
    on: Annotated[
        str,
        typer.Option(help="local, or ray to hand the runs to a Ray cluster.", autocompletion=among(("local", "ray"))),
    ] = "local",
    address: Annotated[str | None, typer.Option(help="The Ray cluster's address. \\[default: start one here]")] = None,
    save_every: SaveEvery = 60.0,
    fresh: Fresh = False,
    as_json: Json = False,
) -> None:
    """Run every combination of the settings in a file; finished runs are skipped, a stopped sweep resumes.

    A run whose code or data (your modules, .npz and .csv files) has changed is trained again. All evaluations end up
    in one tidy file, results.parquet (and results.csv). A file such as

      trials = 3

      \\[base.world]
      clients = 40

      \\[matrix]
      policy = ["pipecycle", "fedavg(epoch=60)"]
      groups = \\[2, 5]
      alpha = \\[0.1, "iid"]

    is 3 x 2 x (2 + 1) runs: fedavg has no groups."""
    if on not in ("local", "ray"):
        raise InputError(f"--on {shown(on)}: needs local or ray")
    check_execution(device, save_every, workers)
    plan = read_sweep(file)
    check_runs(plan)
    home = out or Path("runs") / file.stem
    writable_folder(home)
    console = screen(stderr=as_json)
    if fresh and dry_run:
        raise InputError("--fresh and --dry-run: give one of them, not both")
    if fresh:
        clear_all([home / name for name in plan.runs], console)
    folders = plan.folders(home)
    if dry_run:
        expected = foresee(folders, device=device, workers=workers)
        if as_json:
            print(json.dumps(attrs.asdict(expected)))
        else:
            finished = f"{number(expected.runs)} runs, {number(expected.finished)} of them finished"
            steps = f"{number(expected.steps)} client-steps to go{how_long(expected, folders)}"
            console.print(f"{finished}; {steps}")
        return
    failed = carry_out(
        folders, console, device=device, workers=workers, ray=on == "ray", address=address, save_every=save_every
    )
    rows = save_results(folders, home)
    done = sum(folder.finished for folder in folders)
    if as_json:
        print(json.dumps({"runs": len(folders), "finished": done, "failed": failed, "rows": rows, "folder": str(home)}))
    else:
        console.print(f"{number(done)} of {number(len(folders))} runs finished.")
        console.print(f"In {home}: {number(rows)} evaluations in results.parquet and results.csv.")
        if done:
            console.print(f"`pipecycle tables {home}` and `pipecycle report {home}` show what came out.")
        tell_failed(console, failed)
    if failed:
        raise typer.Exit(1)


def carry_out(
    folders: list[RunFolder],
    console: Console,
    *,
    device: str,
    workers: int | None,
    save_every: float,
    ray: bool = False,
    address: str | None = None,
    tally: Tally | None = None,
) -> dict[str, str]:
    """Execute with a bar; an interruption says how to resume.  `tally` is filled with how it went."""
    if not ray:
        check_data(folders)
    for folder in folders:
        folder.tidy()
    for about in ([folder.damage for folder in folders], [folder.note for folder in folders]):
        sentences = [sentence for sentence in about if sentence is not None]
        if sentences:
            more = f" (and {number(len(sentences) - 1)} more)" if len(sentences) > 1 else ""
            console.print(f"{sentences[0]}{more}.", soft_wrap=True)
    count = sum(not folder.finished for folder in folders)
    with progress() as bar:
        runs = plural(count, "run")
        task = bar.add_task(f"starting {runs}", total=None, visible=count > 0)
        said = 0

        def watch(tally: Tally) -> None:
            nonlocal said
            done, total = sum(tally.done.values()), sum(tally.total.values())
            words = "training" if total else "starting"
            bar.update(task, description=f"{words} {runs}", completed=done, total=total or None)
            for note in tally.notes[said:]:
                bar.console.print(note, soft_wrap=True)
            said = len(tally.notes)

        try:
            if ray:
                return execute_on_ray(folders, address=address, save_every=save_every, watch=watch)
            return execute(folders, device=device, workers=workers, save_every=save_every, watch=watch, tally=tally)
        except Interrupted as stop:
            bar.stop()
            console.print("Stopped; run the same command again to resume.")
            raise stopped(stop) from None


def clear_all(paths: Iterable[Path], console: Console) -> None:
    """Remove the files of runs, so that they start from scratch; what else lies in their folders stays."""
    for path, kept in clear(*paths).items():
        console.print(f"Left in {path}, because these are not files of a run: {', '.join(kept)}.", soft_wrap=True)


def missing(folders: Iterable[RunFolder]) -> list[Entry]:
    """The data of every unfinished run that lacks them."""
    sets = [CATALOGUE.get(folder.config.data.name) for folder in folders if not folder.finished]
    return [entry for entry in sets if entry is not None and not entry.cached()]


def check_data(folders: list[RunFolder]) -> None:
    """Refuse at once if no run has its data; if only some lack theirs, the end of the sweep says so."""
    lacking = missing(folders)
    if lacking and len(lacking) == sum(not folder.finished for folder in folders):
        lacking[0].where()


def foresee(folders: list[RunFolder], *, device: str, workers: int | None) -> Estimate:
    """How long they will take, as far as the data to measure it are there; with a bar, since every run is planned."""
    there = not missing(folders)
    with progress() as bar:
        task = bar.add_task(f"planning every run{', then training for some seconds' * there}", total=None)

        def tell(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        return estimate(folders, device=device, workers=workers, measure=there, tell=tell)


def how_long(expected: Estimate, folders: Sequence[RunFolder]) -> str:
    """The end of a sentence about steps: how fast they go here, and how long that takes."""
    if expected.seconds is None or expected.steps_per_second is None:
        first = missing(folders)[0]
        return f"; how long that takes can be measured once `{first.command}` has put {first.name} into the cache."
    seconds = expected.seconds
    duration = f"{max(1, round(seconds))} s" if seconds < 90 else f"{seconds / 60:.0f} min"
    duration = duration if seconds < 5400 else f"{seconds / 3600:.1f} h"
    return f" at {number(round(expected.steps_per_second))} per second here: about {duration}."


def tell_failed(console: Console, failed: Mapping[str, str]) -> None:
    """One line for each reason, however many runs have it."""
    by_reason: dict[str, list[str]] = {}
    for path, sentence in failed.items():
        by_reason.setdefault(sentence, []).append(path)
    for sentence, paths in by_reason.items():
        console.print(lead("failed", f" {some(paths, 1)}: {sentence}", "bold red"), soft_wrap=True)


def save_results(folders: list[RunFolder], home: Path) -> int:
    """results.parquet and results.csv, whole or not at all; how many rows they have."""
    frame = collect(folders)
    if len(frame):
        write(home / "results.csv", frame.to_csv(index=False))
        Results(frame, []).save(home / "results.parquet")
    return len(frame)


def config(policy: PolicyName = None, file: ConfigFile = None, set_: Settings = None, as_json: Json = False) -> None:
    """Print the whole configuration of a run, with a sentence for each field.

    What it prints is a valid configuration file. Example: pipecycle config pipecycle > mine.toml; pipecycle run
    --config mine.toml"""
    chosen = configured(Config(), file, policy, {}, settings(set_ or []))
    if as_json:
        values: dict[str, Any] = {"policy": {"name": chosen.policy, **chosen.settings}}
        print(json.dumps(values | {name: attrs.asdict(getattr(chosen, name)) for name in SECTIONS}))
        return
    print(annotated(chosen), end="")


def annotated(chosen: Config) -> str:
    """The configuration as TOML with comments; fields that are not set are comments themselves."""
    lines = ["[policy]", f"name = {toml(chosen.policy)}"]
    for key, about in described(policy_class(chosen.policy)).items():
        value = chosen.settings.get(key, None if key in BY_THE_MODEL else about.default)
        lines.append(_line(key, value, str(about)))
    for name, kind in SECTIONS.items():
        lines += ["", f"[{name}]  # {kind.__doc__.strip().rstrip('.').lower()}"]
        for field in attrs.fields(kind):
            value, note, needs = getattr(getattr(chosen, name), field.name), field.metadata["note"], allowed(field)
            lines.append(
                _line(field.name, value, f"{note}; {needs}" if needs != "text" and needs not in note else note)
            )
    return "\n".join(lines) + "\n"


def _line(key: str, value: Any, note: str) -> str:
    said = f"# {key} = ..." if value is None else f"{key} = {toml(value)}"
    return f"{said}  # {note}" if note else said
