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

from pipecycle.commands.fields import Given, fields
from pipecycle.commands.shared import (
    Device,
    Fresh,
    Json,
    Settings,
    Workers,
    check_execution,
    complete_policy,
    configured,
    settings,
)
from pipecycle.commands.sweeping import carry_out, check_data, clear_all, save_results, tell_failed
from pipecycle.files import writable_folder, write
from pipecycle.report.tables import check_target
from pipecycle.runs.compare import DEMO, POLICIES, captions, comparison, references
from pipecycle.runs.config import Config
from pipecycle.runs.sweep import check_runs, is_setting
from pipecycle.screen import lead, progress, screen
from pipecycle.words import number, plural
from pipecycle.world.devices_file import parted

if TYPE_CHECKING:
    from pipecycle.runs.records import Group

PARTS = {"training": "training", "to_hub": "to hubs", "to_server": "to the server"}
SOME = {"download": "downloads", "lost": "lost"}
"""What only some fleets spend energy on."""


@fields(DEMO, "delta", "harvest", "fleet", "data", "model", "scale", "augment", "alpha", "clients", "session", "slots",
        "budget", "data.validation")  # fmt: skip
def compare(
    policies: Annotated[
        list[str] | None,
        typer.Argument(
            help="Schedulers, with settings if you like: 'pipecycle(groups=2)' 'fedavg(epoch=60)' 'my:Policy(k=10)' "
            "'fedavg{train.lr=0.02}'. \\[default: the paper's and ours]",
            autocompletion=complete_policy,
        ),
    ] = None,
    *,
    trials: Annotated[int, typer.Option(min=1, metavar="N", help="Trials; every scheduler meets the same ones.")] = 3,
    groups: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Groups, for schedulers that have them. \\[default: 5]")
    ] = None,
    given: Given,
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
    device: Device = "auto",
    workers: Workers = None,
    fresh: Fresh = False,
    as_json: Json = False,
) -> None:
    """Compare schedulers on the same trials, with the same weather and data, and write a report.

    With no arguments, a demo: the paper's seven and PipeCycle+ on handwritten digits, forty clients that hold few
    classes each and charge in half of all slots. Settings beside a scheduler's name win over options; --set groups=2
    is for all schedulers that have groups. A run whose code or data (your modules, .npz and .csv files) has changed is
    trained again. Example: pipecycle compare fedavg pipecycle+ --trials 5 --data mine.npz"""
    if given["data.validation"] is not None:
        given["look.on"] = "validation"
    check_execution(device, workers=workers)
    check_target(target)
    pairs = settings(set_ or [])
    whole = {key: value for key, value in pairs.items() if not is_setting(key)}
    own = {key.removeprefix("policy."): value for key, value in pairs.items() if key not in whole}
    base = configured(DEMO, config, None, given, whole)
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
    energy = world.harvest if world.fleet is None else f"the devices of {Path(parted(world.fleet)[0]).name}"
    parts = [f"{number(world.clients)} clients", f"{number(world.slots)} slots", energy]
    parts += [] if world.budget is None else [f"{number(world.budget)} units"]
    parts += [base.data.name, "iid" if base.data.alpha is None else f"alpha {base.data.alpha:g}", base.train.model]
    what = f"{plural(entries, 'scheduler')} in {plural(trials, 'trial')}"
    console.print(f"Comparing {what}: {', '.join(parts)}; in {home}.", soft_wrap=True)


def _print(console: Console, records: Sequence[Group], target: float | None, base: Config) -> None:
    from pipecycle.report.prose import unspent
    from pipecycle.report.tables import summary_rows, when
    from pipecycle.schedule.summary import measures

    console.print(_table(summary_rows(records, target), base, when(records)))
    about = measures(records[0].records[0].schedule.meta)
    if about:
        console.print(f"{about[0].upper()}{about[1:]}.")
    for note in unspent(records):
        console.print(lead("Note:", f" {note}", "bold yellow"), soft_wrap=False)


def _table(rows: list[dict[str, Any]], base: Config, when: str) -> Table:
    """Everything on one screen; the report says more."""
    from pipecycle.report.tables import gap, spread, to_target

    goal = rows[0]["target"]
    parts = PARTS | {key: word for key, word in SOME.items() if any(row[key] for row in rows)}
    judged = "" if base.look.on is None else f" on {base.look.on} samples"
    where = when if base.world.budget is None else when.replace("the budget", f"{number(base.world.budget)} units")
    about = (
        f"Accuracy in percent{judged} {where}: mean ± deviation over trials. To the best: paired difference with its "
        f"95 % interval (none if it is equal in all trials). To {goal:g} %: units and slots to reach it; (1 of 3) if "
        f"only some trials did. Energy: {' / '.join(parts.values())}. Waste: sessions whose update was not used."
    )
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), caption=about, caption_justify="left")
    table.add_column("scheduler")  # a long name takes more lines, so that no figure is cut
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
            "/".join(f"{100 * row[part] / row['spent']:.0f}" if row["spent"] else "-" for part in parts),
            number(round(row["wasted"], 1)),
        )
    return table
