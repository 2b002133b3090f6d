"""A schedule as a small drawing in the terminal."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import numpy as np
from rich.text import Text

from pipecycle.report.lanes import Bar, pipeline
from pipecycle.report.styles import CHAINS
from pipecycle.schedule.schedule import Schedule
from pipecycle.world.streams import Ints

SPARKS = " ▁▂▃▄▅▆▇█"
MOST_LANES = 20


def picture(schedule: Schedule, width: int = 100) -> Text:
    """Groups over time, one lane each, coloured by chain, from the first formation on; then how busy and how
    charged the fleet is over the whole run."""
    text = Text()
    columns = max(20, width - 12)
    if schedule.meta["grouping"] == "launch" and len(schedule.sessions):
        text.append_text(_lanes(schedule, columns))
    lines = {"training": schedule.training(), "stored": schedule.energy.stored}
    lost = schedule.energy.lost
    if lost is not None and lost[-1]:
        lines["lost"] = np.diff(lost, prepend=0)
    for name, values in lines.items():
        text.append(f"{name:<12}", style="bold").append(_spark(values, columns)).append("\n")
    return text.append(f"            slots 0 to {schedule.slots - 1:,}, each scaled to its own maximum", style="dim")


def _lanes(schedule: Schedule, columns: int) -> Text:
    drawing = pipeline(schedule, most=8 * columns, handovers=False)
    per_column = max(1, int(schedule.length.max()) // 10)
    until = min(schedule.slots, drawing.first + columns * per_column)
    bars = [bar for bar in drawing.bars if bar.start < until]
    lanes = max(bar.lane for bar in bars) + 1
    text = Text()
    for lane in range(min(lanes, MOST_LANES)):
        row = _row((bar for bar in bars if bar.lane == lane), drawing.first, per_column, columns)
        text.append(f"lane {lane + 1:<7}", style="bold").append_text(row).append("\n")
    if lanes > MOST_LANES:
        text.append(f"            and {lanes - MOST_LANES} more lanes\n", style="dim")
    scale = "one per column" if per_column == 1 else f"{per_column} per column"
    span = f"slots {drawing.first:,} to {until - 1:,}, {scale}"
    return text.append(f"            {span}; a letter and a colour are a chain\n", style="dim")


def _row(bars: Iterable[Bar], begin: int, per_column: int, columns: int) -> Text:
    cells = [(" ", "")] * columns
    for bar in bars:
        left, right = ((slot - begin) // per_column for slot in (bar.start, bar.end))
        style = f"black on {CHAINS[(bar.chain - 1) % len(CHAINS)]}" if bar.chain else "dim"
        for column in range(left, min(right, columns - 1) + 1):
            cells[column] = (bar.letter[-1] if column == left else "─", style)
    return Text.assemble(*cells)


def _spark(values: Ints, columns: int) -> str:
    """Means over equal stretches, as bars."""
    edges = np.linspace(0, len(values), min(columns, len(values)) + 1).astype(int)
    means = np.array([values[a:b].mean() for a, b in pairwise(edges.tolist())])
    top = means.max() or 1
    return "".join(SPARKS[int(np.ceil(value / top * (len(SPARKS) - 1)))] for value in means)
