"""`pipecycle report`, `pipecycle figures`, `pipecycle tables`."""

from __future__ import annotations

import json
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from pipecycle.errors import InputError
from pipecycle.files import reason, writable, writable_folder, write
from pipecycle.report.tables import check_target, summary_rows
from pipecycle.report.tables import tables as make_tables
from pipecycle.runs.records import load
from pipecycle.screen import progress, screen

Runs = Annotated[
    list[Path], typer.Argument(help="Folders of runs, folders that hold such, or saved schedules.", show_default=False)
]
Target = Annotated[
    float | None,
    typer.Option(help="Accuracy in percent to ask the energy for; nine tenths of the best if not given."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object about what was written.")]


def report(
    runs: Runs,
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    target: Target = None,
    open_: Annotated[bool, typer.Option("--open", help="Show it in the browser.")] = False,
    as_json: Json = False,
) -> None:
    """Runs as one self-contained HTML page: what was compared, what came out, and why.

    Example: pipecycle report runs/* --out report.html --target 85"""
    from pipecycle.report.page import page

    check_target(target)
    writable(out)
    groups = load(runs)
    with progress() as bar:
        task = bar.add_task("drawing", total=len(groups))
        text = page(groups, target, step=lambda: bar.advance(task))
    write(out, text)
    count = sum(len(group.records) for group in groups)
    if as_json:
        rows = summary_rows(groups, target)
        print(json.dumps({"out": str(out), "bytes": len(text.encode()), "runs": count, "rows": rows}))
    else:
        size = len(text.encode()) / 1e6
        screen().print(f"{out}: {count} run{'s' * (count != 1)}, {size:.1f} MB", highlight=False, soft_wrap=True)
    if open_:
        webbrowser.open(out.resolve().as_uri())


def figures(
    runs: Runs,
    out: Annotated[Path, typer.Option(help="The folder to write to.")] = Path("figures"),
    formats: Annotated[
        str, typer.Option("--format", metavar="LIST", help="Any of png, pdf and svg, separated by commas.")
    ] = "png,pdf",
    target: Target = None,
    as_json: Json = False,
) -> None:
    """Runs as figures for a paper: accuracy, energy, pipelines, batteries, participation.

    Example: pipecycle figures runs/* --out figures --format pdf,svg"""
    from pipecycle.report import figures as drawing

    kinds = [kind.strip().lower() for kind in formats.split(",") if kind.strip()]
    for kind in kinds or [formats]:
        if kind not in drawing.FORMATS:
            raise InputError(f"--format {kind}: needs any of {', '.join(drawing.FORMATS)}")
    check_target(target)
    writable_folder(out)
    groups = load(runs)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{out}: cannot be written ({reason(error)})") from None
    made, left = [], {}
    with drawing.figure_style(), progress() as bar:
        for name, draw in bar.track(drawing.figures(groups, target).items(), description="drawing"):
            try:
                figure = draw()
            except InputError as error:  # battery levels that cannot be replayed
                left[name] = str(error)
                continue
            for kind in kinds:
                path = out / f"{name}.{kind}"
                write(path, drawing.save(figure, kind))
                made.append(str(path))
    if as_json:
        print(json.dumps({"files": made, "left_out": left}))
        return
    console = screen()
    console.print(f"{out}: {len(made)} files", highlight=False, soft_wrap=True)
    for name, why in left.items():
        console.print(f"{name} was left out: {why}", highlight=False, markup=False, soft_wrap=True)


def tables(
    runs: Runs,
    kind: Annotated[str, typer.Option("--format", help="markdown, latex or json.")] = "markdown",
    target: Target = None,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
) -> None:
    """Runs as tables: accuracy at the budget, energy to a target, energy by purpose, fairness, lag, coverage.

    Example: pipecycle tables runs/* --format latex > tables.tex"""
    from pipecycle.report.markup import latex, markdown

    kind = "json" if as_json else kind
    if kind not in ("markdown", "latex", "json"):
        raise InputError(f"--format {kind}: needs one of markdown, latex, json")
    check_target(target)
    groups = load(runs)
    if kind == "json":
        print(json.dumps({"rows": summary_rows(groups, target)}))
    else:
        print((latex if kind == "latex" else markdown)(make_tables(groups, target)), end="")
