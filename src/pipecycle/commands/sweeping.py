"""`pipecycle sweep` and `pipecycle config`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import attrs
import typer
from rich.console import Console

from pipecycle.commands.shared import ConfigFile, Json, Settings, check_execution, configured, stopped
from pipecycle.errors import InputError, shown
from pipecycle.files import writable_folder, write
from pipecycle.policies.registry import parameters, policy_class
from pipecycle.runs.config import SECTIONS, Config, toml
from pipecycle.runs.estimate import Estimate, estimate
from pipecycle.runs.parquet import Results, collect
from pipecycle.runs.run import RunFolder
from pipecycle.runs.sweep import check_runs, read_sweep
from pipecycle.runs.workers import Tally, execute, execute_on_ray
from pipecycle.schedule.summary import number
from pipecycle.screen import lead, progress, screen
from pipecycle.stopping import Interrupted


def sweep(
    file: Annotated[Path, typer.Argument(help="A TOML file with [base], [matrix], trials and [[exclude]].")],
    out: Annotated[Path | None, typer.Option(help="Where the runs and results go. \\[default: runs/FILE]")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say how many runs and steps, and how long it will take.")
    ] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:NUMBER.")] = "auto",
    workers: Annotated[int | None, typer.Option(min=1, help="Processes on a CPU. \\[default: one per core]")] = None,
    on: Annotated[str, typer.Option(help="local, or ray to hand the runs to a Ray cluster.")] = "local",
    address: Annotated[str | None, typer.Option(help="The Ray cluster's address. \\[default: start one here]")] = None,
    save_every: Annotated[float, typer.Option(help="Seconds between two checkpoints.")] = 60.0,
    as_json: Json = False,
) -> None:
    """Run every combination of a matrix; finished runs are skipped, a stopped sweep resumes.

    All checkpoints end up in one tidy file, results.parquet (and results.csv)."""
    if on not in ("local", "ray"):
        raise InputError(f"--on {shown(on)}: needs local or ray")
    check_execution(device, save_every, workers)
    plan = read_sweep(file)
    check_runs(plan)
    home = out or Path("runs") / file.stem
    writable_folder(home)
    folders = plan.folders(home)
    console = screen(stderr=as_json)
    if dry_run:
        expected = foresee(folders, device=device, workers=workers)
        if as_json:
            print(json.dumps(attrs.asdict(expected)))
        else:
            console.print(
                f"{number(expected.runs)} runs, {number(expected.finished)} of them finished; "
                f"{number(expected.steps)} client-steps to go at "
                f"{number(round(expected.steps_per_second))} per second: about {duration(expected.seconds)}.",
                highlight=False,
            )
        return
    failed = carry_out(
        folders, console, device=device, workers=workers, ray=on == "ray", address=address, save_every=save_every
    )
    rows = save_results(folders, home)
    done = sum(folder.finished for folder in folders)
    if as_json:
        print(json.dumps({"runs": len(folders), "finished": done, "failed": failed, "rows": rows, "folder": str(home)}))
    else:
        console.print(f"{number(done)} of {number(len(folders))} runs finished.", highlight=False)
        console.print(f"In {home}: {number(rows)} checkpoints in results.parquet and results.csv.", highlight=False)
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
    damage = [folder.damage for folder in folders if folder.damage is not None]
    if damage:
        more = f" (and {number(len(damage) - 1)} more)" if len(damage) > 1 else ""
        console.print(f"{damage[0]}{more}.", highlight=False, markup=False, soft_wrap=True)
    with progress() as bar:
        task = bar.add_task(f"{sum(not folder.finished for folder in folders)} runs", total=None)
        said = 0

        def watch(tally: Tally) -> None:
            nonlocal said
            done, total = sum(tally.done.values()), sum(tally.total.values())
            bar.update(task, completed=done, total=total or None)
            for note in tally.notes[said:]:
                bar.console.print(note, highlight=False, markup=False, soft_wrap=True)
            said = len(tally.notes)

        try:
            if ray:
                return execute_on_ray(folders, address=address, save_every=save_every, watch=watch)
            return execute(folders, device=device, workers=workers, save_every=save_every, watch=watch, tally=tally)
        except Interrupted as stop:
            bar.stop()
            console.print("Stopped; the same command resumes from here.", highlight=False)
            raise stopped(stop) from None


def check_data(folders: list[RunFolder]) -> None:
    """If no run has its data there is no use in beginning; one that has none among others is told at the end."""
    from pipecycle.data.catalogue import CATALOGUE

    sets = [CATALOGUE.get(folder.config.data.name) for folder in folders if not folder.finished]
    if sets and all(entry is not None and not entry.cached() for entry in sets):
        assert sets[0] is not None
        sets[0].where()


def foresee(folders: list[RunFolder], *, device: str, workers: int | None) -> Estimate:
    """How long they will take; with a bar, since every run is planned for it."""
    check_data(folders)
    with progress() as bar:
        task = bar.add_task("planning every run, then training for some seconds", total=None)
        return estimate(
            folders,
            device=device,
            workers=workers,
            tell=lambda done, total: bar.update(task, completed=done, total=total),
        )


def tell_failed(console: Console, failed: Mapping[str, str]) -> None:
    """One line for each reason, however many runs have it."""
    by_reason: dict[str, list[str]] = {}
    for path, sentence in failed.items():
        by_reason.setdefault(sentence, []).append(path)
    for sentence, paths in by_reason.items():
        more = f" and {number(len(paths) - 1)} more" if len(paths) > 1 else ""
        console.print(lead("failed", f" {paths[0]}{more}: {sentence}", "bold red"), soft_wrap=True)


def save_results(folders: list[RunFolder], home: Path) -> int:
    """results.parquet and results.csv, whole or not at all; how many rows they have."""
    frame = collect(folders)
    if len(frame):
        write(home / "results.csv", frame.to_csv(index=False))
        Results(frame, []).save(home / "results.parquet")
    return len(frame)


def duration(seconds: float) -> str:
    """Seconds as people say them."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def config(
    policy: Annotated[str | None, typer.Argument(help="A scheduler, or your own as module:Class.")] = None,
    file: ConfigFile = None,
    set_: Settings = None,
    as_json: Json = False,
) -> None:
    """The whole configuration that a run would have, with a sentence for each field.

    What it prints is a valid configuration file."""
    chosen = configured(Config(), file, policy, {}, set_)
    if as_json:
        values: dict[str, Any] = {"policy": {"name": chosen.policy, **chosen.settings}}
        print(json.dumps(values | {name: attrs.asdict(getattr(chosen, name)) for name in SECTIONS}))
        return
    print(annotated(chosen), end="")


def annotated(chosen: Config) -> str:
    """The configuration as TOML with comments; fields that are not set are comments themselves."""
    lines = ["[policy]", f'name = "{chosen.policy}"']
    for key in parameters(policy_class(chosen.policy)):
        value = chosen.settings.get(key)
        lines.append(f"# {key} = ...  # the policy's own default" if value is None else f"{key} = {toml(value)}")
    for name, kind in SECTIONS.items():
        lines += ["", f"[{name}]  # {kind.__doc__.strip().rstrip('.').lower()}"]
        for field in attrs.fields(kind):
            value = getattr(getattr(chosen, name), field.name)
            note = field.metadata["note"]
            lines.append(
                f"# {field.name} = ...  # {note}" if value is None else f"{field.name} = {toml(value)}  # {note}"
            )
    return "\n".join(lines) + "\n"
