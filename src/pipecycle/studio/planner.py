"""Plans a configuration while somebody waits for it, and packs what the page draws."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipecycle.errors import InputError
from pipecycle.results import evenly
from pipecycle.runs.config import Config
from pipecycle.runs.planning import planning
from pipecycle.schedule.schedule import Schedule
from pipecycle.schedule.summary import sentences, summarise, warnings
from pipecycle.studio.picture import Columns, picture
from pipecycle.studio.settings import command
from pipecycle.world.energy import UNIT
from pipecycle.world.streams import Ints

MOST_SESSIONS = 1_000_000
MOST_LEVELS = 1_000_000
"""Battery levels in a message; with more clients there are fewer moments."""


ALIGNED = 8
"""Bytes at a multiple of which columns begin: a browser then reads them without copying."""
TYPES = {
    "i4": "Int32Array",
    "i2": "Int16Array",
    "u2": "Uint16Array",
    "i1": "Int8Array",
    "u1": "Uint8Array",
    "f4": "Float32Array",
}


class Superseded(Exception):
    """A newer request of the same page for the same scheduler has come in."""


Watch = Callable[[int], None]
"""Called with the number of slots that are over; raises `Superseded` once the plan is not wanted any more."""


def message(config: Config, watch: Watch = lambda over: None) -> bytes:
    """Plan a configuration and pack its figures and pictures."""
    began, processor = time.perf_counter(), time.thread_time()
    schedule, levels, slots = planned(config, watch)
    planned_in = time.perf_counter() - began
    watch(schedule.slots)
    figures = summarise(schedule)
    watch(schedule.slots)
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


def planned(config: Config, watch: Watch = lambda over: None) -> tuple[Schedule, Ints, Ints]:
    """The schedule, and the battery levels in quanta at the end of some slots, a row for each."""
    run = planning(config)
    clients = config.world.clients
    due = evenly(config.world.slots, max(50, min(500, MOST_LEVELS // clients)))
    levels = np.empty((len(due), clients), np.int64)
    row = 0
    following = int(due[0])
    for slot in run.steps():
        if slot == following:
            levels[row] = run.fleet.level
            row += 1
            following = int(due[row]) if row < len(due) else -1
        watch(slot + 1)
        if len(run.fleet.client) > MOST_SESSIONS:
            raise InputError(f"more than {MOST_SESSIONS:,} sessions in {slot:,} slots: fewer slots can be drawn")
    return run.schedule(), levels[:row], due[:row]


def _battery(levels: Ints, slots: Ints) -> tuple[dict[str, Any], Columns]:
    """Levels client by client, as parts of the fullest one."""
    top = int(levels.max(initial=0))
    parts = np.round(levels.T * (65535 / max(1, top))).astype("u2")
    return {"fullest": top / UNIT}, {"battery.level": parts.ravel(), "battery.moment": slots.astype("i4")}


def pack(facts: Mapping[str, Any], columns: Mapping[str, NDArray[Any]]) -> bytes:
    """The length of a JSON header (four bytes, the lowest first), the header, then the columns it lists."""
    listed: dict[str, tuple[str, int, int]] = {}
    parts: list[bytes] = []
    offset = 0
    for name, column in columns.items():
        kind = TYPES[column.dtype.str[1:]]
        data = np.ascontiguousarray(column, column.dtype.newbyteorder("<")).tobytes()
        listed[name] = (kind, offset, len(column))
        fill = -len(data) % ALIGNED
        parts += [data, bytes(fill)]
        offset += len(data) + fill
    header = json.dumps({**facts, "columns": listed}, separators=(",", ":"), allow_nan=False).encode()
    header += b" " * (-(len(header) + 4) % ALIGNED)
    return b"".join([len(header).to_bytes(4, "little"), header, *parts])
