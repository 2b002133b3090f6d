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
    drained = fleet.drained
    columns = LEDGER if drained is None else (*LEDGER, *IN_THE_FIELD)
    totals = np.array(fleet.totals, np.int64).reshape(-1, len(columns)).T.copy()
    used = np.zeros(len(fleet.client), bool)
    used[lineage.update.values()] = True
    for _, _, contributors in lineage.tables:
        used[contributors] = True
    served, published = _columns(lineage.publications, 2)
    tabulated, keep, contributed = _columns(lineage.tables, 3)
    return Schedule(
        meta=meta,
        sessions=_sessions(fleet, used),
        versions=_versions(lineage),
        publications=Publications(np.array(served, np.int32), np.array(published, np.int32)),
        tables=Tables(
            np.array(tabulated, np.int32),
            np.array(keep, np.int32),
            _offsets(np.array([len(sessions) for sessions in contributed], np.int64)),
            np.concatenate([_NONE, *contributed]).astype(np.int32),
        ),
        energy=Energy(
            **dict(zip(columns, totals, strict=True)),
            level=fleet.level,
            overflow=fleet.overflow,
            drained=drained,
        ),
        length=np.asarray(fleet.length),
        samples=np.asarray(1 if fleet.samples is None else fleet.samples),
        launches=_offsets(np.array([count for _, count, *_ in fleet.launches], np.int64))[:-1],
    )


def _sessions(fleet: Fleet, used: Array) -> Sessions:
    client = fleet.client.values()
    slots, count, reference, teacher, payload = _columns(fleet.launches, 5)
    start = _spread(slots, count, np.int32)
    end = start + np.asarray(at(fleet.length, client), np.int32)
    end -= 1
    spent = np.empty(len(client), np.int64)
    spent[:] = at(fleet.steps, client)
    status = np.where(used, np.uint8(Status.USED), np.uint8(Status.UNUSED))
    for slot, broken in fleet.failures:
        end[broken], status[broken] = slot, Status.LOST
        spent[broken] = (slot + 1 - start[broken]).astype(np.int64) * at(fleet.step, client[broken])
    flying = (end > fleet.slot).nonzero()[0]
    spent[flying] = (fleet.slot + 1 - start[flying]).astype(np.int64) * at(fleet.step, client[flying])
    end[flying], status[flying] = -1, Status.IN_FLIGHT
    spent += at(fleet.download, client)
    sent = np.full(len(client), -1, np.int32)
    receiver = np.zeros(len(client), np.uint8)
    slots, receivers, senders, costs = _columns(fleet.sent, 4)
    size = [len(sessions) for sessions in senders]
    every = np.concatenate([_NONE, *senders])
    sent[every] = _spread(slots, size, np.int32)
    receiver[every] = _spread([Sent.TO_HUB if to == "hub" else Sent.TO_SERVER for to in receivers], size, np.uint8)
    spent[every] += _spread(costs, size, np.int64)
    for sessions, paid in fleet.given_up:
        spent[sessions] += paid
        status[sessions[~used[sessions]]] = Status.LOST  # a hub's model may hold an update whose upload was lost
    return Sessions(
        client=client,
        start=start,
        end=end,
        reference=_spread(reference, count, np.int32),
        teacher=_constant_or_spread(teacher, count, np.int32),
        payload=_constant_or_spread([int(kind == "logits") for kind in payload], count, np.uint8),
        sent=sent,
        receiver=receiver,
        spent=spent,
        status=status,
    )


def _columns(rows: Sequence[tuple[Any, ...]], width: int) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)] or [[] for _ in range(width)]


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
    count, kind, made, seen, bases, updates = _columns(lineage.rows, 6)
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
