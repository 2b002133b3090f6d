"""A schedule as the columns that the page draws from; the shapes are those of `pipecycle.report.lanes`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipecycle.policies.steps import stability_limit
from pipecycle.report.lanes import group_numbers, letter, stack
from pipecycle.schedule.schedule import Schedule, Status
from pipecycle.theory.stability import steps
from pipecycle.world.energy import UNIT
from pipecycle.world.lineage import Kind
from pipecycle.world.streams import Ints

Columns = dict[str, NDArray[Any]]

MOST_CHAINS = 24
MOST_BINS = 400
"""Clients, or bins of neighbouring clients, in the picture of who met whom."""
MOST_MOMENTS = 400
MOST_LAG = 40
"""Lags beyond it share a bar."""


def picture(schedule: Schedule) -> tuple[dict[str, Any], Columns]:
    """Facts for the header and columns."""
    facts: dict[str, Any] = {"grouping": schedule.meta["grouping"]}
    columns: Columns = {}
    for part in (_sessions, _groups, _energy, _lags, _steps, _coverage, _chains):
        more, drawn = part(schedule)
        facts |= more
        columns |= {name: _narrow(column) for name, column in drawn.items()}
    return facts, columns


def _narrow(column: NDArray[Any]) -> NDArray[Any]:
    """In as few bytes as hold every value."""
    if column.dtype.kind == "f":
        return column.astype("f4")
    low, high = int(column.min(initial=0)), int(column.max(initial=0))
    fits = (kind for kind in ("u1", "i1", "u2", "i2") if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max)
    return column.astype(next(fits, "i4"))


USED, UNUSED, FLYING = 0, 1, 2
"""What became of a session or group: used, never used, still training when the plan ends."""


def _ends(schedule: Schedule) -> Ints:
    return np.where(schedule.sessions.end < 0, schedule.slots - 1, schedule.sessions.end)


def _lag_of_session(schedule: Schedule) -> Ints:
    """Versions published between the reference and the use of each update, -1 for those never used."""
    lag = np.full(len(schedule.sessions), -1)
    lag[schedule.versions.update] = schedule.ancestry.lags
    return lag


def _chain_of_session(schedule: Schedule) -> Ints:
    """The chain of the event that took the update in, else of the model that the session started from."""
    ancestry = schedule.ancestry
    event = ancestry.event_of_session
    return ancestry.chain_of_event[np.where(event > 0, event, ancestry.event_of_version[schedule.sessions.reference])]


def _sessions(schedule: Schedule) -> tuple[dict[str, Any], Columns]:
    """In the order of their groups, so that a group's members are neighbours."""
    sessions = schedule.sessions
    group = group_numbers(schedule)
    order = np.argsort(group, kind="stable")
    state = np.where(sessions.end < 0, FLYING, np.where(sessions.status == Status.USED, USED, UNUSED))
    columns = {
        "client": sessions.client, "start": sessions.start, "end": _ends(schedule), "reference": sessions.reference,
        "event": schedule.ancestry.event_of_session, "lag": _lag_of_session(schedule),
        "chain": _chain_of_session(schedule), "state": state,
    }  # fmt: skip
    return {"sessions": len(sessions)}, {f"session.{name}": column[order] for name, column in columns.items()}


def _groups(schedule: Schedule) -> tuple[dict[str, Any], Columns]:
    """One row per group, its lane, and who started from whose model; nothing where a policy has no groups."""
    sessions, ancestry = schedule.sessions, schedule.ancestry
    if schedule.meta["grouping"] is None or not len(sessions):
        return {"groups": 0, "lanes": 0}, {}
    group, end = group_numbers(schedule), _ends(schedule)
    order = np.argsort(group, kind="stable")
    at = np.flatnonzero(np.diff(group[order], prepend=-1))
    lasts: Ints = np.maximum.reduceat(end[order], at)
    starts: Ints = np.minimum.reduceat(sessions.start[order], at)
    event: Ints = np.maximum.reduceat(ancestry.event_of_session[order], at)
    flying = np.logical_or.reduceat(sessions.end[order] < 0, at)
    used = np.logical_or.reduceat(sessions.status[order] == Status.USED, at)
    reference = sessions.reference[order]
    from_event = ancestry.event_of_version[reference[at]]
    lane = np.array(stack(list(zip(starts.tolist(), lasts.tolist(), strict=True))))
    parent, child, main = _handovers(schedule, group, starts, lasts)
    columns = {
        "group.at": np.append(at, len(order)),
        "group.lane": lane,
        "group.start": starts,
        "group.end": lasts,
        "group.event": event,
        "group.reference": np.minimum.reduceat(reference, at),
        "group.last_reference": np.maximum.reduceat(reference, at),
        "group.lag": np.maximum.reduceat(_lag_of_session(schedule)[order], at),
        "group.chain": ancestry.chain_of_event[np.where(event > 0, event, from_event)],
        "group.state": np.where(flying, FLYING, np.where(used, USED, UNUSED)),
        "handover.from": parent,
        "handover.to": child,
        "handover.main": main,
    }
    return {"groups": len(at), "lanes": int(lane.max()) + 1}, columns


def _handovers(schedule: Schedule, group: Ints, starts: Ints, ends: Ints) -> tuple[Ints, Ints, Ints]:
    """Groups whose model a group started from, that group, and whether no other model was taken on by more members."""
    sessions, versions, ancestry = schedule.sessions, schedule.versions, schedule.ancestry
    # Of the groups behind an event, the first of those that end last.
    maker = np.full(ancestry.events + 1, -1)
    taken = np.flatnonzero(ancestry.event_of_session)
    by_end = taken[np.lexsort((-taken, ends[group[taken]]))]
    maker[ancestry.event_of_session[by_end]] = group[by_end]
    parent = maker[ancestry.event_of_version[sessions.reference]]
    carried = np.flatnonzero(versions.kind[sessions.reference] == Kind.HANDOVER)
    parent[carried] = group[versions.update[versions.update_at[sessions.reference[carried]]]]
    passed = np.flatnonzero((parent >= 0) & (parent != group))
    passed = passed[ends[parent[passed]] < starts[group[passed]]]
    pairs, first, members = np.unique(
        group[passed] * len(starts) + parent[passed], return_index=True, return_counts=True
    )
    child, parent = np.divmod(pairs, len(starts))
    order = np.lexsort((first, -members, child))
    child, parent = child[order], parent[order]
    main = np.diff(child, prepend=-1) != 0
    return parent, child, main


def moments(slots: int, most: int = MOST_MOMENTS) -> Ints:
    """Evenly spaced slots, the last one included."""
    return np.unique(np.linspace(0, slots - 1, min(most, slots)).round().astype(np.int64))


def _energy(schedule: Schedule) -> tuple[dict[str, Any], Columns]:
    energy, slots = schedule.energy, moments(schedule.slots)
    parts = energy.purposes | {"stored": energy.stored, "overflowed": energy.overflowed} | energy.drains_by_cause
    columns = {f"energy.{name}": total[slots] / UNIT for name, total in parts.items()}
    change = np.bincount(schedule.sessions.start, minlength=schedule.slots + 1)
    change -= np.bincount(_ends(schedule) + 1, minlength=schedule.slots + 1)
    return {}, columns | {"energy.moment": slots, "energy.busy": np.cumsum(change)[slots]}


def _lags(schedule: Schedule) -> tuple[dict[str, Any], Columns]:
    return {}, {"lag.count": np.bincount(np.minimum(schedule.ancestry.lags, MOST_LAG))}


def _steps(schedule: Schedule) -> tuple[dict[str, Any], Columns]:
    """Every published version that updates went into, and the limit of each lag up to the largest."""
    taken = steps(schedule)
    published = schedule.publications
    first = dict(zip(published.version[::-1].tolist(), published.slot[::-1].tolist(), strict=True))
    slot = np.array([first[version] for version in taken.version.tolist()], np.int64)
    shown = range(int(taken.lag.max(initial=0)) + 2)
    columns = {"step.slot": slot, "step.version": taken.version, "step.lag": taken.lag, "step.step": taken.step}
    return {"step": taken.figures(), "limits": [stability_limit(lag) for lag in shown]}, columns


def _coverage(schedule: Schedule, most: int = 48) -> tuple[dict[str, Any], Columns]:
    """Clients in the served model, after some of the publications; most of them early, where coverage grows."""
    published = schedule.publications
    count = len(published.slot)
    if not count:
        return {}, {"coverage.slot": np.array([0, schedule.slots]), "coverage.clients": np.zeros(2)}
    early = np.geomspace(1, count, min(most, count)).astype(int) - 1
    picks = np.unique(np.concatenate([early, np.linspace(0, count - 1, min(16, count)).astype(int)]))
    met = schedule.ancestry.met(published.version[picks]).sum(axis=1)
    slots = np.concatenate([[0], published.slot[picks] + 1, [schedule.slots]])
    return {}, {"coverage.slot": slots, "coverage.clients": np.array([0, *met, met[-1]])}


def _chains(schedule: Schedule) -> tuple[dict[str, Any], Columns]:
    """Whom each chain has met, the narrowest first: 0 to 255 for none to all clients of a bin."""
    ancestry = schedule.ancestry
    tips = sorted(ancestry.chains, key=lambda chain: chain.coverage)[:MOST_CHAINS]
    bins = min(schedule.clients, MOST_BINS)
    edges = np.linspace(0, schedule.clients, bins + 1).astype(int)
    seen = np.add.reduceat(ancestry.met(np.array([tip.version for tip in tips])), edges[:-1], axis=1, dtype=np.int64)
    listed = [
        {
            "chain": int(number),
            "name": letter(int(number)),
            "version": tip.version,
            "coverage": tip.coverage,
            "depth": tip.depth,
        }
        for tip in tips
        for number in [ancestry.chain_of_event[ancestry.event_of_version[tip.version]]]
    ]
    shares = (seen * 255 / np.diff(edges)).round().astype(np.int64)
    return {"chains": listed, "bins": bins}, {"chain.met": shares.ravel()}
