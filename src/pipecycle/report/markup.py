"""Tables as Markdown, LaTeX and HTML."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence

from pipecycle.report.tables import TextTable

WIDE = 60
"""Letters in a cell from which on a table is prose: not padded, and aligned to the left."""
MANY = 9
"""Columns from which on a table is set in small type."""


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
    """Tabulars with the rules of booktabs; `width` in inches stretches them to a column."""
    parts = []
    for table in tables:
        widths = [max(len(line[column]) for line in (table.head, *table.cells)) for column in range(len(table.head))]
        kinds = ["p{4cm}" if width > WIDE else "r" if place else "l" for place, width in enumerate(widths)]
        kind = "tabular" if width is None else "tabular*"
        begin = (
            f"{{{''.join(kinds)}}}"
            if width is None
            else f"{{{width:g}in}}{{@{{\\extracolsep{{\\fill}}}}{''.join(kinds)}}}"
        )
        lines = [f"% {table.title} (needs the package booktabs)", f"\\begin{{{kind}}}{begin}", "\\toprule"]
        lines += [_tex(table.head), "\\midrule", *(_tex(cells) for cells in table.cells), "\\bottomrule"]
        parts.append("\n".join([*lines, f"\\end{{{kind}}}"]) + "\n")
    return "\n".join(parts)


def html_table(table: TextTable, kinds: Mapping[str, str] | None = None) -> str:
    """`kinds` gives cells with a certain text a class."""
    known = kinds or {}

    def cell(head: str, text: str) -> str:
        # A narrow screen shows a row as a list, where every cell needs the name of its column.
        kind = f' class="{known[text]}"' if text in known else ""
        whole = html.escape(text).replace(" %", "\u00a0%")
        return f'<td{kind} data-head="{html.escape(head)}">{whole}</td>'

    head = "".join(f'<th scope="col">{html.escape(name).replace("/", "/<wbr>")}</th>' for name in table.head)
    body = "".join(
        f'<tr><th scope="row">{html.escape(cells[0])}</th>' + "".join(map(cell, table.head[1:], cells[1:])) + "</tr>"
        for cells in table.cells
    )
    title = html.escape(table.title)
    longest = max((len(text) for cells in table.cells for text in cells), default=0)
    kind = " prose" if longest > WIDE else " many" if len(table.head) > MANY else ""
    return (
        f'<div class="scroll{kind}" tabindex="0" role="region" aria-label="{title}"><table><caption>{title}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


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
    escaped = ["".join(_SPECIAL.get(letter, letter) for letter in cell) for cell in cells]
    signed = [re.sub(r"(?<!\S)([+-])(?=\d)", r"$\1$", cell) for cell in escaped]
    return " & ".join("--" if cell == "-" else cell for cell in signed) + r" \\"
