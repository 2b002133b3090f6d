"""Plans a configuration while somebody waits for it, and packs what the page draws."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
from attrs import define, field

from pipecycle.errors import InputError
from pipecycle.runs.config import Config
from pipecycle.runs.planning import planning
from pipecycle.schedule.schedule import Schedule
from pipecycle.schedule.summary import sentences, summarise, warnings
from pipecycle.studio.packing import pack
from pipecycle.studio.picture import Columns, moments, picture
from pipecycle.studio.settings import command
from pipecycle.world.energy import UNIT
from pipecycle.world.streams import Ints

MOST_SECONDS = 30.0
MOST_SESSIONS = 1_000_000
MOST_LEVELS = 1_000_000
"""Battery levels in a message; with more clients there are fewer moments."""
LOOK_EVERY = 16
"""Slots between two looks at whether the plan is still wanted."""
MOST_KEPT = 64 << 20
"""Bytes of messages that are kept, since a setting is often put back to what it was."""
WAITING = 32


class Superseded(Exception):
    """A newer request of the same page for the same scheduler has come in."""


@define
class Desk:
    """One plan at a time, the newest request of every page first, and the last messages."""

    _turn: threading.Lock = field(factory=threading.Lock)
    _guard: threading.Lock = field(factory=threading.Lock)
    _newest: OrderedDict[tuple[str, str], int] = field(factory=OrderedDict)
    _kept: OrderedDict[str, bytes] = field(factory=OrderedDict)
    _waiting: int = 0

    def ask(self, page: str, side: str, number: int, config: Config) -> bytes:
        """The message about a configuration; `Superseded` as soon as a newer one is asked for."""
        key = (page, side)
        with self._guard:
            if number < self._newest.get(key, -1):
                raise Superseded
            self._newest[key] = number
            self._newest.move_to_end(key)
            while len(self._newest) > 1000:
                self._newest.popitem(last=False)
        return self.message(config, lambda: self._newest.get(key, number) == number)

    def message(self, config: Config, wanted: Callable[[], bool] = lambda: True) -> bytes:
        identity = config.text()
        with self._guard:
            found = self._kept.get(identity)
            if found is None and self._waiting >= WAITING:
                raise InputError(f"more than {WAITING} plans are waited for at once; ask again later")
            self._waiting += 1
        try:
            if found is None:
                while not self._turn.acquire(timeout=0.05):
                    if not wanted():
                        raise Superseded
                try:
                    found = message(config, wanted)
                finally:
                    self._turn.release()
        finally:
            with self._guard:
                self._waiting -= 1
        with self._guard:
            self._kept[identity] = found
            self._kept.move_to_end(identity)
            while sum(map(len, self._kept.values())) > MOST_KEPT and len(self._kept) > 1:
                self._kept.popitem(last=False)
        return found


def message(config: Config, wanted: Callable[[], bool] = lambda: True) -> bytes:
    """Plan a configuration and pack its figures and pictures."""
    began, processor = time.perf_counter(), time.thread_time()
    schedule, levels, slots = planned(config, wanted)
    planned_in = time.perf_counter() - began
    if not wanted():
        raise Superseded
    figures = summarise(schedule)
    if not wanted():
        raise Superseded
    facts, columns = picture(schedule)
    more, battery = _battery(levels, slots)
    facts |= more | {
        "policy": config.policy,
        "clients": schedule.clients,
        "slots": schedule.slots,
        "session": config.world.session,
        "figures": figures,
        "sentences": sentences(figures),
        "warnings": warnings(figures),
        "toml": config.text(),
        "commands": {verb: command(config, verb) for verb in ("plan", "run")},
        "took": {
            "plan": round(1000 * planned_in, 1),
            "all": round(1000 * (time.perf_counter() - began), 1),
            "cpu": round(1000 * (time.thread_time() - processor), 1),
        },
    }
    return pack(facts, columns | battery)


def planned(config: Config, wanted: Callable[[], bool] = lambda: True) -> tuple[Schedule, Ints, Ints]:
    """The schedule, and the battery levels in quanta at the end of some slots, a row for each."""
    run = planning(config)
    clients = config.world.clients
    due = moments(config.world.slots, max(50, min(500, MOST_LEVELS // clients)))
    levels = np.empty((len(due), clients), np.int64)
    ends = time.monotonic() + MOST_SECONDS
    row = 0
    following = int(due[0])
    for slot in run.steps():
        if slot == following:
            levels[row] = run.fleet.level
            row += 1
            following = int(due[row]) if row < len(due) else -1
        if slot % LOOK_EVERY == 0:
            if not wanted():
                raise Superseded
            if time.monotonic() > ends:
                raise InputError(f"planning {slot:,} slots took more than {MOST_SECONDS:g} s, and was given up")
            if len(run.fleet.client) > MOST_SESSIONS:
                raise InputError(f"more than {MOST_SESSIONS:,} sessions in {slot:,} slots: fewer slots can be drawn")
    return run.schedule(), levels[:row], due[:row]


def _battery(levels: Ints, slots: Ints) -> tuple[dict[str, Any], Columns]:
    """Levels client by client, as parts of the fullest one."""
    top = max(1, int(levels.max(initial=0)))
    parts = np.round(levels.T * (65535 / top)).astype("u2")
    return {"fullest": top / UNIT}, {"battery.level": parts.ravel(), "battery.moment": slots.astype("i4")}
