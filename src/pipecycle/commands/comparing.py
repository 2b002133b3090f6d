"""`pipecycle compare`: several policies on the same trials, a table, and a report."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from pipecycle.commands.shared import (
    ConfigFile,
    DataSet,
    Fleet,
    HarvestSpec,
    Json,
    Model,
    Settings,
    check_execution,
    configured,
)
from pipecycle.commands.sweeping import carry_out, save_results, tell_failed
from pipecycle.data.augment import FORMS
from pipecycle.files import writable_folder, write
from pipecycle.policies.registry import policy_class
from pipecycle.report.tables import check_target
from pipecycle.runs.compare import DEMO, POLICIES, captions, comparison, references
from pipecycle.runs.config import Config
from pipecycle.runs.sweep import check_runs
from pipecycle.schedule.summary import number
from pipecycle.screen import screen


def compare(
    policies: Annotated[list[str] | None, typer.Argument(help="Schedulers. \\[default: the paper's and ours]")] = None,
    trials: Annotated[int, typer.Option(min=1, help="Trials; every scheduler meets the same ones.")] = 3,
    groups: Annotated[int, typer.Option(min=1, help="Groups, for schedulers that have them.")] = 5,
    delta: Annotated[float | None, typer.Option(help="Charging probability per slot. \\[default: 0.5]")] = None,
    harvest: HarvestSpec = None,
    fleet: Fleet = None,
    data: DataSet = None,
    model: Model = None,
    scale: Annotated[str | None, typer.Option(help="Of bytes: standard, unit, half or centre.")] = None,
    augment: Annotated[str | None, typer.Option(help=f"Random views of images: {FORMS}.")] = None,
    alpha: Annotated[str | None, typer.Option(help="Dirichlet concentration, or iid. \\[default: 0.1]")] = None,
    clients: Annotated[int | None, typer.Option(help="How many clients. \\[default: 40]")] = None,
    slots: Annotated[int | None, typer.Option(help="Horizon in slots. \\[default: 1000]")] = None,
    budget: Annotated[
        float | None, typer.Option(help="Units at which accuracy is compared. \\[default: 10000]")
    ] = None,
    validation: Annotated[
        int | None, typer.Option(help="Judge by so many training samples held back, instead of the test samples.")
    ] = None,
    target: Annotated[
        float | None, typer.Option(help="Accuracy to ask the energy for. \\[default: 9/10 of the best]")
    ] = None,
    config: ConfigFile = None,
    set_: Settings = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the runs and the report. \\[default: runs/compare-...]")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:NUMBER.")] = "auto",
    workers: Annotated[int | None, typer.Option(min=1, help="Processes on a CPU. \\[default: one per core]")] = None,
    as_json: Json = False,
) -> None:
    """Compare schedulers on the same data, weather and trials, and write a report.

    With no arguments: the paper's seven and PipeCycle+ on handwritten digits, forty clients that hold few classes
    each and charge in every other slot. Trials are paired, so the differences are too."""
    given = {
        "delta": delta,
        "world.harvest": harvest,
        "world.fleet": fleet,
        "world.clients": clients,
        "world.slots": slots,
        "world.budget": budget,
        "data.name": data,
        "data.alpha": "none" if alpha == "iid" else alpha,
        "train.model": model,
        "data.scale": scale,
        "train.augment": augment,
        "data.validation": validation,
        "look.on": None if validation is None else "validation",
    }
    check_execution(device, workers=workers)
    check_target(target)
    base = configured(DEMO, config, None, given, set_)
    names = policies or list(POLICIES)
    for name in names:
        policy_class(name)
    sweep = comparison(base, names, trials, groups)
    check_runs(sweep)
    tag = hashlib.sha256("".join(sweep.runs).encode()).hexdigest()[:8]
    home = out or Path("runs") / f"compare-{tag}"
    writable_folder(home)
    console = screen(stderr=as_json)
    folders = sweep.folders(home)
    failed = carry_out(folders, console, device=device, workers=workers, save_every=60.0)
    if not save_results(folders, home):
        tell_failed(console, failed)
        raise typer.Exit(1)
    from pipecycle.report.page import page
    from pipecycle.report.tables import summary_rows
    from pipecycle.runs.records import load

    records = load([folder.path for folder in folders if folder.finished])
    schedules = [record.schedule for group in records for record in group.records]
    longest = {
        trial: max(schedule.slots for schedule in schedules if schedule.trial == trial)
        for trial in sorted({schedule.trial for schedule in schedules})
    }
    lines = references(base, longest, home, device)
    about = captions(schedules[0].clients, longest)
    means = {name: float(np.mean(values)) for name, values in lines.items()}
    write(home / "report.html", page(records, target, references=means, captions=about))
    if as_json:
        rows = summary_rows(records, target)
        print(json.dumps({"folder": str(home), "rows": rows, "references": lines, "about": about, "failed": failed}))
    else:
        console.print(_table(summary_rows(records, target), base))
        for name, values in lines.items():
            spread = f" ± {np.std(values, ddof=1):.1f}" if len(values) > 1 else ""
            console.print(f"{means[name]:5.1f}{spread}  {name}: {about[name]}", highlight=False)
        console.print(f"Report: {home / 'report.html'}", highlight=False, soft_wrap=True)
        tell_failed(console, failed)
    if failed:
        raise typer.Exit(1)


def _table(rows: list[dict[str, Any]], base: Config) -> Table:
    """Everything on one screen; the report says more."""
    from pipecycle.report.tables import gap, spread, to_target

    goal = rows[0]["target"]
    judged = "" if base.look.on is None else f" on {base.look.on} samples"
    where = "at the end" if base.world.budget is None else f"at {number(base.world.budget)} units"
    about = (
        f"Accuracy in percent {where}{judged}, mean and deviation over the trials; paired difference to the best with "
        "its 95 % interval (none where all trials differ by the same); units and slots to reach an accuracy, (1 of 3) "
        "where only so many trials did; energy for training, to hubs and to the server; sessions wasted."
    )
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), caption=about, caption_justify="left")
    table.add_column("scheduler", no_wrap=True)
    for head in ("accuracy", "to the best", f"to {goal:g} %", "slots", "energy %", "waste"):
        table.add_column(head, justify="right", no_wrap=True)
    for row in sorted(rows, key=lambda row: -(row["accuracy"] or 0.0)):
        behind = gap(row)
        if row["difference_low"] is not None:
            behind += f" ± {row['difference_high'] - row['difference']:.1f}"
        table.add_row(
            row["label"],
            spread(row),
            behind,
            to_target(row),
            number(row["slots_to_target"] and round(row["slots_to_target"])),
            "/".join(_percent(row[part], row["spent"]) for part in ("training", "to_hub", "to_server")),
            number(round(row["wasted"], 1)),
        )
    return table


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f}" if whole else "-"
