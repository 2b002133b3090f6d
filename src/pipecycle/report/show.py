"""How schedules, histories and comparisons look: as text, in a notebook, as a figure, as a page.

All three are groups of runs, one or more, so that they share their tables, figures and page."""

from __future__ import annotations

import base64
import html as markup
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipecycle.errors import InputError, shown
from pipecycle.files import writable, write
from pipecycle.policies.registry import nearest
from pipecycle.report import prose
from pipecycle.report.markup import html_table, items, markdown
from pipecycle.report.picture import picture
from pipecycle.report.tables import check_page, check_target, summary_rows, tables
from pipecycle.runs.comparison import Comparison
from pipecycle.runs.records import Group
from pipecycle.schedule.schedule import Schedule
from pipecycle.schedule.summary import sentences, summarise, warnings
from pipecycle.train.history import History
from pipecycle.words import number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

What = Schedule | History | Comparison

_STYLE = """<style>
.pipecycle { font: 14px/1.45 system-ui, sans-serif; max-width: 60rem }
.pipecycle h4 { margin: .4em 0; font-size: 1.05em; font-weight: 600 }
.pipecycle ul { margin: .3em 0; padding-left: 1.3em }
.pipecycle img { max-width: 100%; background: white; margin: .3em 0 }
.pipecycle .scroll { overflow-x: auto; margin: .5em 0 }
.pipecycle table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 13px; margin: 0 }
.pipecycle caption { text-align: left; font-weight: 600; padding: .2em 0; white-space: nowrap }
.pipecycle th, .pipecycle td { padding: .15em .9em .15em 0; text-align: right; vertical-align: top;
  border-bottom: 1px solid #8883 }
.pipecycle tr > :first-child, .pipecycle .facts td { text-align: left } .pipecycle th { font-weight: 600 }
.pipecycle .note { border-left: 3px solid #E69F00; padding-left: .6em; margin: .4em 0 }
</style>"""


def groups_of(what: What) -> list[Group]:
    """What the tables, figures and the page are made of."""
    return list((what if isinstance(what, Comparison) else Comparison.of([what])).groups)


def title(what: What) -> str:
    """One line."""
    if isinstance(what, Schedule):
        given = ", ".join(f"{key} {value}" for key, value in what.meta["settings"].items() if value is not None)
        return f"{what.policy} ({given})" if given else what.policy
    if isinstance(what, Comparison):
        return prose.compared(what.groups)
    if not what.rows:
        return "nothing has been evaluated yet"
    policy = "a live run" if what.schedule is None else f"{what.schedule.policy}, trial {what.schedule.trial}"
    return f"{policy}: {what.final.accuracy:.1f} % after {number(what.final.slot)} slots"


def facts(what: Schedule | History) -> dict[str, str]:
    """What there is to say, by name."""
    if isinstance(what, Schedule):
        return sentences(summarise(what))
    if not what.rows:
        return {}
    words = {"finished": "at the end of its schedule", "early": "early, saturated", "diverged": "because it diverged"}
    last, budget, best = what.final, what.at_budget, max(what.rows, key=lambda row: row.accuracy)
    said = {"ended": words.get(what.ended or "", "not yet")}
    if budget.budget and budget.slot < last.slot:  # otherwise the budget was not spent
        said["at the budget"] = f"{budget.accuracy:.1f} % with {number(round(budget.energy))} units"
    said |= {
        "at the end": f"{last.accuracy:.1f} % (loss {last.loss:.3g}) with {number(round(last.energy))} units",
        "best": f"{best.accuracy:.1f} % after {number(best.slot)} slots and {number(round(best.energy))} units",
        "evaluations": number(len(what.rows)),
    }
    if last.clients_accuracy is not None:
        said["clients' own models"] = f"{last.clients_accuracy:.1f} % on average"
    return said


def notes(what: What) -> list[str]:
    """What a reader should know before using it."""
    if isinstance(what, Comparison):
        return prose.notes(what.groups)
    plan = what if isinstance(what, Schedule) else what.schedule
    return [] if plan is None else warnings(summarise(plan))


def summary(what: What) -> str:
    """Text for a terminal."""
    lines = [title(what)]
    if isinstance(what, Comparison):
        lines += [f"- {said}" for said in prose.outcome(what.groups, summary_rows(what.groups))]
        lines += ["", markdown(tables(what.groups)[:2])]
    else:
        lines += [picture(what).plain] if isinstance(what, Schedule) else []
        said = facts(what)
        width = max(map(len, said), default=0)
        lines += [f"{name:<{width}}  {text}" for name, text in said.items()]
    return "\n".join([*lines, *(f"Note: {note}" for note in notes(what))])


def html(what: What) -> str:
    """What a notebook shows: a heading, a picture, tables and notes."""
    heading = "p" if isinstance(what, Comparison) else "h4"
    parts = [_STYLE, f"<{heading}>{markup.escape(title(what))}</{heading}>"]
    if isinstance(what, Comparison):
        said = prose.outcome(what.groups, summary_rows(what.groups))
        parts.append(f"<ul>{items(said)}</ul>")
    parts.append(_image(what))
    if isinstance(what, Comparison):
        parts += [html_table(table) for table in tables(what.groups)[:2]]
    else:
        rows = "".join(
            f"<tr><th>{markup.escape(name)}</th><td>{markup.escape(text)}</td></tr>"
            for name, text in facts(what).items()
        )
        parts.append(f'<div class="scroll"><table class="facts">{rows}</table></div>')
    parts += [f'<p class="note">{markup.escape(note)}</p>' for note in notes(what)]
    return f'<div class="pipecycle">{"".join(parts)}</div>'


def _image(what: What) -> str:
    """The usual figure, where there is one to draw and something to draw it with."""
    if isinstance(what, History) and (what.schedule is None or not what.rows):
        return ""
    try:
        figure = plot(what)
    except InputError:  # matplotlib is missing
        return ""
    png, size = _png(figure)
    data = base64.b64encode(png).decode()
    return f'<img width="{size["width"]}" alt="{markup.escape(title(what))}" src="data:image/png;base64,{data}">'


def _png(figure: Figure) -> tuple[bytes, dict[str, int]]:
    """A figure in twice the pixels that it takes up, and how many these are."""
    from pipecycle.report.figures import figure_style, save

    width, height = figure.get_size_inches()
    with figure_style():
        return save(figure, "png", dpi=192), {"width": round(96 * width), "height": round(96 * height)}


def plot(what: What, kind: str | None = None) -> Figure:
    """A figure; by default the pipeline of a schedule, and accuracy of whatever was trained."""
    from pipecycle.report.figures import figure_style, figures

    groups = groups_of(what)
    with figure_style():
        known: dict[str, Any] = dict(figures(groups))
        if len(groups) == 1:  # then it need not say whose
            known = {name.split("_")[0] if name.startswith(_WHOSE) else name: draw for name, draw in known.items()}
        name = _usual(what, groups) if kind is None else kind
        if name not in known:
            raise InputError(f"plot {shown(name)!r}: {nearest(name, known)}")
        figure: Figure = known[name]()
    # A notebook that has not imported pyplot knows no way to show a figure.
    figure._repr_png_ = partial(_png, figure)  # type: ignore[attr-defined]
    return figure


_WHOSE = ("pipeline_", "battery_", "mixing_")


def _usual(what: What, groups: Sequence[Group]) -> str:
    if isinstance(what, Schedule):
        return "pipeline"
    return "accuracy" if any(group.curves for group in groups) else "energy_by_purpose"


def report(what: What, path: str | Path, target: float | None = None) -> Path:
    """Write the page."""
    from pipecycle.report.page import page

    path = Path(path)
    check_target(target)
    check_page(path)
    writable(path)
    write(path, page(groups_of(what), target))
    return path
