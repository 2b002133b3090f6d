"""`pipecycle data`: fetch sets, list them, split them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table

from pipecycle.commands.fields import among
from pipecycle.data.cache import root
from pipecycle.data.catalogue import CATALOGUE, find
from pipecycle.data.exchange import kind, save
from pipecycle.data.fetcher import fetch as fetch_set
from pipecycle.data.partition import drawn
from pipecycle.data.sets import load
from pipecycle.data.split import Split
from pipecycle.data.task import Task
from pipecycle.files import writable
from pipecycle.runs.config import Config

ROWS, COLUMNS = 40, 20
"""Clients and classes that the table of a split has room for; --json has all of them."""

app = typer.Typer(help="Fetch and list data sets, and split them between clients.", no_args_is_help=True)


@app.command()
def fetch(
    name: Annotated[str, typer.Argument(help=f"One of {', '.join(CATALOGUE)}.", autocompletion=among(CATALOGUE))],
    source: Annotated[
        str | None,
        typer.Option("--from", metavar="DIR_OR_URL", help="Take it from a folder, an archive or an address of yours."),
    ] = None,
) -> None:
    """Download a data set into the cache and verify its checksums.

    Example: pipecycle data fetch cifar10"""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        shown: dict[str, TaskID] = {}

        def progress(file: str, done: int, total: int) -> None:
            if file not in shown:
                shown[file] = bars.add_task(file, total=total or None)
            bars.update(shown[file], completed=done, total=total or None)

        folder = fetch_set(name, source, progress)
    typer.echo(f"{name}: {folder}" if folder else f"{name}: {find(name).about}, nothing to fetch")


@app.command("list")
def list_() -> None:
    """List the data sets known by name, and say which are in the cache."""
    table = Table("name", "what", "cached", "size", box=None)
    for entry in CATALOGUE.values():
        if not entry.files:
            table.add_row(entry.name, entry.about, "built in", "")
        elif entry.cached():
            table.add_row(entry.name, entry.about, "yes", decimal(entry.stored()))
        else:
            table.add_row(entry.name, entry.about, "no", f"{decimal(entry.size)} to fetch")
    Console().print(table)
    typer.echo(f"cache: {root()}")


@app.command("split")
def split_(
    data: Annotated[
        str, typer.Argument(help="A data set's name or an .npz file.", autocompletion=among(CATALOGUE, ".npz"))
    ],
    clients: Annotated[int, typer.Option(help="How many clients share it.")] = 100,
    alpha: Annotated[
        str | None, typer.Option(help="Dirichlet concentration of the labels, or iid. \\[default: iid]")
    ] = None,
    samples: Annotated[
        int | None, typer.Option(help="Samples per client. \\[default: min(300, all / clients)]")
    ] = None,
    trial: Annotated[int, typer.Option(help="Picks every random choice.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Save to this .npz or .json file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Divide a data set between clients and show how many samples of each class they get.

    Example: pipecycle data split digits --clients 10 --alpha 0.3 --out split.json"""
    if out is not None:
        kind(out)
        writable(out)
    given = None if alpha is None else Config().changed({"alpha": alpha}).data.alpha
    task = load(data)
    split = drawn(task, clients, samples, given, trial)
    if out is not None:
        save(split, out)
    if as_json:
        facts = {"data": task.name, "clients": len(split), "test": len(split.test), "digest": split.digest()}
        typer.echo(json.dumps(facts | {"notes": list(split.notes), "counts": split.show(task)}))
    else:
        _print(task, split)


def _print(task: Task, split: Split) -> None:
    rows = split.show(task) if task.classes <= COLUMNS else _brief(task, split)
    table = Table(title=f"{task.name}: class counts", box=None)
    for column in rows[0]:
        table.add_column(column, justify="right")
    for row in rows[:ROWS]:
        table.add_row(*map(str, row.values()))
    console = Console(soft_wrap=True, highlight=False, markup=False)
    console.print(table)
    if len(rows) > ROWS:
        console.print(f"... and {len(rows) - ROWS:,} more clients")
    console.print(repr(split))
    console.print(f"digest {split.digest()}")


def _brief(task: Task, split: Split) -> list[dict[str, int]]:
    counts = split.counts(task)
    columns = split.sizes, (counts > 0).sum(axis=1), counts.argmax(axis=1), counts.max(axis=1)
    names = "client", "samples", "classes", "largest class", "its samples"
    return [
        dict(zip(names, (client, *row), strict=True))
        for client, row in enumerate(zip(*(column.tolist() for column in columns), strict=True))
    ]
