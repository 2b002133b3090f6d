"""Tables as Markdown, LaTeX and HTML."""

from __future__ import annotations

import html
import re
import textwrap
from collections.abc import Mapping, Sequence
from itertools import pairwise

from attrs import frozen

from pipecycle.report.tables import TextTable

WIDE = 60
"""Letters in a cell from which on a table is prose: not padded, and aligned to the left."""
MANY = 9
"""Columns from which on a table is set in small type."""
SIZES = {"normalsize": 4.9, "small": 4.5, "footnotesize": 4.2, "scriptsize": 3.9, "tiny": 3.35}
"""Points that a letter of our tables takes on average, by the sizes of LaTeX in a document of 10 points."""


def markdown(tables: Sequence[TextTable]) -> str:
    parts = []
    for table in tables:
        cells = [[cell.replace("|", "\\|") for cell in line] for line in (table.head, *table.cells)]
        widths = [max(len(line[column]) for line in cells) for column in range(len(table.head))]
        rule = [":" + "-" * (widths[0] - 1), *("-" * (width - 1) + ":" for width in widths[1:])]
        if max(widths) > WIDE:
            widths, rule = [0] * len(widths), [":--"] * len(widths)
        lines = [_line(cells[0], widths), f"| {' | '.join(rule)} |", *(_line(line, widths) for line in cells[1:])]
        parts.append(f"**{table.title}**\n\n" + "\n".join(lines) + "\n")
    return "\n".join(parts)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [cells[0].ljust(widths[0])]
    padded += [cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True)]
    return f"| {' | '.join(padded)} |"


def latex(tables: Sequence[TextTable], width: float | None = None) -> str:
    """Tabulars with the rules of booktabs; `width` in inches makes them as wide as a column, in the largest type that
    fits.  If none does, a table is as wide as it needs in the smallest, and a comment says so."""
    parts = []
    for table in tables:
        note = f"% {table.title} (needs the package booktabs)"
        columns = [*zip(table.head, *table.cells, strict=True)]
        kinds = ["p{4cm}" if max(map(len, column)) > WIDE else "r" for column in columns]
        kinds[0] = kinds[0].replace("r", "l")
        begin, head, end = f"\\begin{{tabular}}{{{''.join(kinds)}}}", _tex(table.head), "\\end{tabular}"
        if width is not None:
            fit = Fit.of(table, width)
            head = _stacked(fit.heads, kinds)
            if fit.size is None:
                note += f"; {fit.excess}"
                begin = f"{{\\tiny\\setlength{{\\tabcolsep}}{{2pt}}%\n\\begin{{tabular}}{{@{{}}{''.join(kinds)}@{{}}}}"
                end = "\\end{tabular}}"
            else:
                begin = f"{{\\{fit.size}\\setlength{{\\tabcolsep}}{{0pt}}%\n\\begin{{tabular*}}{{{width:g}in}}"
                begin += f"{{@{{\\extracolsep{{\\fill}}}}{''.join(kinds)}@{{}}}}"
                end = "\\end{tabular*}}"
        lines = [note, begin, "\\toprule", head, "\\midrule", *map(_tex, table.cells), "\\bottomrule", end]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


@frozen
class Fit:
    """How a LaTeX table gets into a width."""

    heads: Sequence[Sequence[str]]
    """The lines of every head."""
    size: str | None
    """The largest type in which it fits; None if it fits in none."""
    excess: str
    """What to say if it fits in none."""

    @staticmethod
    def of(table: TextTable, width: float) -> Fit:
        """`width` is in inches."""
        columns = [*zip(table.head, *table.cells, strict=True)]
        heads = [_wrapped(head, column) for head, *column in columns]
        widths = [max(map(len, (*lines, *cells))) for lines, (_, *cells) in zip(heads, columns, strict=True)]
        letters = sum(widths) + len(widths) - 1  # with room for one between two columns
        size = next((size for size, points in SIZES.items() if letters * points <= width * 72.27), None)
        return Fit(heads, size, f"needs {letters * SIZES['tiny'] / 72.27:.1f} in, more than {width:g} in")


def html_table(table: TextTable, kinds: Mapping[str, str] | None = None) -> str:
    """`kinds` gives cells with a certain text a class."""
    known = kinds or {}
    parts = {first for first, after in pairwise(table.head) if table.head.count(first) == 1 < table.head.count(after)}
    first = [cells[0] for cells in table.cells]
    telling = len({*first}) == len(first) and not any(text.isdecimal() for text in first)

    # A narrow screen shows a row as a list.  There every cell needs the name of its column, so does a title that says
    # little by itself, and columns that come in sets begin a new line with each set.
    def cell(head: str, text: str) -> str:
        classes = " ".join(filter(None, (known.get(text), "part" if head in parts else None)))
        kind = f' class="{classes}"' if classes else ""
        return f'<td{kind} data-head="{html.escape(head)}">{_whole(text)}</td>'

    def row(cells: Sequence[str]) -> str:
        title = "" if telling else f' data-head="{html.escape(table.head[0])}"'
        rest = "".join(map(cell, table.head[1:], cells[1:]))
        return f'<tr><th scope="row"{title}>{html.escape(cells[0])}</th>{rest}</tr>'

    head = "".join(f'<th scope="col">{_whole(name).replace("/", "/<wbr>")}</th>' for name in table.head)
    body = "".join(map(row, table.cells))
    title = html.escape(table.title)
    longest = max((len(text) for cells in table.cells for text in cells), default=0)
    kind = " prose" if longest > WIDE else " many" if len(table.head) > MANY else ""
    return (
        f'<div class="scroll{kind}" tabindex="0" role="region" aria-label="{title}"><table><caption>{title}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _whole(text: str) -> str:
    """Text in HTML in which no figure is torn from what belongs to it."""
    whole = html.escape(text).replace(" %", "\u00a0%").replace(" ± ", "\u00a0±\u00a0")
    return re.sub(r"(?<=\d) of (?=\d)", "\u00a0of\u00a0", whole)


def items(texts: Sequence[str]) -> str:
    """The items of a list in HTML."""
    return "".join(f"<li>{html.escape(text)}</li>" for text in texts)


_SPECIAL = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$",
    "δ": r"$\delta$", "·": r"$\cdot$", "≥": r"$\geq$", "≤": r"$\leq$", "τ": r"$\tau$", "π": r"$\pi$",
    "†": r"$\dagger$", "“": "``", "”": "''",
}  # fmt: skip


def _tex(cells: Sequence[str]) -> str:
    return " & ".join(map(_escaped, cells)) + r" \\"


def _wrapped(head: str, column: Sequence[str]) -> list[str]:
    """A head in as many lines as keep its column as narrow as the cells below."""
    return textwrap.wrap(head, max([8, *map(len, column)]), break_long_words=False)


def _stacked(heads: Sequence[Sequence[str]], kinds: Sequence[str]) -> str:
    stacks = []
    for lines, kind in zip(heads, kinds, strict=True):
        rows = r" \\ ".join(map(_escaped, lines))
        stack = rf"\begin{{tabular}}[b]{{@{{}}{kind}@{{}}}}{rows}\end{{tabular}}"
        stacks.append(stack if len(lines) > 1 else rows)
    return " & ".join(stacks) + r" \\"


def _escaped(cell: str) -> str:
    escaped = "".join(_SPECIAL.get(letter, letter) for letter in cell)
    return "--" if cell == "-" else re.sub(r"(?<!\S)([+-])(?=\d)", r"$\1$", escaped)
