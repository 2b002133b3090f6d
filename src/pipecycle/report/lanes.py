"""The pipeline as bars on lanes: who trained when, on which chain, and what was handed to whom."""

from __future__ import annotations

from collections import Counter
from heapq import heappop, heappush

import numpy as np
from attrs import frozen

from pipecycle.results import evenly
from pipecycle.schedule.schedule import Schedule, Status
from pipecycle.world.lineage import Kind
from pipecycle.world.streams import Ints


@frozen
class Bar:
    """A group, or one client's session, on its lane."""

    lane: int
    start: int
    end: int
    """Last slot."""
    chain: int
    """From 1; 0 before any chain."""
    state: str
    """`used`, `unused` or `flying` (still training when the record ends)."""
    about: str

    @property
    def letter(self) -> str:
        return letter(self.chain)


@frozen
class Handover:
    """A model on its way: from the end of one bar to the start of another."""

    start: int
    lane: int
    end: int
    to: int
    main: bool
    """Whether no other model was taken on by more of the group's members."""


@frozen
class Pipeline:
    """A stretch of a schedule, ready to be drawn."""

    by: str
    """`group` or `client`."""
    lanes: tuple[str, ...]
    bars: tuple[Bar, ...]
    handovers: tuple[Handover, ...]
    published: tuple[int, ...]
    """Slots in which the server adopted a version."""
    first: int
    last: int
    view: int
    """Slots to show at first."""
    whole: bool
    """Whether every session of the schedule is there."""


def letter(chain: int) -> str:
    """A, B, ..., Z, AA, ... for chain 1, 2, ...; a dot for none."""
    name = ""
    while chain > 0:
        chain, rest = divmod(chain - 1, 26)
        name = chr(ord("A") + rest) + name
    return name or "·"


def pipeline(schedule: Schedule, most: int = 500, clients: int = 40, *, handovers: bool = True) -> Pipeline:
    """The first `most` groups, or (policies without groups) sessions of up to `clients` clients, evenly picked."""
    grouping = schedule.meta["grouping"]
    sessions = schedule.sessions
    group = group_numbers(schedule)
    if grouping is None:
        picked = evenly(schedule.clients, clients)
        kept = np.flatnonzero(np.isin(sessions.client, picked))[:most]
    else:
        # Groups are numbered in the order of their first session.
        kept = np.flatnonzero(group < most)
    bars, place = _bars(schedule, group, kept)
    if grouping is None:
        row = {int(client): lane for lane, client in enumerate(picked)}
        lanes = tuple(f"client {client}" for client in picked)
        lane_of = [row[int(sessions.client[members[0]])] for *_, members in bars]
    else:
        lane_of = stack([(start, end) for start, end, *_ in bars])
        lanes = tuple(f"lane {lane + 1}" for lane in range(max(lane_of, default=0) + 1))
    drawn = tuple(
        Bar(lane, start, end, chain, state, about)
        for lane, (start, end, chain, state, about, _) in zip(lane_of, bars, strict=True)
    )
    passed = _handovers(schedule, group, kept, place, drawn) if handovers and grouping is not None else ()
    first = min((bar.start for bar in drawn), default=0)
    # Beyond the last bar that is there, others may be missing.
    whole = len(place) == len(np.unique(group))
    last = schedule.slots - 1 if whole else max(bar.start for bar in drawn)
    publications = schedule.publications.slot
    seen = publications[(publications >= first) & (publications <= last)]
    view = min(last - first + 1, 6 * int(np.max(schedule.length)))
    shown = tuple(sorted(set(seen.tolist())))
    return Pipeline("client" if grouping is None else "group", lanes, drawn, passed, shown, first, last, view, whole)


def group_numbers(schedule: Schedule) -> Ints:
    """A number per session, equal within a group, in the order of first sessions."""
    sessions, grouping = schedule.sessions, schedule.meta["grouping"]
    count = len(sessions)
    if grouping == "launch":
        return schedule.launch_of_session
    if grouping is None:
        return np.arange(count)
    event = schedule.ancestry.event_of_session
    # What no event took in: those in flight go by their reference, others are groups of their own.
    alone = np.where(sessions.end < 0, sessions.reference, len(schedule.versions) + np.arange(count))
    key = np.where(event > 0, event, -1 - alone)
    _, first, number = np.unique(key, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[number]


Draft = tuple[int, int, int, str, str, Ints]


def _bars(schedule: Schedule, group: Ints, kept: Ints) -> tuple[list[Draft], dict[int, int]]:
    sessions, ancestry = schedule.sessions, schedule.ancestry
    bars: list[Draft] = []
    place: dict[int, int] = {}
    order = kept[np.argsort(group[kept], kind="stable")]
    numbers, begins = np.unique(group[order], return_index=True)
    for number, members in zip(numbers.tolist(), np.split(order, begins)[1:], strict=True):
        start = int(sessions.start[members].min())
        ends, status = sessions.end[members], sessions.status[members]
        flying = bool((ends < 0).any())
        end = schedule.slots - 1 if flying else int(ends.max())
        taken = ancestry.event_of_session[members]
        event = int(taken.max())
        chain = event or int(ancestry.event_of_version[sessions.reference[members[0]]])
        used = bool((status == Status.USED).any())
        state = "flying" if flying else "used" if used else "unused"
        place[number] = len(bars)
        about = _about(schedule, number, members, (start, end, state, event))
        bars.append((start, end, int(ancestry.chain_of_event[chain]), state, about, members))
    return bars, place


def _about(schedule: Schedule, number: int, members: Ints, facts: tuple[int, int, str, int]) -> str:
    start, end, state, event = facts
    sessions = schedule.sessions
    who = ", ".join(f"{client}" for client in np.sort(sessions.client[members])[:12].tolist())
    more = f" and {len(members) - 12} more" if len(members) > 12 else ""
    name = f"client {who}" if schedule.meta["grouping"] is None else f"group {number + 1}"
    references = np.unique(sessions.reference[members])
    origin = f"version {references[0]}" if len(references) == 1 else f"versions {references[0]} to {references[-1]}"
    fate = {"used": f"used in aggregation {event}" if event else "its logits were used", "unused": "never used"}
    lines = [name, f"slots {start} to {end}", f"from {origin}", fate.get(state, "still training at the end")]
    status = sessions.status[members]
    fallen = [kind for kind in (Status.LOST, Status.DECLINED) if kind in status]
    if fallen:
        lines.append(", ".join(f"{int((status == kind).sum())} {kind.name.lower()}" for kind in fallen))
    if schedule.meta["grouping"] is not None:
        lines.insert(1, f"client{'s' * (len(members) > 1)} {who}{more}")
    return "<br>".join(lines)


def stack(spans: list[tuple[int, int]]) -> list[int]:
    """The lowest lane that is free for each span, in the order of starts."""
    lanes = [0] * len(spans)
    free: list[int] = []
    busy: list[tuple[int, int]] = []
    count = 0
    for index in sorted(range(len(spans)), key=lambda index: spans[index]):
        start, end = spans[index]
        while busy and busy[0][0] < start:
            heappush(free, heappop(busy)[1])
        if free:
            lanes[index] = heappop(free)
        else:
            lanes[index], count = count, count + 1
        heappush(busy, (end, lanes[index]))
    return lanes


def _handovers(
    schedule: Schedule, group: Ints, kept: Ints, place: dict[int, int], bars: tuple[Bar, ...]
) -> tuple[Handover, ...]:
    """Lines from the groups whose models a group started from: the last to end of those that made each."""
    sessions, versions, ancestry = schedule.sessions, schedule.versions, schedule.ancestry
    bar_of = [place[number] for number in group[kept].tolist()]
    maker: dict[int, int] = {}  # bar by event
    for event, bar in zip(ancestry.event_of_session[kept].tolist(), bar_of, strict=True):
        if event and (event not in maker or bars[maker[event]].end < bars[bar].end):
            maker[event] = bar
    taken: dict[int, Counter[int]] = {}  # by child: parents, and by how many members
    for reference, child in zip(sessions.reference[kept].tolist(), bar_of, strict=True):
        if versions.kind[reference] == Kind.HANDOVER:
            carried = int(versions.update[versions.update_at[reference]])
            parent = place.get(int(group[carried]))
        else:
            parent = maker.get(int(ancestry.event_of_version[reference]))
        if parent is not None and parent != child and bars[parent].end < bars[child].start:
            taken.setdefault(child, Counter())[parent] += 1
    return tuple(
        Handover(bars[parent].end + 1, bars[parent].lane, bars[child].start, bars[child].lane, rank == 0)
        for child, parents in sorted(taken.items())
        for rank, (parent, _) in enumerate(parents.most_common())
    )
