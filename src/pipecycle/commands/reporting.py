"""`pipecycle report`, `pipecycle figures`, `pipecycle tables`."""

from __future__ import annotations

import json
import webbrowser
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from pipecycle.commands.fields import among
from pipecycle.errors import InputError
from pipecycle.files import using, writable, writable_folder, write
from pipecycle.report.tables import check_page, check_target, named, summary_rows
from pipecycle.report.tables import tables as make_tables
from pipecycle.runs.records import Group, load
from pipecycle.screen import progress, screen
from pipecycle.words import plural

Runs = Annotated[
    list[Path],
    typer.Argument(help="Run folders, folders that contain run folders, or saved schedules.", show_default=False),
]
Target = Annotated[float | None, typer.Option(help="Target accuracy in percent; nine tenths of the best if not given.")]
Only = Annotated[str | None, typer.Option(metavar="NAMES", help="Only these, by name or pattern, separated by commas.")]
Labels = Annotated[
    list[str] | None,
    typer.Option("--label", metavar="NAME=TEXT", help="What to call a scheduler; may be given several times."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object about what was written.")]
KINDS = ("markdown", "latex", "json")


def report(
    runs: Runs,
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    target: Target = None,
    open_: Annotated[bool, typer.Option("--open", help="Show it in the browser.")] = False,
    as_json: Json = False,
) -> None:
    """Write runs as one HTML page that needs no other file: what was compared, what came out, and why.

    Example: pipecycle report runs/* --out report.html --target 85"""
    from pipecycle.report.page import page

    check_target(target)
    check_page(out)
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
        screen().print(f"{out}: {plural(count, 'run')}, {size:.1f} MB", soft_wrap=True)
    if open_:
        webbrowser.open(out.resolve().as_uri())


def figures(
    runs: Runs,
    out: Annotated[Path, typer.Option(help="The folder to write to.")] = Path("figures"),
    formats: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="LIST",
            help="Any of png, pdf and svg, separated by commas.",
            autocompletion=among(("png", "pdf", "svg")),
        ),
    ] = "png,pdf",
    only: Only = None,
    labels: Labels = None,
    width: Annotated[
        float | None, typer.Option(help="Width in inches, such as 3.5 for a column of a paper; text keeps its size.")
    ] = None,
    target: Target = None,
    as_json: Json = False,
) -> None:
    """Draw figures for a paper: differences, accuracy, classes, energy, pipelines, batteries, participation.

    Example: pipecycle figures runs/* --only accuracy,differences --width 3.5 --label 'pipecycle+=Ours'"""
    from pipecycle.report import figures as drawing

    kinds = [kind.strip().lower() for kind in formats.split(",") if kind.strip()]
    for kind in kinds or [formats]:
        if kind not in drawing.FORMATS:
            raise InputError(f"--format {kind}: needs any of {', '.join(drawing.FORMATS)}")
    check_target(target)
    check_width(width)
    writable_folder(out)
    groups = load(runs)
    drawings = chosen(drawing.figures(groups, target, labels=names_of(labels, groups), width=width), only)
    with using(out, "written"):
        out.mkdir(parents=True, exist_ok=True)
    made, left = [], {}
    with drawing.figure_style(), progress() as bar:
        for name, draw in bar.track(drawings.items(), description="drawing"):
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
    console.print(f"{out}: {len(made)} files", soft_wrap=True)
    for name, why in left.items():
        console.print(f"{name} was left out: {why}", soft_wrap=True)


def tables(
    runs: Runs,
    kind: Annotated[
        str, typer.Option("--format", help="markdown, latex or json.", autocompletion=among(KINDS))
    ] = "markdown",
    only: Only = None,
    labels: Labels = None,
    width: Annotated[
        float | None, typer.Option(help="Width of LaTeX tables in inches; they get smaller type where they need it.")
    ] = None,
    target: Target = None,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
) -> None:
    """Print tables: accuracy, target (energy to reach it), energy (by purpose), sessions (fairness, lag, coverage).

    LaTeX tables need the package booktabs.

    Example: pipecycle tables runs/* --only accuracy --format latex > accuracy.tex"""
    from pipecycle.report.markup import Fit, latex, markdown

    kind = "json" if as_json else kind
    if kind not in KINDS:
        raise InputError(f"--format {kind}: needs one of {', '.join(KINDS)}")
    check_target(target)
    check_width(width)
    if width is not None and kind != "latex":
        raise InputError(f"--width {width:g}: is for --format latex, not {kind}")
    groups = load(runs)
    given = names_of(labels, groups)
    made = chosen({table.name: table for table in make_tables(named(groups, given), target)}, only)
    if kind == "json":
        print(json.dumps({"rows": summary_rows(named(groups, given) if given else groups, target)}))
    elif kind == "latex":
        print(latex(list(made.values()), width), end="")
        for table in made.values():
            if width is not None and (fit := Fit.of(table, width)).size is None:
                screen(stderr=True).print(f"{table.title}: {fit.excess}.")
    else:
        print(markdown(list(made.values())), end="")


T = TypeVar("T")


def chosen(every: Mapping[str, T], only: str | None) -> dict[str, T]:
    """Those that are asked for, in the order they were asked for."""
    if only is None:
        return dict(every)
    out: dict[str, T] = {}
    for pattern in (part.strip() for part in only.split(",")):
        names = [name for name in every if fnmatchcase(name, pattern)]
        if not names:
            raise InputError(f"--only {pattern}: needs any of {', '.join(every)}, or a pattern such as acc*")
        out |= {name: every[name] for name in names}
    return out


def names_of(labels: list[str] | None, groups: Sequence[Group]) -> dict[str, str]:
    """`--label` by scheduler, or by what tells its variants apart."""
    known = {name for group in groups for name in (group.policy, group.label)}
    out = {}
    for given in labels or []:
        name, equals, text = given.partition("=")
        while equals and name not in known and "=" in text:  # a variant's label may hold an equals sign itself
            more, _, text = text.partition("=")
            name = f"{name}={more}"
        if not equals or not text or name not in known:
            raise InputError(f"--label {given}: needs NAME=TEXT, the name any of {', '.join(sorted(known))}")
        out[name] = text
    return out


def check_width(width: float | None) -> None:
    if width is not None and not 1 <= width <= 40:
        raise InputError(f"--width {width:g}: needs inches, 1 to 40")
