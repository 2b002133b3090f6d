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

from pipecycle.commands.shared import ConfigFile, HarvestSpec, Json, Settings, check_execution, configured
from pipecycle.commands.sweeping import carry_out, save_results, tell_failed
from pipecycle.compare import DEMO, POLICIES, comparison, references
from pipecycle.config import Config
from pipecycle.files import writable_folder, write
from pipecycle.registry import policy_class
from pipecycle.report.tables import check_target
from pipecycle.screen import lead, screen
from pipecycle.summary import number
from pipecycle.sweep import check_runs

LINES = {
    "centralised": "one learner with all the data and energy in every slot",
    "unlimited": "FedAvg with energy in every slot",
    "isolated": "a client alone with its own data and energy, mean of five",
}


def compare(
    policies: Annotated[
        list[str] | None, typer.Argument(help="Schedulers. \\[default: all, fedbacys-odd aside]")
    ] = None,
    trials: Annotated[int, typer.Option(min=1, help="Trials; every scheduler meets the same ones.")] = 3,
    groups: Annotated[int, typer.Option(min=1, help="Groups, for schedulers that have them.")] = 5,
    delta: Annotated[float | None, typer.Option(help="Charging probability per slot. \\[default: 0.1]")] = None,
    harvest: HarvestSpec = None,
    data: Annotated[str | None, typer.Option(help="digits, fashion-mnist, cifar10 or an .npz file.")] = None,
    model: Annotated[str | None, typer.Option(help="mlp, lenet, cnn64, wide or module:factory.")] = None,
    alpha: Annotated[str | None, typer.Option(help="Dirichlet concentration, or iid. \\[default: 0.1]")] = None,
    clients: Annotated[int | None, typer.Option(help="How many clients. \\[default: 40]")] = None,
    slots: Annotated[int | None, typer.Option(help="Horizon in slots. \\[default: 3000]")] = None,
    budget: Annotated[
        float | None, typer.Option(help="Units at which accuracy is compared. \\[default: 10000]")
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

    With no arguments: all of them on handwritten digits, forty clients that hold few classes each and charge in
    one slot out of ten. Trials are paired, so the differences are too."""
    given = {
        "delta": delta,
        "world.harvest": harvest,
        "world.clients": clients,
        "world.slots": slots,
        "world.budget": budget,
        "data.name": data,
        "data.alpha": "none" if alpha == "iid" else alpha,
        "train.model": model,
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
    if not any(folder.finished for folder in folders):
        tell_failed(console, failed)
        raise typer.Exit(1)
    save_results(folders, home)
    lines = references(base, range(trials), home, device)
    from pipecycle.report.page import page
    from pipecycle.report.records import load
    from pipecycle.report.tables import summary_rows

    records = load([folder.path for folder in folders if folder.finished])
    write(
        home / "report.html",
        page(records, target, references={name: float(np.mean(values)) for name, values in lines.items()}),
    )
    if as_json:
        rows = summary_rows(records, target)
        print(json.dumps({"folder": str(home), "rows": rows, "references": lines, "failed": failed}))
    else:
        console.print(_table(summary_rows(records, target), base))
        for name, values in lines.items():
            spread = f" ± {np.std(values, ddof=1):.1f}" if len(values) > 1 else ""
            console.print(f"{np.mean(values):5.1f}{spread}  {name}: {LINES[name]}", highlight=False)
        console.print(f"Report: {home / 'report.html'}", highlight=False, soft_wrap=True)
        for path, sentence in failed.items():
            console.print(lead("failed", f" {path}: {sentence}", "bold red"))
    if failed:
        raise typer.Exit(1)


def _table(rows: list[dict[str, Any]], base: Config) -> Table:
    """Everything on one screen; the report says more."""
    goal = rows[0]["target"]
    where = "at the end" if base.world.budget is None else f"at {number(base.world.budget)} units"
    about = (
        f"Accuracy in percent {where}, mean and deviation over the trials; paired difference to the best with its 95 % "
        "interval; units and slots to reach an accuracy; energy for training, to hubs and to the server; sessions "
        "wasted; Jain's fairness."
    )
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), caption=about, caption_justify="left")
    table.add_column("scheduler", no_wrap=True)
    for head in ("accuracy", "to the best", f"to {goal:g} %", "slots", "energy %", "waste", "fair"):
        table.add_column(head, justify="right", no_wrap=True)
    for row in sorted(rows, key=lambda row: -(row["accuracy"] or 0.0)):
        spread = "" if row["accuracy_sd"] is None else f" ± {row['accuracy_sd']:.1f}"
        gap = "best" if row["is_best"] else "-" if row["difference"] is None else f"{row['difference']:+.1f}"
        if row["difference_low"] is not None:
            gap += f" ± {row['difference_high'] - row['difference']:.1f}"
        table.add_row(
            row["label"],
            "-" if row["accuracy"] is None else f"{row['accuracy']:.1f}{spread}",
            gap,
            number(row["energy_to_target"] and round(row["energy_to_target"])),
            number(row["slots_to_target"] and round(row["slots_to_target"])),
            "/".join(_percent(row[part], row["spent"]) for part in ("training", "to_hub", "to_server")),
            number(round(row["wasted"], 1)),
            "-" if row["fairness"] is None else f"{row['fairness']:.2f}",
        )
    return table


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f}" if whole else "-"
