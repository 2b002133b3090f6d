"""The pipeline as bars on lanes: who trained when, on which chain, and what was handed to whom."""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

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
class Lanes:
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


def pipeline(schedule: Schedule, most: int = 500, clients: int = 40, *, handovers: bool = True) -> Lanes:
    """The first `most` groups, or (policies without groups) sessions of up to `clients` clients, evenly picked."""
    by_client, groups = schedule.meta["grouping"] is None, GroupTable.of(schedule)
    if by_client:
        picked = evenly(schedule.clients, clients)
        kept = np.flatnonzero(np.isin(schedule.sessions.client, picked))[:most]
        lanes = tuple(f"client {client}" for client in picked)
        lane_of = np.searchsorted(picked, schedule.sessions.client[kept]).tolist()
    else:
        kept = np.arange(min(most, len(groups)))
        lane_of = stack(groups.start[kept], groups.end[kept])
        lanes = tuple(f"lane {lane + 1}" for lane in range(max(lane_of, default=0) + 1))
    bars = tuple(
        Bar(lane, start, end, chain, STATES[state], _about(schedule, groups, number))
        for lane, number, start, end, chain, state in zip(
            lane_of, kept.tolist(), *(column[kept].tolist() for column in groups.drawn), strict=True
        )
    )
    passed = zip(*(column.tolist() for column in groups.handovers(schedule)), strict=True) if handovers else ()
    lines = tuple(
        Handover(bars[parent].end + 1, bars[parent].lane, bars[child].start, bars[child].lane, main)
        for parent, child, main in passed
        if not by_client and max(parent, child) < len(bars)
    )
    first = min((bar.start for bar in bars), default=0)
    # Beyond the last bar that is there, others may be missing.
    whole = len(bars) == len(groups)
    last = schedule.slots - 1 if whole else max(bar.start for bar in bars)
    publications = schedule.publications.slot
    seen = publications[(publications >= first) & (publications <= last)]
    view = min(last - first + 1, 6 * int(np.max(schedule.length)))
    shown = tuple(sorted(set(seen.tolist())))
    return Lanes("client" if by_client else "group", lanes, bars, lines, shown, first, last, view, whole)


STATES = ("used", "unused", "flying")
"""What became of a group: its updates were used, never used, or it was still training when the record ends."""


@frozen(eq=False)
class GroupTable:
    """All groups of a schedule as columns, in the order of their first sessions; without groups, every session is one.

    `order` are the sessions, a group's members next to each other; `at` says where those of each begin in it, and where
    the last ones end."""

    order: Ints
    at: Ints
    of_session: Ints
    """The number of each session's group."""
    start: Ints
    end: Ints
    """Last slot."""
    event: Ints
    """The aggregation that took its updates in, 0 for none."""
    chain: Ints
    state: Ints
    """Of `STATES`."""

    @classmethod
    def of(cls, schedule: Schedule) -> GroupTable:
        sessions, ancestry = schedule.sessions, schedule.ancestry
        group = group_numbers(schedule)
        order = np.argsort(group, kind="stable")
        at = np.flatnonzero(np.diff(group[order], prepend=-1))
        of_session = np.empty(len(group), np.int64)
        of_session[order] = np.repeat(np.arange(len(at)), np.diff(at, append=len(order)))
        event: Ints = np.maximum.reduceat(ancestry.event_of_session[order], at)
        begun = ancestry.event_of_version[sessions.reference[order[at]]]  # what its first member started from
        flying = np.logical_or.reduceat(sessions.end[order] < 0, at)
        used = np.logical_or.reduceat(sessions.status[order] == Status.USED, at)
        return cls(
            order,
            np.append(at, len(order)),
            of_session,
            np.minimum.reduceat(sessions.start[order].astype(np.int64), at),
            np.maximum.reduceat(schedule.last_slots[order], at),
            event,
            ancestry.chain_of_event[np.where(event > 0, event, begun)],
            np.where(flying, 2, np.where(used, 0, 1)),
        )

    def __len__(self) -> int:
        return len(self.start)

    @property
    def drawn(self) -> tuple[Ints, ...]:
        return self.start, self.end, self.chain, self.state

    def members(self, number: int) -> Ints:
        return self.order[self.at[number] : self.at[number + 1]]

    def handovers(self, schedule: Schedule) -> tuple[Ints, Ints, NDArray[np.bool_]]:
        """Groups whose models a group started from (the last to end of those that made each), that group, and whether
        no other model was taken on by more of its members."""
        sessions, versions, ancestry = schedule.sessions, schedule.versions, schedule.ancestry
        group = self.of_session
        # Of the groups behind an event, the first of those that end last.
        maker = np.full(ancestry.events + 1, -1)
        taken = np.flatnonzero(ancestry.event_of_session)
        by_end = taken[np.lexsort((-taken, self.end[group[taken]]))]
        maker[ancestry.event_of_session[by_end]] = group[by_end]
        parent = maker[ancestry.event_of_version[sessions.reference]]
        carried = np.flatnonzero(versions.kind[sessions.reference] == Kind.HANDOVER)
        parent[carried] = group[versions.update[versions.update_at[sessions.reference[carried]]]]
        passed = np.flatnonzero((parent >= 0) & (parent != group))
        passed = passed[self.end[parent[passed]] < self.start[group[passed]]]
        pairs, first, members = np.unique(
            group[passed] * len(self) + parent[passed], return_index=True, return_counts=True
        )
        child, parent = np.divmod(pairs, max(1, len(self)))
        order = np.lexsort((first, -members, child))
        child, parent = child[order], parent[order]
        return parent, child, np.diff(child, prepend=-1) != 0


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


def _about(schedule: Schedule, groups: GroupTable, number: int) -> str:
    sessions, members, event = schedule.sessions, groups.members(number), int(groups.event[number])
    who = ", ".join(f"{client}" for client in np.sort(sessions.client[members])[:12].tolist())
    more = f" and {len(members) - 12} more" if len(members) > 12 else ""
    name = f"client {who}" if schedule.meta["grouping"] is None else f"group {number + 1}"
    references = np.unique(sessions.reference[members])
    origin = f"version {references[0]}" if len(references) == 1 else f"versions {references[0]} to {references[-1]}"
    used = f"used in aggregation {event}" if event else "its logits were used"
    fate = (used, "never used", "still training at the end")[groups.state[number]]
    lines = [name, f"slots {groups.start[number]} to {groups.end[number]}", f"from {origin}", fate]
    status = sessions.status[members]
    fallen = [kind for kind in (Status.LOST, Status.DECLINED) if kind in status]
    if fallen:
        lines.append(", ".join(f"{int((status == kind).sum())} {kind.name.lower()}" for kind in fallen))
    if schedule.meta["grouping"] is not None:
        lines.insert(1, f"client{'s' * (len(members) > 1)} {who}{more}")
    return "<br>".join(lines)


def stack(starts: Ints, ends: Ints) -> list[int]:
    """The lowest lane that is free for each span, in the order of starts."""
    spans = list(zip(starts.tolist(), ends.tolist(), strict=True))
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
