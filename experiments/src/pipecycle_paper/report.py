"""`pipecycle reproduce --report`: everything that can be read, from the results alone, on a CPU in seconds."""

from __future__ import annotations

import base64
import csv
import html
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from attrs import evolve, frozen

from pipecycle.files import using, write
from pipecycle.report.figures import figure_style, save
from pipecycle.report.markup import html_table, items, latex, markdown
from pipecycle.report.page import asset, document
from pipecycle.report.tables import TextTable
from pipecycle.runs.parquet import Results, code, load
from pipecycle_paper import prose, rivals
from pipecycle_paper.claims import claims_table, examine
from pipecycle_paper.drawing import figures
from pipecycle_paper.energy import ratios
from pipecycle_paper.goals import contest_table, goals
from pipecycle_paper.grid import grid_of
from pipecycle_paper.paper import DISTRIBUTIONS
from pipecycle_paper.reasons import ABOUT, counted, reasons
from pipecycle_paper.regimes import accuracies, candidates, summary
from pipecycle_paper.tables import tables

TITLE = "The paper's evaluation, run again"
VERDICTS = {
    "holds": "good",
    "holds, but within the error": "fair",
    "does not hold, but within the error": "fair",
    "does not hold": "bad",
    "cannot be tested": "quiet",
}
OPTIONAL = ("Runs that fell apart", "Other rivals", "What the precision costs")
"""Sections that are left out where there is nothing to show."""


@frozen
class Picture:
    """A figure as files and with its caption."""

    name: str
    caption: str
    png: bytes
    pdf: bytes


@frozen
class Section:
    """A heading, what to know about it, and its figures and tables by name."""

    title: str
    text: str
    figures: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    folded: bool = False


def write_report(out: Path) -> list[Path]:
    """Tables, figures, claims and pages beside `results.parquet` in a folder; the files that were written."""
    grid = grid_of(load(out / "results.parquet"))
    examined = examine(grid)
    tried = _beside(out, "regimes")
    regimes = [] if tried is None else candidates(tried)
    every = {"claims": claims_table(grid, examined), **tables(grid), "how": prose.provenance(grid)}
    every |= {"goals": contest_table(grid), "differences": reasons(grid)}
    every |= {f"energy_ratio_{where.replace('-', '')}": ratios(grid, where) for where in DISTRIBUTIONS}
    every |= {"regimes": summary(regimes), "regimes_cells": accuracies(regimes)} if regimes else {}
    others = _beside(out, "rivals")
    beside = None if others is None else rivals.table(grid, others)
    every |= {"rivals": beside} if beside is not None else {}
    pictures = _pictures(figures(grid))
    head = _Head(
        prose.lead(grid),
        [goal.sentence for goal in goals(grid)],
        [*prose.outcome(grid, examined), counted(grid)],
        [f"{text[0].upper()}{text[1:]}." for text in prose.differences(grid)],
    )
    sections = _sections(every, prose.regime(grid, regimes), code(grid.sources))
    files: dict[str, bytes | str] = {
        "report.html": _page(head, sections, every, pictures),
        "report.md": _markdown(head, sections, every, pictures),
        "claims.md": f"# Claims of the paper\n\n{prose.ERRORS}\n\n{markdown([every['claims']])}",
    }
    for name, table in every.items():
        if name != "claims":
            files[f"tables/{name}.md"] = markdown([table])
        files[f"tables/{name}.csv"] = _csv(table)
        files[f"tables/{name}.tex"] = latex([table])
    for picture in pictures.values():
        files[f"figures/{picture.name}.png"], files[f"figures/{picture.name}.pdf"] = picture.png, picture.pdf
    made = []
    for name, data in files.items():
        path = out / name
        with using(path.parent, "written"):
            path.parent.mkdir(parents=True, exist_ok=True)
        write(path, data)
        made.append(path)
    return made


def _beside(out: Path, experiment: str) -> Results | None:
    """The results of another experiment, if they stand in a folder of its name beside this one."""
    path = out.resolve().parent / experiment / "results.parquet"
    return load(path) if path.exists() else None


@frozen
class _Head:
    lead: str
    goals: Sequence[str]
    outcome: Sequence[str]
    differences: Sequence[str]


def _sections(every: Mapping[str, TextTable], regime: str, made: str) -> list[Section]:
    both = ("iid", "noniid")
    sections = [
        Section("Tables I and II", prose.TABLES, ("ours_and_paper",), tuple(f"accuracy_{where}" for where in both)),
        Section("What still differs", ABOUT, tables=("differences",)),
        Section("Claims", prose.ERRORS, tables=("claims",)),
        Section(
            "PipeCycle+ against the best of the paper's schemes",
            "One G for all columns, the most accurate on trial 0; judged on the other trials, in each column against "
            "the scheme of the paper (PipeCycle among them) that is best there on those very trials.",
            tables=("goals",),
        ),
        Section("The training regime", regime, tables=("regimes", "regimes_cells")),
        Section(
            "The best checkpoint instead",
            "“Achieved within the budget” may also mean the best checkpoint until then. Taking a maximum of a noisy "
            "curve on the test set flatters everybody, and the noisy ones most.",
            tables=tuple(f"best_{where}" for where in both),
            folded=True,
        ),
        Section(
            "With the paper's early stopping",
            "A run stops when its accuracy has moved by less than one point over ten checkpoints. As printed, the rule "
            "may stop a run on the plateau at the start; armed late, it waits for 15 % or a fifth of the horizon.",
            tables=tuple(f"stopped_{kind}_{where}" for where in both for kind in ("literal", "late")),
            folded=True,
        ),
        Section(
            "Runs that fell apart",
            "Plain SGD with a constant step on a network that has fitted its clients' samples sooner or later meets a "
            "rare outlier and diverges within a few checkpoints. It is not bfloat16: without augmentation such runs "
            "diverge in float32 too, rounding only decides when. At the budget such a run counts as a guess, and its "
            "cell has a large spread; the paper's early stopping, which we do not apply in the tables, ends it before.",
            tables=("fell_apart",),
        ),
        Section(
            "Accuracy over slots and over energy",
            "The paper's three figures.",
            ("accuracy_slots_iid", "accuracy_slots_noniid", "accuracy_energy"),
        ),
        Section(
            "Energy to reach an accuracy",
            "Up to the first checkpoint at or above it, within the budget; a run that never gets there counts with "
            "what it spent. As a multiple of the energy of the best baseline at its best G: “never” where fewer than "
            "half of the trials get there, “alone” where no baseline does. Then in thousand units, with how many "
            "trials get there.",
            tables=tuple(f"energy_{what}_{where}" for what in ("ratio", "to_target") for where in both),
        ),
        Section("Other rivals", rivals.ABOUT, tables=("rivals",)),
        Section(
            "Why: chains, coverage and lag",
            "Chains of groups that never exchange anything learn only from the clients they meet; updates that come in "
            "many versions late push a shared model about. The rule says how many clients a chain meets when energy is "
            "plentiful.",
            ("coverage_lag",),
            tuple(f"coverage_{where}" for where in both),
        ),
        Section("Clients in isolation", "The paper says about 10 % (Section VI-A).", tables=("isolated",)),
        Section(
            "Sensitivity: what the paper leaves open",
            "Our choices varied around cells of the tables; “the cell” marks the choice of the tables. Differences are "
            "taken trial by trial, over the trials that both have.",
            tables=tuple(name for name in every if name.startswith("sensitivity_")),
        ),
        Section(
            "What the precision costs",
            "The same runs with products of a higher precision on the GPU; weights are float32 in all of them. Runs "
            "part after a few slots, as they would with another seed, so that single differences are mostly chance.",
            tables=("precision",),
        ),
        Section("How it was made", made, tables=("how",)),
    ]
    known = [evolve(section, tables=tuple(name for name in section.tables if name in every)) for section in sections]
    return [section for section in known if section.title not in OPTIONAL or section.tables]


def _pictures(drawn: Mapping[str, tuple[str, object]]) -> dict[str, Picture]:
    out = {}
    with figure_style():
        for name, (caption, draw) in drawn.items():
            figure = draw()  # type: ignore[operator]
            figure.draw_without_rendering()  # lays it out, once for both files
            figure.set_layout_engine("none")
            out[name] = Picture(name, caption, save(figure, "png", dpi=200), save(figure, "pdf"))
    return out


def _csv(table: TextTable) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([table.head, *table.cells])
    return text.getvalue()


def _markdown(
    head: _Head, sections: Sequence[Section], every: Mapping[str, TextTable], pictures: Mapping[str, Picture]
) -> str:
    parts = [f"# {TITLE}", head.lead, "## What came out", "\n".join(f"- {text}" for text in head.outcome)]
    parts += ["## Goals set before the runs", "\n".join(f"- {text}" for text in head.goals)]
    parts += ["## What differs from the paper's protocol", "\n".join(f"- {text}" for text in head.differences)]
    for section in sections:
        parts += [f"## {section.title}", section.text] if section.text else [f"## {section.title}"]
        for name in section.figures:
            if name in pictures:
                parts += [f"![{pictures[name].caption}](figures/{name}.png)", f"*{pictures[name].caption}*"]
        parts += [markdown([every[name]]).rstrip("\n") for name in section.tables]
    return "\n\n".join(parts) + "\n"


def _page(
    head: _Head, sections: Sequence[Section], every: Mapping[str, TextTable], pictures: Mapping[str, Picture]
) -> str:
    body, links = [], []
    for number, section in enumerate(sections, 1):
        links.append(f'<a href="#s{number}">{html.escape(section.title)}</a>')
        inner = [_image(pictures[name]) for name in section.figures if name in pictures]
        inner += [
            f'<div class="t-{name.split("_")[0]}">{_whole(html_table(every[name], VERDICTS))}</div>'
            for name in section.tables
        ]
        content = "".join(inner)
        if section.folded:
            content = f'<details class="wide"><summary>Show {len(section.tables)} tables</summary>{content}</details>'
        text = f'<p class="caption">{html.escape(section.text)}</p>' if section.text else ""
        body.append(
            f'<section aria-labelledby="s{number}"><h2 id="s{number}">{html.escape(section.title)}</h2>{text}{content}'
            "</section>"
        )
    facts = {
        "title": html.escape(TITLE),
        "lead": html.escape(head.lead),
        "goals": items(head.goals),
        "outcome": items(head.outcome),
        "differences": items(head.differences),
        "links": "".join(links),
        "sections": "".join(body),
        "css": asset("page.css") + asset("paper.css", __package__),
        "policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:",
    }
    return document(asset("paper.html", __package__), facts)


def _whole(text: str) -> str:
    """Keeps `G = 2` on one line."""
    return text.replace(" = ", "\u00a0=\u00a0")


def _image(picture: Picture) -> str:
    data, caption = base64.b64encode(picture.png).decode(), html.escape(picture.caption)
    return (
        f'<figure class="picture"><img src="data:image/png;base64,{data}" alt="{caption}">'
        f"<figcaption>{caption}</figcaption></figure>"
    )
