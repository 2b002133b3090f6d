"""A schedule as the columns that the page draws from; the shapes are those of `pipecycle.report.lanes`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipecycle.policies.steps import stability_limit
from pipecycle.report.lanes import GroupTable, letter, stack
from pipecycle.report.payload import coverage
from pipecycle.results import evenly
from pipecycle.schedule.schedule import Schedule, Status
from pipecycle.theory.stability import steps
from pipecycle.world.energy import UNIT
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
    sessions, order = schedule.sessions, GroupTable.of(schedule).order
    state = np.where(sessions.end < 0, 2, np.where(sessions.status == Status.USED, 0, 1))  # as of groups
    columns = {
        "client": sessions.client, "start": sessions.start, "end": schedule.last_slots,
        "reference": sessions.reference, "event": schedule.ancestry.event_of_session,
        "lag": _lag_of_session(schedule), "chain": _chain_of_session(schedule), "state": state,
    }  # fmt: skip
    return {"sessions": len(sessions)}, {f"session.{name}": column[order] for name, column in columns.items()}


def _groups(schedule: Schedule) -> tuple[dict[str, Any], Columns]:
    """One row per group, its lane, and who started from whose model; nothing where a policy has no groups."""
    if schedule.meta["grouping"] is None or not len(schedule.sessions):
        return {"groups": 0, "lanes": 0}, {}
    groups = GroupTable.of(schedule)
    at, reference = groups.at[:-1], schedule.sessions.reference[groups.order]
    lane = np.array(stack(groups.start, groups.end))
    parent, child, main = groups.handovers(schedule)
    columns = {
        "group.at": groups.at,
        "group.lane": lane,
        "group.start": groups.start,
        "group.end": groups.end,
        "group.event": groups.event,
        "group.reference": np.minimum.reduceat(reference, at),
        "group.last_reference": np.maximum.reduceat(reference, at),
        "group.lag": np.maximum.reduceat(_lag_of_session(schedule)[groups.order], at),
        "group.chain": groups.chain,
        "group.state": groups.state,
        "handover.from": parent,
        "handover.to": child,
        "handover.main": main,
    }
    return {"groups": len(groups), "lanes": int(lane.max()) + 1}, columns


def _energy(schedule: Schedule) -> tuple[dict[str, Any], Columns]:
    energy, slots = schedule.energy, evenly(schedule.slots, MOST_MOMENTS)
    parts = energy.purposes | {"stored": energy.stored, "overflowed": energy.overflowed} | energy.drains_by_cause
    columns = {f"energy.{name}": total[slots] / UNIT for name, total in parts.items()}
    return {}, columns | {"energy.moment": slots, "energy.busy": schedule.training()[slots]}


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


def _coverage(schedule: Schedule) -> tuple[dict[str, Any], Columns]:
    drawn = coverage(schedule)
    return {}, {"coverage.slot": np.array(drawn["x"]), "coverage.clients": np.array(drawn["y"])}


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
