"""`pipecycle run`: a live display, then what came out."""

from __future__ import annotations

import json
import os
import re
import shlex
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from pipecycle.commands.fields import Given, fields
from pipecycle.commands.planning import WORLD
from pipecycle.commands.shared import (
    ConfigFile,
    Device,
    Fresh,
    Json,
    PolicyName,
    SaveEvery,
    Settings,
    check_execution,
    configured,
    named,
    planned,
    settings,
    stopped,
)
from pipecycle.commands.sweeping import clear_all
from pipecycle.data.catalogue import CATALOGUE
from pipecycle.files import writable_folder
from pipecycle.runs.config import Config
from pipecycle.runs.planning import check_learning
from pipecycle.runs.records import ENDED
from pipecycle.runs.run import RunFolder, train_folders
from pipecycle.runs.sweep import check_effects
from pipecycle.schedule.schedule import Schedule
from pipecycle.screen import lead, progress, screen, training
from pipecycle.stopping import Interrupted
from pipecycle.words import number

if TYPE_CHECKING:
    from pipecycle.train.engine import Engine


@fields(Config(), "data", "model", "scale", "augment", "alpha", *WORLD)
def run(
    policy: PolicyName = None,
    *,
    given: Given,
    config: ConfigFile = None,
    set_: Settings = None,
    out: Annotated[Path | None, typer.Option(help="The run's folder. \\[default: runs/NAME]")] = None,
    device: Device = "auto",
    save_every: SaveEvery = 60.0,
    fresh: Fresh = False,
    as_json: Json = False,
) -> None:
    """Plan a scheduler and train it on real data; write accuracy against slots and energy to a folder.

    A finished run is shown; an interrupted one resumes and ends with the same bits. Example:
    pipecycle run pipecycle+ --groups 5 --data digits --slots 3000 --clients 40"""
    named(policy, config)
    check_execution(device, save_every)
    chosen = configured(Config(), config, policy, given, settings(set_ or []))
    check_effects([chosen])
    conduct(chosen, out, device, save_every, fresh, as_json)


def conduct(config: Config, out: Path | None, device: str, save_every: float, fresh: bool, as_json: bool) -> None:
    """Run a configuration in its folder and print the result."""
    path = out or Path("runs") / folder_name(config)
    console = screen(stderr=as_json)
    writable_folder(path)
    schedule = _prepared(config) if fresh else None  # a run that cannot begin removes nothing
    if fresh:
        clear_all([path], console)
    folder = RunFolder(path, config)
    folder.tidy()
    for about in (folder.note, folder.damage):
        if about is not None:
            console.print(f"{about}.", soft_wrap=True)
    if folder.finished:
        if not as_json:
            console.print(f"{path} is already finished (--fresh trains it from scratch).")
    else:
        folder.schedule = schedule or _prepared(config)
        _train(folder, device, save_every, console)
    figures = folder.result()
    if as_json:
        print(json.dumps({**figures, "folder": str(path)}))
        return
    final, budget = figures["final"], figures["at_budget"]
    reached = f"{number(final['slot'])} slots and {number(final['energy'])} units; best {final['best']:.1f} %."
    ended = f" {ENDED.get(figures['ended'], figures['ended'])} at {final['accuracy']:.1f} % after {reached}"
    console.print(lead(figures["policy"], ended))
    if config.world.budget is not None:
        console.print(f"Within {number(config.world.budget)} units: {budget['accuracy']:.1f} %.")
    console.print(f"In {path}: config.toml, schedule.npz, metrics.csv, model.safetensors, result.json.")
    console.print(f"`pipecycle report {shlex.quote(str(path))}` makes a page of it.", soft_wrap=True)


LONGEST = 200
"""Letters in the name of a folder: file systems take 255 bytes, and temporary files add some."""


def folder_name(config: Config) -> str:
    """A folder name that says what the run is, and differs wherever the configuration does."""
    words = [config.policy, *(f"{key}-{value}" for key, value in sorted(config.settings.items()))]
    words += [config.data.name, config.world.harvest, f"trial-{config.world.trial}", config.identity()[:8]]
    whole = re.sub(r"[^A-Za-z0-9.+-]+", "-", "_".join(Path(word).name for word in words))
    return whole if len(whole) <= LONGEST else f"{whole[: LONGEST - 9]}-{config.identity()[:8]}"


def _prepared(config: Config) -> Schedule:
    """The plan; what the data or the model do not allow is said before time is spent on it."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if config.data.name in CATALOGUE:
        CATALOGUE[config.data.name].where()
    with progress() as bar:
        bar.add_task("reading the data and the model", total=None)
        check_learning(config)
    return planned(config)


def _train(folder: RunFolder, device: str, save_every: float, console: Console) -> None:
    def begun(_: Sequence[RunFolder]) -> None:
        if folder.resumed is not None and folder.schedule is not None:
            where = f"slot {number(folder.resumed)} of {number(folder.schedule.slots)}"
            console.print(f"Resumes from {where}.")

    train = partial(train_folders, [folder], device=device, save_every=save_every, begun=begun)
    try:
        if console.is_terminal:
            with Live(console=console, refresh_per_second=4, transient=True) as live:
                live.update(lead("starting", f" {folder.config.policy}"))
                train(show=lambda engine: live.update(_display(engine)))
        else:
            with training(f"training {folder.config.policy}") as show:
                train(show=show)
    except Interrupted as stop:
        console.print(f"Stopped; run the same command again to resume {folder.path}.")
        raise stopped(stop) from None


def _display(engine: Engine) -> Table:
    (job,) = engine.jobs
    elapsed = time.monotonic() - engine.started
    done, total = job.steps_done, job.steps_total
    rate = (done - engine.steps_before) / elapsed if elapsed else 0.0
    rows: dict[str, Any] = {"steps": f"{done:,} of {total:,} ({100 * job.progress:.0f} %)"}
    if job.history.rows:
        last = job.history.final
        rows["slots"] = f"{last.slot:,} of {job.schedule.slots:,}"
        rows["energy"] = f"{last.energy:,.0f} units"
        rows["accuracy"] = f"{last.accuracy:.1f} %, best {last.best:.1f} %"
    rows["speed"] = f"{rate:,.0f} steps per second on {engine.device}"
    rows["by"] = engine.bands[0].executor.how
    if rate:
        rows["time left"] = f"{(total - done) / rate:,.0f} s"
    table = Table(show_header=False, box=None)
    for key, value in rows.items():
        table.add_row(lead(key, ""), value)
    return table
