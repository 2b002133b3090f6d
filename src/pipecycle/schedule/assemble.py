"""From the world at the end of a run to an immutable Schedule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pipecycle.arrays import Array
from pipecycle.policies.registry import revision, stated
from pipecycle.schedule.schedule import Energy, Publications, Schedule, Sent, Sessions, Status, Tables, Versions
from pipecycle.schedule.verify import IN_THE_FIELD, LEDGER
from pipecycle.world.contract import Policy
from pipecycle.world.devices import Devices
from pipecycle.world.energy import at
from pipecycle.world.field import FieldFleet
from pipecycle.world.fleet import Fleet
from pipecycle.world.lineage import Lineage
from pipecycle.world.streams import Ints

_NONE: Ints = np.empty(0, np.int64)


def about(
    policy: Policy,
    fleet: Fleet,
    *,
    trial: int,
    harvest: str,
    horizon: int,
    budget: float | None,
    devices: Devices | None = None,
) -> dict[str, Any]:
    """What a schedule says of itself."""
    own = {} if devices is None else {"fleet": str(devices), "joules": devices.joules, "slot_seconds": devices.seconds}
    number = revision(type(policy))
    return {
        "policy": policy.name,
        **({"revision": number} if number > 1 else {}),
        "settings": stated(policy),
        "grouping": policy.grouping,
        "clients": fleet.clients,
        "trial": trial,
        "harvest": harvest,
        "horizon": horizon,
        "budget": budget,
        **{key: value for key, value in own.items() if value is not None},
    }


def record(meta: dict[str, Any], fleet: Fleet, lineage: Lineage) -> Schedule:
    in_field = isinstance(fleet, FieldFleet)
    columns = (*LEDGER, *IN_THE_FIELD) if in_field else LEDGER
    totals = np.array(fleet.totals, np.int64).reshape(-1, len(columns)).T.copy()
    used = np.zeros(len(fleet.client), bool)
    used[lineage.update.values()] = True
    for _, _, contributors in lineage.tables:
        used[contributors] = True
    return Schedule(
        meta=meta,
        sessions=_sessions(fleet, used),
        versions=_versions(lineage),
        publications=Publications(
            np.array([slot for slot, _ in lineage.publications], np.int32),
            np.array([version for _, version in lineage.publications], np.int32),
        ),
        tables=Tables(
            np.array([slot for slot, _, _ in lineage.tables], np.int32),
            np.array([keep for _, keep, _ in lineage.tables], np.int32),
            _offsets(np.array([len(sessions) for _, _, sessions in lineage.tables], np.int64)),
            _joined([sessions for _, _, sessions in lineage.tables]),
        ),
        energy=Energy(
            **dict(zip(columns, totals, strict=True)),
            level=fleet.level,
            overflow=fleet.overflow,
            drained=fleet.drained if isinstance(fleet, FieldFleet) else None,
        ),
        length=np.asarray(fleet.length),
        samples=np.asarray(1 if fleet.samples is None else fleet.samples),
        launches=_offsets(np.array(fleet.launches.count, np.int64))[:-1],
    )


def _sessions(fleet: Fleet, used: Array) -> Sessions:
    launches, client = fleet.launches, fleet.client.values()
    count = launches.count
    start = _spread(launches.slot, count, np.int32)
    end = start + np.asarray(at(fleet.length, client), np.int32)
    end -= 1
    spent = np.empty(len(client), np.int64)
    spent[:] = at(fleet.steps, client)
    broken = _broken(fleet, start, end, spent) if isinstance(fleet, FieldFleet) else _NONE
    flying = (end > fleet.slot).nonzero()[0]
    spent[flying] = (fleet.slot + 1 - start[flying]).astype(np.int64) * at(fleet.step, client[flying])
    end[flying] = -1
    if isinstance(fleet, FieldFleet):
        spent += at(fleet.download, client)
    sent = np.full(len(client), -1, np.int32)
    receiver = np.zeros(len(client), np.uint8)
    if fleet.sent:
        slots, receivers, senders, costs = zip(*fleet.sent, strict=True)
        size = [len(sessions) for sessions in senders]
        every = np.concatenate(senders)
        sent[every] = _spread(slots, size, np.int32)
        kinds = [Sent.TO_HUB if to == "hub" else Sent.TO_SERVER for to in receivers]
        receiver[every] = _spread(kinds, size, np.uint8)
        spent[every] += _spread(costs, size, np.int64)
    status = np.where(used, np.uint8(Status.USED), np.uint8(Status.UNUSED))
    status[flying] = Status.IN_FLIGHT
    status[broken] = Status.LOST
    if isinstance(fleet, FieldFleet):
        for sessions, paid in fleet.given_up:
            spent[sessions] += paid
            status[sessions[~used[sessions]]] = Status.LOST  # a hub's model may hold an update whose upload was lost
    return Sessions(
        client=client,
        start=start,
        end=end,
        reference=_spread(launches.reference, count, np.int32),
        teacher=_constant_or_spread(launches.teacher, count, np.int32),
        payload=_constant_or_spread([int(kind == "logits") for kind in launches.payload], count, np.uint8),
        sent=sent,
        receiver=receiver,
        spent=spent,
        status=status,
    )


def _broken(fleet: FieldFleet, start: Array, end: Array, spent: Array) -> Ints:
    """The sessions that failed, whose ends and steps are put right."""
    for slot, sessions in fleet.failures:
        end[sessions] = slot
        spent[sessions] = (slot + 1 - start[sessions]).astype(np.int64) * at(fleet.step, fleet.client[sessions])
    return np.concatenate([_NONE, *(sessions for _, sessions in fleet.failures)])


def _spread(values: Sequence[int | Ints], count: list[int], dtype: type[np.generic]) -> Array:
    """One figure per row out of figures per batch, each of which is one for all its rows or an array."""
    total = sum(count)
    if total < 64 * len(count) and all(isinstance(value, int) for value in values):
        return np.repeat(np.asarray(values, dtype), count)
    out = np.empty(total, dtype)
    first = 0
    for value, rows in zip(values, count, strict=True):
        out[first : first + rows] = value
        first += rows
    return out


def _constant_or_spread(values: Sequence[int], count: list[int], dtype: type[np.generic]) -> Array:
    """A column that never changes takes no memory."""
    if values and min(values) == max(values):
        return np.broadcast_to(np.asarray(values[0], dtype), (sum(count),))
    return _spread(values, count, dtype)


def _versions(lineage: Lineage) -> Versions:
    discarded = np.zeros(len(lineage), bool)
    discarded[lineage.discarded] = True
    count, kind, made, seen, bases, updates = (list(column) for column in zip(*lineage.rows, strict=True))
    return Versions(
        kind=_spread(kind, count, np.uint8),
        made=_spread(made, count, np.int32),
        seen=_spread(seen, count, np.int32),
        discarded=discarded,
        base_at=_offsets(_spread(bases, count, np.int64)),
        base=lineage.base.values(),
        coefficient=lineage.coefficient.values(),
        update_at=_offsets(_spread(updates, count, np.int64)),
        update=lineage.update.values(),
        weight=lineage.weight.values(),
    )


def _offsets(counts: Ints) -> Ints:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])


def _joined(parts: list[Ints]) -> Array:
    return np.concatenate(parts).astype(np.int32) if parts else np.empty(0, np.int32)
