"""A schedule as a small drawing in the terminal."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from rich.text import Text

from pipecycle.schedule.schedule import Schedule
from pipecycle.world.streams import Ints

# Okabe and Ito's palette: distinguishable with any colour vision.  A letter says the same without colour.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999")
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
BARS = " ▁▂▃▄▅▆▇█"


def pipeline(schedule: Schedule, width: int = 100) -> Text:
    """Groups over time, one lane each, coloured by chain, from the first formation on; then how busy and how
    charged the fleet is over the whole run."""
    picture = Text()
    columns = max(20, width - 12)
    if schedule.meta["grouping"] == "launch" and len(schedule.sessions):
        picture.append_text(_lanes(schedule, columns))
    picture.append("training    ", style="bold").append(_spark(_training(schedule), columns)).append("\n")
    picture.append("stored      ", style="bold").append(_spark(schedule.energy.stored, columns)).append("\n")
    lost = schedule.energy.lost
    if lost is not None and lost[-1]:
        per_slot = np.diff(lost, prepend=0)
        picture.append("lost        ", style="bold").append(_spark(per_slot, columns)).append("\n")
    picture.append(f"            slots 0 to {schedule.slots - 1:,}, each scaled to its own maximum", style="dim")
    return picture


def _lanes(schedule: Schedule, columns: int) -> Text:
    sessions = schedule.sessions
    first = np.unique(schedule.launches[schedule.launches < len(sessions)])  # some batches are empty
    begin = int(sessions.start[first[0]])
    per_column = max(1, int(schedule.length.max()) // 10)
    until = min(schedule.slots, begin + columns * per_column)
    shown = np.flatnonzero(sessions.start[first] < until)[: 8 * columns]
    chains = _chain_of_launch(schedule, first)
    lanes: list[list[tuple[int, int, int]]] = []
    for launch in shown.tolist():
        members = slice(int(first[launch]), int(first[launch + 1]) if launch + 1 < len(first) else len(sessions))
        ends = sessions.end[members]
        start, end = int(sessions.start[first[launch]]), int(ends.max()) if (ends >= 0).all() else schedule.slots - 1
        free = (index for index, lane in enumerate(lanes) if lane[-1][1] < start)
        lane = next(free, len(lanes))
        if lane == len(lanes):
            lanes.append([])
        lanes[lane].append((start, end, int(chains[launch])))
    text = Text()
    for number, lane_groups in enumerate(lanes[:20]):
        text.append(f"lane {number + 1:<7}", style="bold")
        text.append_text(_row(lane_groups, begin, per_column, columns, schedule.slots)).append("\n")
    if len(lanes) > 20:
        text.append(f"            and {len(lanes) - 20} more lanes\n", style="dim")
    scale = "one per column" if per_column == 1 else f"{per_column} per column"
    text.append(
        f"            slots {begin:,} to {until - 1:,}, {scale}; a letter and a colour are a chain\n", style="dim"
    )
    return text


def _row(groups: list[tuple[int, int, int]], begin: int, per_column: int, columns: int, slots: int) -> Text:
    cells = [(" ", "")] * columns
    for start, end, chain in groups:
        left = (start - begin) // per_column
        right = (min(end, slots - 1) - begin) // per_column
        letter = LETTERS[(chain - 1) % len(LETTERS)] if chain else "·"
        style = f"black on {COLOURS[(chain - 1) % len(COLOURS)]}" if chain else "dim"
        for column in range(left, min(right, columns - 1) + 1):
            cells[column] = (letter if column == left else "─", style)
    row = Text()
    for cell, style in cells:
        row.append(cell, style=style)
    return row


def _chain_of_launch(schedule: Schedule, first: Ints) -> Ints:
    """The chain that each batch of sessions belongs to: that of the event that took it in, else its reference's."""
    ancestry, sessions = schedule.ancestry, schedule.sessions
    event = ancestry.event_of_session[first]
    inherited = ancestry.event_of_version[sessions.reference[first]]
    return ancestry.chain_of_event[np.where(event > 0, event, inherited)]


def _training(schedule: Schedule) -> Ints:
    sessions, slots = schedule.sessions, schedule.slots
    end = np.where(sessions.end < 0, slots - 1, sessions.end)
    change = np.bincount(sessions.start, minlength=slots + 1) - np.bincount(end + 1, minlength=slots + 1)
    return np.cumsum(change)[:slots]


def _spark(values: Ints, columns: int) -> str:
    """Means over equal stretches, as bars."""
    edges = np.linspace(0, len(values), min(columns, len(values)) + 1).astype(int)
    means = np.array([values[a:b].mean() for a, b in pairwise(edges.tolist())])
    top = means.max() or 1
    return "".join(BARS[int(np.ceil(value / top * (len(BARS) - 1)))] for value in means)
