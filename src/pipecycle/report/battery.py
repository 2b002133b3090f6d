"""Battery levels over time: as nodes reported them, or replayed from the weather and what the sessions spent."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
from attrs import frozen

from pipecycle.arrays import read_arrays
from pipecycle.errors import InputError
from pipecycle.results import evenly
from pipecycle.runs.records import Record
from pipecycle.schedule.schedule import Schedule
from pipecycle.world.energy import UNIT, quanta
from pipecycle.world.harvest import rows
from pipecycle.world.specs import parse_harvest
from pipecycle.world.streams import Floats, Ints


@frozen(eq=False)
class Levels:
    """`level[k, i]` is what battery i holds at the end of slot `slot[k]`, in quanta."""

    slot: Ints
    level: Ints

    def binned(self, most: int) -> tuple[Floats, list[str]]:
        """Units, clients x time, in at most `most` rows, and the rows' names."""
        means, names = binned(self.level.T, most)
        return means / UNIT, names


def binned(clients: Ints | Floats, most: int) -> tuple[Floats, list[str]]:
    """Rows, one per client, as at most `most` means over neighbouring clients, and their names."""
    edges = np.linspace(0, len(clients), min(most, len(clients)) + 1).astype(int)
    names = [f"{a}" if b - a == 1 else f"{a} to {b - 1}" for a, b in pairwise(edges.tolist())]
    return np.asarray(np.add.reduceat(clients, edges[:-1], axis=0) / np.diff(edges)[:, None], np.float64), names


def levels(record: Record, moments: int = 200) -> Levels:
    """Levels at evenly spaced slots, the last one included; refused where they do not end as recorded."""
    schedule = record.schedule
    if record.path is not None and (record.path / "levels.npz").exists():
        return lived(schedule, record.path / "levels.npz", moments)
    if schedule.energy.lost is not None or "fleet" in schedule.meta:
        raise InputError("levels are replayed for equal devices with perfect links only")
    world = None if record.config is None else record.config.world
    harvest = str(schedule.meta["harvest"]) if world is None else world.harvest
    if world is None and schedule.energy.overflow.any():
        raise InputError("energy overflowed, but without the run folder the battery capacity is unknown")
    capacity = None if world is None else int(quanta(world.capacity))
    initial = None if world is None else int(quanta(world.initial))
    slots = evenly(schedule.slots, max(2, min(moments, 20_000_000 // schedule.clients)))
    level = replay(schedule, harvest, slots, capacity, initial)
    if not np.array_equal(level[-1], schedule.energy.level):
        raise InputError(
            "the replayed levels do not end where the schedule says (costs that differ by client, or a harvest's file "
            "that was edited since)"
        )
    return Levels(slots, level)


def lived(schedule: Schedule, path: Path, moments: int) -> Levels:
    """The levels of a live run, slot by slot as they were known to the server: reports, and the forecast since."""
    level = read_arrays(path).get("level")
    clients = schedule.clients
    if level is None or level.ndim != 2 or level.shape[1] != clients or not len(level) or level.dtype.kind not in "iu":
        raise InputError(f"{path}: needs an array `level` of slots x {clients} clients")
    slots = evenly(len(level), max(2, moments))
    return Levels(slots, level[slots].astype(np.int64))


def replay(schedule: Schedule, harvest: str, slots: Ints, capacity: int | None, initial: int | None) -> Ints:
    """Levels in quanta at the end of the given slots, slots x clients.

    Without `initial` it is taken from the ledger's first slot, the same for all."""
    sessions = schedule.sessions
    start = sessions.start.astype(np.int64)
    end = schedule.last_slots
    steps = end - start + 1
    step, rest = divmod(int(schedule.energy.training[-1]), max(1, int(steps.sum())))
    fee = sessions.spent - step * steps
    if rest or (fee < 0).any() or fee[sessions.sent < 0].any():
        raise InputError("clients pay different costs per step, which the schedule does not record")
    sent_in = np.where(sessions.sent < 0, schedule.slots, sessions.sent).astype(np.int64)
    begins, ends, sends = (_BySlot(slot, schedule.slots) for slot in (start, end, sent_in))
    weather = parse_harvest(harvest).weather(schedule.clients, schedule.trial)
    level = np.zeros(schedule.clients, np.int64)
    burn = np.zeros(schedule.clients, np.int64)
    out = np.empty((len(slots), schedule.clients), np.int64)
    place = 0
    for slot, (gains, total) in enumerate(rows(weather, schedule.clients, schedule.slots)):
        if slot == 0:
            before = int(schedule.energy.harvested[0]) - total
            level += before // schedule.clients if initial is None else initial
        level += gains
        if capacity is not None:
            np.minimum(level, capacity, out=level)
        burn[sessions.client[begins(slot)]] = step
        level -= burn
        burn[sessions.client[ends(slot)]] = 0
        sent = sends(slot)
        np.subtract.at(level, sessions.client[sent], fee[sent])
        if place < len(slots) and slots[place] == slot:
            out[place] = level
            place += 1
    return out


class _BySlot:
    """The sessions for which something happens in a slot."""

    def __init__(self, slot: Ints, slots: int) -> None:
        self.order = np.argsort(slot, kind="stable")
        self.at = np.searchsorted(slot[self.order], np.arange(slots + 1)).tolist()

    def __call__(self, slot: int) -> Ints:
        return self.order[self.at[slot] : self.at[slot + 1]]
