"""Whether the columns of a schedule fit together: what must hold before anybody computes with one from a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pipecycle import checks
from pipecycle.arrays import Array
from pipecycle.checks import at_least
from pipecycle.errors import InputError
from pipecycle.schedule.ancestry import owners
from pipecycle.world.lineage import Kind

if TYPE_CHECKING:
    from pipecycle.schedule.schedule import Schedule

MOST_QUANTA = 2**62
LEDGER = ("harvested", "overflowed", "training", "to_hub", "to_server")
"""Running totals of every schedule."""
TOGETHER = (
    ("sessions", "client start end reference teacher payload sent receiver spent status"),
    ("versions", "kind made seen discarded"),
    ("versions", "base coefficient"),
    ("versions", "update weight"),
    ("publications", "slot version"),
    ("tables", "slot keep"),
    ("energy", " ".join(LEDGER)),
)
"""Columns of one length."""
IN_THE_FIELD = ("download", "lost", "idle", "leaked")
"""Running totals of a fleet in the field, all of them or none."""
WORDS = {"b": "true or false", "i": "whole numbers", "f": "numbers"}


def verify(schedule: Schedule) -> None:
    """Refuse a schedule that cannot be: wrong shapes, numbers out of range or order, a recipe of what does not exist
    yet, an update used twice, energy that is not conserved."""
    _meta(schedule.meta)
    _shapes(schedule)
    _sessions(schedule)
    _versions(schedule)
    _rest(schedule)
    verify_energy(schedule)


def _require(good: bool | np.bool_, what: str) -> None:
    if not good:
        raise InputError(what)


def _meta(meta: dict[str, Any]) -> None:
    for name, kinds in {"policy": str, "settings": dict, "harvest": str, "clients": int, "trial": int}.items():
        _require(isinstance(meta.get(name), kinds), f"meta: {name} is missing or of the wrong kind")
    _require(meta.get("grouping", "") in ("launch", "aggregation", None), "meta: grouping is of the wrong kind")
    at_least(1, most=checks.MOST_CLIENTS).of("clients", meta["clients"])
    at_least(0).of("trial", meta["trial"])
    if "horizon" in meta:
        at_least(1, most=checks.MOST_SLOTS).of("horizon", meta["horizon"])
    if "fleet" in meta:
        checks.text.of("fleet", meta["fleet"])
    for name in ("joules", "slot_seconds"):
        if name in meta:
            checks.number(above=0).of(name, meta[name])
    if meta.get("budget") is not None:
        checks.some_units.of("budget", meta["budget"])


def _shapes(schedule: Schedule) -> None:
    """Every column is flat, of its kind, and as long as its neighbours."""
    slots, clients = schedule.slots, schedule.clients
    for name, column in schedule.arrays().items():
        last = name.rpartition(".")[2]
        kind = "b" if last == "discarded" else "f" if last in ("coefficient", "weight") else "i"
        _require(column.dtype.kind.replace("u", "i") == kind, f"{name}: needs {WORDS[kind]}")
        _require(column.ndim == 1 or (column.ndim == 0 and name in ("length", "samples")), f"{name}: is not flat")
    _require(slots >= 1, "energy: has no slot")
    columns = schedule.arrays()
    for part, fields in TOGETHER:
        lengths = {len(columns[f"{part}.{field}"]) for field in fields.split()}
        _require(len(lengths) == 1, f"{part}: the columns have different lengths ({fields})")
    energy = schedule.energy
    extra = [name for name in (*IN_THE_FIELD, "drained") if getattr(energy, name) is not None]
    _require(len(extra) in (0, 5), f"energy: has {', '.join(extra)} and not the rest")
    for name in extra[:4]:
        _require(len(getattr(energy, name)) == slots, f"energy.{name}: needs one figure per slot")
    for name in ("level", "overflow", *extra[4:]):
        _require(len(getattr(energy, name)) == clients, f"energy.{name}: needs one figure per client")
    for name in ("length", "samples"):
        column = getattr(schedule, name)
        _require(column.ndim == 0 or len(column) == clients, f"{name}: needs one figure, or one per client")
        _require((column >= 1).all(), f"{name}: needs at least 1")


def _sessions(schedule: Schedule) -> None:
    sessions, slots = schedule.sessions, schedule.slots
    _within("sessions.client", sessions.client, 0, schedule.clients)
    _within("sessions.start", sessions.start, 0, slots)
    _rising("sessions.start", sessions.start)
    ended, sent = sessions.end != -1, sessions.sent != -1
    _within("sessions.end", sessions.end[ended], 0, slots)
    _require((sessions.end >= sessions.start)[ended].all(), "sessions.end: is before the start")
    _within("sessions.sent", sessions.sent[sent], 0, slots)
    _require((sessions.sent >= sessions.start)[sent].all(), "sessions.sent: is before the start")
    _within("sessions.receiver", sessions.receiver, 0, 3)
    _require(((sessions.receiver > 0) == sent).all(), "sessions.receiver: does not go with what was sent")
    _within("sessions.payload", sessions.payload, 0, 2)
    _within("sessions.status", sessions.status, 0, 5)
    _within("sessions.spent", sessions.spent, 0, MOST_QUANTA)
    _within("sessions.reference", sessions.reference, 0, len(schedule.versions))
    _require((schedule.versions.made[sessions.reference] <= sessions.start).all(), "sessions.reference: is made later")
    _within("sessions.teacher", sessions.teacher, -1, len(schedule.tables.slot))
    taught = sessions.teacher >= 0
    _require(
        (schedule.tables.slot[sessions.teacher[taught]] <= sessions.start[taught]).all(),
        "sessions.teacher: is made later",
    )
    order = np.argsort(sessions.client, kind="stable")  # and by start within a client
    same = np.diff(sessions.client[order].astype(np.int64)) == 0
    busy = np.maximum(sessions.start, sessions.end)[order]
    _require((sessions.start[order][1:] > busy[:-1])[same].all(), "sessions: a client trains twice at once")


def _versions(schedule: Schedule) -> None:
    versions, sessions = schedule.versions, schedule.sessions
    count = len(versions)
    _require(
        count > 0 and versions.kind[0] == Kind.INITIAL and versions.made[0] == -1, "versions: needs an initial one"
    )
    _within("versions.kind", versions.kind[1:], 1, len(Kind))
    _within("versions.made", versions.made[1:], 0, schedule.slots)
    _rising("versions.made", versions.made)
    _within("versions.seen", versions.seen, 0, len(schedule.publications.slot) + 1)
    _rising("versions.seen", versions.seen)
    makers = _owners("versions.base", versions.base_at, count, len(versions.base))
    _within("versions.base", versions.base, 0, count)
    _require((versions.base < makers).all(), "versions.base: a version is made of a later one")
    makers = _owners("versions.update", versions.update_at, count, len(versions.update))
    _used_once("versions.update", versions.update, schedule)
    _require((sessions.end[versions.update] <= versions.made[makers]).all(), "versions.update: a session ends later")
    for name, column in (("coefficient", versions.coefficient), ("weight", versions.weight)):
        _require(np.isfinite(column).all(), f"versions.{name}: needs finite numbers")


def _rest(schedule: Schedule) -> None:
    published, tables, sessions = schedule.publications, schedule.tables, schedule.sessions
    _within("publications.slot", published.slot, 0, schedule.slots)
    _rising("publications.slot", published.slot)
    _within("publications.version", published.version, 0, len(schedule.versions))
    _require((schedule.versions.made[published.version] <= published.slot).all(), "publications.version: is made later")
    makers = _owners("tables.session", tables.session_at, len(tables.slot), len(tables.session))
    _within("tables.slot", tables.slot, 0, schedule.slots)
    _rising("tables.slot", tables.slot)
    _within("tables.keep", tables.keep, -1, len(tables.slot))
    _require((tables.keep < np.arange(len(tables.keep))).all(), "tables.keep: a table keeps rows of a later one")
    _used_once("tables.session", tables.session, schedule)
    _require((sessions.end[tables.session] <= tables.slot[makers]).all(), "tables.session: a session ends later")
    used = np.zeros(len(sessions), bool)
    used[schedule.versions.update] = True
    used[tables.session] = True
    _require(((sessions.status == 0) == used).all(), "sessions.status: does not go with the recipes")
    launches = schedule.launches
    _within("launches", launches, 0, len(sessions) + 1)
    _rising("launches", launches)
    _require(not len(sessions) or (len(launches) > 0 and launches[0] == 0), "launches: needs to begin with session 0")


def verify_energy(schedule: Schedule) -> None:
    """Running totals never fall, and what came in is spent, stored, overflowed or drained."""
    energy = schedule.energy
    field = () if energy.drained is None else (*IN_THE_FIELD, "drained")
    for name in (*LEDGER, "level", "overflow", *field):
        column = getattr(energy, name)
        _within(f"energy.{name}", column, 0, MOST_QUANTA)
        if name not in ("level", "overflow", "drained"):
            _rising(f"energy.{name}", column)
    _require(
        _sum(energy.level) == int(energy.stored[-1]), "energy: what is harvested is not spent, stored or overflowed"
    )
    if energy.drained is not None:
        _require(_sum(energy.drained) == int(energy.drains[-1]), "energy.drained: does not add up to what drained")
    _require(_sum(energy.overflow) == int(energy.overflowed[-1]), "energy.overflow: does not add up to what overflowed")
    _require(_sum(schedule.sessions.spent) == int(energy.spent[-1]), "sessions.spent: does not add up to what is spent")


def _sum(column: Array) -> int:
    """Exact, whatever the numbers."""
    high, low = column >> 31, column & (2**31 - 1)
    return (int(high.sum()) << 31) + int(low.sum())


def _within(name: str, column: Array, least: int, below: int) -> None:
    good = not len(column) or (int(column.min()) >= least and int(column.max()) < below)
    _require(good, f"{name}: needs numbers from {least} to {below - 1}")


def _rising(name: str, column: Array) -> None:
    _require((column[1:] >= column[:-1]).all(), f"{name}: is not in order")


def _owners(name: str, at: Array, count: int, terms: int) -> Array:
    """The row that each term belongs to, by the offsets of the rows."""
    whole = len(at) == count + 1 and at[0] == 0 and at[-1] == terms
    _require(whole and (at[1:] >= at[:-1]).all(), f"{name}_at: needs to rise from 0 to {terms}")
    return owners(at)


def _used_once(name: str, used: Array, schedule: Schedule) -> None:
    _within(name, used, 0, len(schedule.sessions))
    seen = np.zeros(len(schedule.sessions), bool)
    seen[used] = True
    _require(np.count_nonzero(seen) == len(used), f"{name}: a session is used twice")
    _require((schedule.sessions.end[used] >= 0).all(), f"{name}: a session has not ended")
