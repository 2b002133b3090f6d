"""One self-contained HTML page: nothing is fetched, and the reader need not have been there."""

from __future__ import annotations

import html
import json
import shlex
from collections.abc import Mapping, Sequence
from importlib.resources import files
from string import Template
from typing import Any

import attrs

from pipecycle import __version__
from pipecycle.errors import InputError
from pipecycle.report import prose
from pipecycle.report.alternatives import alternatives
from pipecycle.report.markup import html_table, items
from pipecycle.report.payload import Step, payload
from pipecycle.report.styles import proper
from pipecycle.report.tables import TextTable, default_target, judges, named, summary_rows, tables, when
from pipecycle.runs.config import SECTIONS
from pipecycle.runs.records import Group
from pipecycle.words import listed, number


def page(
    groups: Sequence[Group],
    target: float | None = None,
    *,
    references: Mapping[str, float] | None = None,
    captions: Mapping[str, str] | None = None,
    step: Step = lambda: None,
) -> str:
    """The report as HTML.  `references` are accuracies to draw as lines (centralised training, say), and `captions`
    say what they are."""
    try:
        from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]
    except ImportError:
        raise InputError("the report needs plotly, which is not installed (pip install plotly)") from None
    groups = named(groups)
    target = default_target(groups) if target is None else target
    rows = summary_rows(groups, target)
    data = payload(groups, rows, references or {}, step)
    trained = any(group.curves for group in groups)
    words = alternatives(groups, rows, data)
    seen = _seen(data, trained)
    facts = {
        "title": html.escape(_title(groups)),
        "compared": html.escape(prose.compared(groups)),
        "outcome": items(prose.outcome(groups, rows)),
        "notes": _notes(prose.notes(groups)),
        "switches": _switches(groups),
        "contents": "".join(
            f'<a href="#h-{name}">{title}</a>' for name, title in SECTIONS_OF_PAGE.items() if seen[name]
        ),
        "when": when(groups),
        "judges": judges(groups),
        "axis_note": " The axis shows where the lines differ; a double click shows all." if len(groups) > 1 else "",
        "difference_note": DIFFERENCE if seen["differences"] else "",
        "target_note": TARGET if trained and len(groups) > 1 else "",
        "several": "" if len(groups) > 1 else " hidden",
        "compares": "" if seen["differences"] else " hidden",
        "classes": "" if seen["classes"] else " hidden",
        "tables": "".join(html_table(table) for table in tables(groups, target)),
        **_classes(data),
        "configuration": _configuration(groups),
        "runs": _runs(groups),
        "trained": "" if trained else " hidden",
        "trials": _trials(groups),
        "references": html.escape("".join(f" {name}: {text}." for name, text in (captions or {}).items())),
        "policy": "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:",
        "css": asset("page.css"),
        "js": f'"use strict";\n{{\n{asset("plots.js")}{asset("page.js")}}}',
        # A closing tag inside a script would end it early.
        "plotly": get_plotlyjs().replace("</script", "<\\/script"),
        "data": inert_json(data),
    }
    facts |= {f"alt_{name}": html.escape(text) for name, text in words.items()}
    return document(asset("page.html"), facts)


def document(body: str, facts: Mapping[str, str]) -> str:
    """A page that fetches nothing, with the head that all our pages have: `title`, `css` and its security `policy`."""
    return Template(asset("head.html") + body).substitute(facts, version=__version__)


def inert_json(values: Any) -> str:
    """JSON within a page: no tag in it can end early."""
    return json.dumps(values, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


DIFFERENCE = (
    " The difference is taken trial by trial against the scheduler with the highest mean; its interval is Student's t, "
    "and is not given where all trials differ by the same."
)
TARGET = (
    "Energy up to the first evaluation at or above the target: marks are the trials that reached it, bars their means "
    "where all did."
)
SECTIONS_OF_PAGE = {
    "differences": "Differences",
    "accuracy": "Accuracy",
    "tables": "In figures",
    "classes": "Classes and clients",
    "cost": "Energy",
    "pipeline": "Pipeline",
    "relay": "Relay",
    "battery": "Batteries",
    "spread": "Participation",
    "config": "Configuration",
}


def _seen(data: dict[str, Any], trained: bool) -> dict[str, bool]:
    """Which sections have something to show."""
    known = any(panel["classes"] for panel in data["panels"]) or "z" in data["holdings"]
    special = {"differences": bool(data["differences"]), "accuracy": trained, "classes": known}
    return {name: special.get(name, True) for name in SECTIONS_OF_PAGE}


def _classes(data: dict[str, Any]) -> dict[str, str]:
    """What is known of classes and clients, and why the rest is not."""
    held = data["holdings"]
    shown = {
        "by_class": any(panel["classes"] for panel in data["panels"]),
        "by_client": any(panel["clients"]["x"] for panel in data["panels"]),
        "holdings": "z" in held,
    }
    about = "" if "reason" in held else f"The classes of every client's training samples, in trial {held['trial']}"
    same = "" if "reason" in held or held["same"] else " of the first scheduler; others met other data"
    why = held.get("reason", "")
    facts = {name: "" if known else " hidden" for name, known in shown.items()}
    reason = f'<p class="reason">Who holds which classes is not known here: {html.escape(why)}.</p>' if why else ""
    return facts | {"about_holdings": f"{about}{same}.", "reason_holdings": reason}


def asset(name: str, package: str = "pipecycle.report") -> str:
    return (files(package) / "assets" / name).read_text()


def _title(groups: Sequence[Group]) -> str:
    names = list(dict.fromkeys(proper(group.policy, group.policy) for group in groups))
    if len(names) == 1:
        return f"{names[0]} on harvested energy"
    return f"{len(names)} schedulers on harvested energy" if len(names) > 3 else f"{listed(names)} compared"


def _trials(groups: Sequence[Group]) -> str:
    trials = sorted({group.example.trial for group in groups})
    return f"trial {trials[0]}" if len(trials) == 1 else "the first trial of each"


def _notes(texts: Sequence[str]) -> str:
    inner = f"<summary>Worth knowing ({len(texts)})</summary><ul>{items(texts)}</ul>"
    return f'<details class="notes" open>{inner}</details>' if texts else ""


def _switches(groups: Sequence[Group]) -> str:
    return "".join(
        f'<label class="switch"><input type="checkbox" checked data-group="{place}">'
        f'<svg class="swatch" data-swatch="{place}" width="34" height="12" aria-hidden="true"></svg>'
        f"<span>{html.escape(group.label)}</span></label>"
        for place, group in enumerate(groups)
    )


def _configuration(groups: Sequence[Group]) -> str:
    """What all runs share, then what differs."""
    same = prose.common(groups)
    notes = {
        f"{section}.{field.name}": str(field.metadata.get("note", ""))
        for section, kind in SECTIONS.items()
        for field in attrs.fields(kind)
    }
    shared = tuple((key, _value(value), notes.get(key, "")) for key, value in same.items())
    parts = [html_table(TextTable("The same for all", ("Field", "Value", "Meaning"), shared))] if shared else []
    keys = list(dict.fromkeys(key for group in groups for key in group.facts if key not in same))
    if len(groups) > 1 and keys:
        cells = tuple(
            (key, *(_value(group.facts[key]) if key in group.facts else "" for group in groups)) for key in keys
        )
        parts.append(html_table(TextTable("What differs", ("Field", *(group.label for group in groups)), cells)))
    files = "".join(
        f"<h3>{html.escape(group.label)}, trial {group.example.trial}</h3>"
        f'<pre tabindex="0">{html.escape(group.example.config.text())}</pre>'
        for group in groups
        if group.example.config is not None
    )
    if files:
        parts.append(f"<details><summary>Every config.toml</summary>{files}</details>")
        parts.append(_studio(groups))
    return "".join(parts)


def _studio(groups: Sequence[Group]) -> str:
    """The command that opens a run's settings to play with; it does not tell where on a machine the folder is."""
    path = next((group.example.path for group in groups if group.example.config and group.example.path), None)
    if path is None:
        return ""
    command = html.escape(shlex.join(["pipecycle", "studio", path.name if path.is_absolute() else str(path)]))
    return f'<p class="caption">To change the settings of a run and see its schedule follow: <code>{command}</code></p>'


def _value(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "none", True: "true", False: "false"}[value]
    return f"{value:,.10g}" if isinstance(value, int | float) else str(value)


def _runs(groups: Sequence[Group]) -> str:
    cells = []
    for group in groups:
        for record in group.records:
            metrics = record.metrics
            reached = "-" if metrics is None else f"{metrics.accuracy[metrics.at_budget]:.1f}"
            spent = number(round(record.figures["energy"]["spent"]))
            cells.append((group.label, str(record.trial), record.state, reached, spent, record.name))
    head = ("Scheduler", "Trial", "State", "Accuracy (%)", "Spent (units)", "Folder")
    return html_table(TextTable("Every run", head, tuple(cells)))
