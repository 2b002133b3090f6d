"""`pipecycle compare`: several policies on the same trials, a table, and a report."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from pipecycle.commands.shared import (
    DataSet,
    Fleet,
    Fresh,
    HarvestSpec,
    Json,
    Model,
    SessionLength,
    Settings,
    check_execution,
    complete_policy,
    configured,
    settings,
)
from pipecycle.commands.sweeping import carry_out, check_data, clear_all, save_results, tell_failed
from pipecycle.data.augment import FORMS
from pipecycle.files import writable_folder, write
from pipecycle.report.tables import check_target
from pipecycle.runs.compare import DEMO, POLICIES, captions, comparison, references
from pipecycle.runs.config import Config
from pipecycle.runs.sweep import check_runs, is_setting
from pipecycle.screen import lead, progress, screen
from pipecycle.words import number, plural

if TYPE_CHECKING:
    from pipecycle.runs.records import Group

PARTS = ("training", "to_hub", "to_server")


def compare(
    policies: Annotated[
        list[str] | None,
        typer.Argument(
            help="Schedulers, with settings if you like: 'pipecycle(groups=2)' 'fedavg(epoch=60)' 'my:Policy(k=10)' "
            "'fedavg{train.lr=0.02}'. \\[default: the paper's and ours]",
            autocompletion=complete_policy,
        ),
    ] = None,
    trials: Annotated[int, typer.Option(min=1, help="Trials; every scheduler meets the same ones.")] = 3,
    groups: Annotated[
        int | None, typer.Option(min=1, help="Groups, for schedulers that have them. \\[default: 5]")
    ] = None,
    delta: Annotated[float | None, typer.Option(help="Charging probability per slot. \\[default: 0.5]")] = None,
    harvest: HarvestSpec = None,
    fleet: Fleet = None,
    data: DataSet = None,
    model: Model = None,
    scale: Annotated[str | None, typer.Option(help="Of bytes: standard, unit, half or centre.")] = None,
    augment: Annotated[str | None, typer.Option(help=f"Random views of images: {FORMS}.")] = None,
    alpha: Annotated[str | None, typer.Option(help="Dirichlet concentration, or iid. \\[default: 0.1]")] = None,
    clients: Annotated[int | None, typer.Option(help="How many clients. \\[default: 40]")] = None,
    session: SessionLength = None,
    slots: Annotated[int | None, typer.Option(help="Horizon in slots. \\[default: 1000]")] = None,
    budget: Annotated[
        float | None, typer.Option(help="Units at which accuracy is compared. \\[default: 10000]")
    ] = None,
    validation: Annotated[
        int | None, typer.Option(help="Judge by this many training samples held back, instead of the test samples.")
    ] = None,
    target: Annotated[
        float | None, typer.Option(help="Target accuracy in percent. \\[default: 9/10 of the best]")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            help="A TOML file instead of the demo: what it does not say has the defaults of `pipecycle config`, not "
            "those shown here. Options win over it.",
        ),
    ] = None,
    set_: Settings = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the runs and the report. \\[default: runs/compare-...]")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:NUMBER.")] = "auto",
    workers: Annotated[int | None, typer.Option(min=1, help="Processes on a CPU. \\[default: one per core]")] = None,
    fresh: Fresh = False,
    as_json: Json = False,
) -> None:
    """Compare schedulers on the same data, weather and trials, and write a report.

    With no arguments, a demo: the paper's seven and PipeCycle+ on handwritten digits, forty clients that hold few
    classes each and charge in half of all slots. Trials are paired, so the differences are too. What an entry says
    itself wins over the options; --set groups=2 is for all schedulers that have groups. A run whose code or data (your
    modules, .npz and .csv files) has changed is trained again."""
    given = {"delta": delta, "harvest": harvest, "fleet": fleet, "clients": clients, "session": session}
    judge = {"data.validation": validation, "look.on": None if validation is None else "validation"}
    given |= {"slots": slots, "budget": budget, "data": data, "alpha": alpha, "scale": scale, "model": model}
    check_execution(device, workers=workers)
    check_target(target)
    pairs = settings(set_ or [])
    fields = {key: value for key, value in pairs.items() if not is_setting(key)}
    own = {key.removeprefix("policy."): value for key, value in pairs.items() if key not in fields}
    base = configured(DEMO, config, None, {**given, "augment": augment, **judge}, fields)
    names = policies or list(POLICIES)
    sweep = comparison(base, names, trials, groups, own)
    tag = hashlib.sha256("".join(sweep.runs).encode()).hexdigest()[:8]
    home = out or Path("runs") / f"compare-{tag}"
    console = screen(stderr=as_json)
    check_runs(sweep)
    writable_folder(home)
    if fresh:
        clear_all([home / name for name in sweep.runs], console)
    folders = sweep.folders(home)
    check_data(folders)
    _announce(console, base, len(names), trials, home)
    failed = carry_out(folders, console, device=device, workers=workers, save_every=60.0)
    if not save_results(folders, home):
        tell_failed(console, failed)
        raise typer.Exit(1)
    from pipecycle.report.page import page
    from pipecycle.report.tables import summary_rows
    from pipecycle.runs.records import load

    records = load([folder.path for folder in folders if folder.finished])
    schedules = [record.schedule for group in records for record in group.records]
    longest = dict(sorted((schedule.trial, schedule.slots) for schedule in schedules))  # the last of a trial stays
    with progress() as bar:
        task = bar.add_task("training the reference lines", total=None)
        lines = references(base, longest, home, device, lambda done, of: bar.update(task, completed=done, total=of))
        about = captions(schedules[0].clients, longest)
        means = {name: float(np.mean(values)) for name, values in lines.items()}
        bar.update(task, description="writing the report", completed=0, total=len(records))
        write(
            home / "report.html",
            page(records, target, references=means, captions=about, step=partial(bar.advance, task)),
        )
    if as_json:
        rows = summary_rows(records, target)
        print(json.dumps({"folder": str(home), "rows": rows, "references": lines, "about": about, "failed": failed}))
    else:
        _print(console, records, target, base)
        for name, values in lines.items():
            spread = f" ± {np.std(values, ddof=1):.1f}" if len(values) > 1 else ""
            console.print(f"{means[name]:5.1f}{spread}  {name}: {about[name]}")
        console.print(f"Report: {home / 'report.html'}", soft_wrap=True)
        tell_failed(console, failed)
    if failed:
        raise typer.Exit(1)


def _announce(console: Console, base: Config, entries: int, trials: int, home: Path) -> None:
    """What is about to happen, before anything that takes long."""
    world = base.world
    parts = [f"{number(world.clients)} clients", f"{number(world.slots)} slots", world.harvest]
    parts += [] if world.budget is None else [f"{number(world.budget)} units"]
    parts += [base.data.name, "iid" if base.data.alpha is None else f"alpha {base.data.alpha:g}", base.train.model]
    what = f"{plural(entries, 'scheduler')} in {plural(trials, 'trial')}"
    console.print(f"Comparing {what}: {', '.join(parts)}; in {home}.", soft_wrap=True)


def _print(console: Console, records: Sequence[Group], target: float | None, base: Config) -> None:
    from pipecycle.report.prose import unspent
    from pipecycle.report.tables import summary_rows, when

    console.print(_table(summary_rows(records, target), base, when(records)))
    for note in unspent(records):
        console.print(lead("Note:", f" {note}", "bold yellow"), soft_wrap=False)


def _table(rows: list[dict[str, Any]], base: Config, when: str) -> Table:
    """Everything on one screen; the report says more."""
    from pipecycle.report.tables import gap, spread, to_target

    goal = rows[0]["target"]
    judged = "" if base.look.on is None else f" on {base.look.on} samples"
    where = when if base.world.budget is None else when.replace("the budget", f"{number(base.world.budget)} units")
    about = (
        f"Accuracy in percent {where}{judged}: mean ± deviation over trials. To the best: paired difference with its "
        f"95 % interval (none if it is equal in all trials). To {goal:g} %: units and slots to reach it; (1 of 3) if "
        "only some trials did. Energy: training / to hubs / to the server. Waste: sessions whose update was not used."
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
            "/".join(f"{100 * row[part] / row['spent']:.0f}" if row["spent"] else "-" for part in PARTS),
            number(round(row["wasted"], 1)),
        )
    return table
