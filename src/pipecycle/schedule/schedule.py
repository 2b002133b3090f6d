"""The record of what a policy decided: an immutable set of columns that any trainer can execute."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from enum import IntEnum
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
from attrs import frozen

from pipecycle.arrays import Array, read_arrays
from pipecycle.errors import InputError, shown
from pipecycle.files import write
from pipecycle.schedule.ancestry import Ancestry, busy_groups
from pipecycle.schedule.verify import verify
from pipecycle.showing import Shown
from pipecycle.world.energy import UNIT, units
from pipecycle.world.streams import Ints

if TYPE_CHECKING:
    import pandas

FORMAT, FIELD = 1, 2
"""Of a file: FIELD has the ledger of a fleet in the field, and no other difference."""


class Status(IntEnum):
    """What became of a session."""

    USED = 0
    """Its update (or logit table) entered a recipe."""
    UNUSED = 1
    """Finished, and never used."""
    LOST = 2
    """Failed in the middle, or its transmission was given up; live, it never came back."""
    DECLINED = 3
    """Refused by the client (live only)."""
    IN_FLIGHT = 4
    """Still training when the record ends."""


class Sent(IntEnum):
    """Whom a session's result was transmitted to."""

    NOT = 0
    TO_HUB = 1
    TO_SERVER = 2


@frozen(eq=False)
class Sessions:
    """One row per session, in the order of their starts."""

    client: Array
    start: Array
    """First training slot."""
    end: Array
    """Last training slot, -1 while in flight."""
    reference: Array
    """The version it starts from."""
    teacher: Array
    """The logit table it learns from besides, -1 for none."""
    payload: Array
    """0: it reports an update, 1: a logit table."""
    sent: Array
    """The slot in which it was transmitted, -1 if never."""
    receiver: Array
    """A `Sent`."""
    spent: Array
    """Quanta, training and transmission."""
    status: Array
    """A `Status`."""

    def __len__(self) -> int:
        return len(self.client)


@frozen(eq=False)
class Versions:
    """One row per version; `base[base_at[v]:base_at[v + 1]]` are the versions in its recipe, likewise updates."""

    kind: Array
    made: Array
    """The slot in which it was made, -1 for the initial model."""
    seen: Array
    """How many versions had been published by then."""
    discarded: Array
    base_at: Array
    base: Array
    coefficient: Array
    update_at: Array
    update: Array
    """Session ids."""
    weight: Array

    def __len__(self) -> int:
        return len(self.kind)


@frozen(eq=False)
class Publications:
    """What the server served: `version[k]` from the slot after `slot[k]`'s decisions on."""

    slot: Array
    version: Array

    def by(self, slot: int) -> int:
        """How many there were once `slot` slots had elapsed."""
        return int(np.searchsorted(self.slot, slot - 1, side="right"))


@frozen(eq=False)
class Tables:
    """FLDA's teachers: table t averages `session[session_at[t]:session_at[t + 1]]`, missing rows from `keep`."""

    slot: Array
    keep: Array
    session_at: Array
    session: Array


@frozen(eq=False)
class Energy:
    """Quanta.  The first five are running totals at the end of every slot, the next two one figure per client.

    A fleet in the field (`pipecycle.world.field`) has four more running totals, and what drained from each client."""

    harvested: Array
    overflowed: Array
    training: Array
    to_hub: Array
    to_server: Array
    level: Array
    """What each battery holds at the end."""
    overflow: Array
    """What each client could not store."""
    download: Array | None = None
    lost: Array | None = None
    """Transmissions that did not arrive, downloads and steps of sessions that failed."""
    idle: Array | None = None
    leaked: Array | None = None
    drained: Array | None = None
    """Idled away and leaked, by client."""

    @property
    def purposes(self) -> dict[str, Array]:
        """What energy is spent on, as running totals."""
        names = ("training", "to_hub", "to_server", "download", "lost")
        return {name: total for name in names if (total := getattr(self, name)) is not None}

    @property
    def spent(self) -> Ints:
        return np.asarray(sum(self.purposes.values()), np.int64)

    @property
    def drains_by_cause(self) -> dict[str, Array]:
        """What is neither spent nor stored nor overflowed, as running totals."""
        return {name: total for name in ("idle", "leaked") if (total := getattr(self, name)) is not None}

    @property
    def drains(self) -> Ints:
        """Idled away and leaked."""
        return np.asarray(sum(self.drains_by_cause.values(), np.zeros_like(self.harvested)), np.int64)

    @property
    def stored(self) -> Ints:
        return np.asarray(self.harvested - self.overflowed - self.spent - self.drains, np.int64)


@frozen(eq=False, slots=False)
class Schedule(Shown):
    """A planned (or lived) run.  `meta` holds what was asked for; the rest is what happened.

    >>> from pipecycle import plan
    >>> schedule = plan("pipecycle(groups=3)", harvest=0.3, clients=20, slots=600)
    >>> schedule
    Schedule(pipecycle, 20 clients, 600 slots, trial 0: 158 sessions, 77 aggregations, 3,264 units)
    >>> round(schedule.fairness(), 3), schedule.budget_slot(2000)
    (0.997, 389)
    >>> print(schedule.summary())
    >>> schedule.frame()[["client", "start", "end", "reference", "status"]].head(3)
    >>> schedule.plot("participation")
    """

    meta: dict[str, Any]
    sessions: Sessions
    versions: Versions
    publications: Publications
    tables: Tables
    energy: Energy
    length: Array
    """Session length in slots: one figure, or one per client."""
    samples: Array
    """Samples used per session: one figure, or one per client."""
    launches: Array
    """The first session of every batch that was started together."""

    def __attrs_post_init__(self) -> None:
        for column in self.arrays().values():
            column.flags.writeable = False

    @property
    def policy(self) -> str:
        return str(self.meta["policy"])

    @property
    def clients(self) -> int:
        return int(self.meta["clients"])

    @property
    def trial(self) -> int:
        return int(self.meta["trial"])

    @property
    def slots(self) -> int:
        """How many slots have elapsed."""
        return len(self.energy.harvested)

    @property
    def end(self) -> tuple[int, float]:
        """Slots elapsed and units spent, in all."""
        return self.slots, units(int(self.energy.spent[-1])) if self.slots else 0.0

    @cached_property
    def ancestry(self) -> Ancestry:
        """Events, chains, lag, coverage: everything about who descends from whom."""
        return Ancestry(self.versions, self.publications, self.sessions, self.clients)

    # Answers.

    def budget_slot(self, budget: float) -> int | None:
        """The first slot at whose end the fleet has spent at least the budget."""
        slot = int(np.searchsorted(self.energy.spent, int(np.ceil(budget * UNIT))))
        return slot if slot < self.slots else None

    def participation(self) -> Ints:
        """Sessions started by every client."""
        return np.bincount(self.sessions.client, minlength=self.clients)

    def fairness(self) -> float | None:
        """Jain's index of sessions per client: 1 when all took part equally often, 1/N when only one did."""
        counts = self.participation().astype(np.float64)
        squares = float((counts**2).sum())
        return float(counts.sum()) ** 2 / (len(counts) * squares) if squares else None

    def wasted(self) -> int:
        """Sessions whose update was never used, or only in a hub model that was discarded."""
        makers = np.repeat(self.versions.discarded, np.diff(self.versions.update_at))
        return int((self.sessions.status == Status.UNUSED).sum()) + int(makers.sum())

    def status_counts(self) -> dict[str, int]:
        """How many sessions were used, unused, lost, declined and in flight."""
        counts = np.bincount(self.sessions.status, minlength=len(Status))
        return {status.name.lower(): int(counts[status]) for status in Status}

    def concurrency(self) -> Ints | None:
        """Groups in training in every slot; None for policies without groups."""
        if self.meta["grouping"] is None:
            return None
        group, kept = self.launch_of_session, np.arange(len(self.sessions))
        if self.meta["grouping"] == "aggregation":
            group = self.ancestry.event_of_session
            kept = np.flatnonzero(group > 0)
        return busy_groups(group[kept], self.sessions.start[kept], self.last_slots[kept], self.slots)

    def training(self) -> Ints:
        """Clients in training in every slot."""
        return busy_groups(np.arange(len(self.sessions)), self.sessions.start, self.last_slots, self.slots)

    @property
    def last_slots(self) -> Ints:
        """The last slot of each session; of those in flight, the last of the record."""
        return np.asarray(np.where(self.sessions.end < 0, self.slots - 1, self.sessions.end), np.int64)

    @property
    def launch_of_session(self) -> Ints:
        """The number of the batch that each session was started in."""
        return np.repeat(np.arange(len(self.launches)), np.diff(self.launches, append=len(self.sessions)))

    def frame(self) -> pandas.DataFrame:
        """A row per session: client, first and last slot, reference, when and to whom it was sent, units, status."""
        import pandas

        rows = self.sessions
        words = {kind: [member.name.lower().replace("_", " ") for member in kind] for kind in (Status, Sent)}
        return pandas.DataFrame(
            {
                "client": rows.client,
                "start": rows.start,
                "end": rows.end,
                "reference": rows.reference,
                "sent": rows.sent,
                "receiver": [words[Sent][code] for code in rows.receiver.tolist()],
                "energy": rows.spent / UNIT,
                "status": [words[Status][code] for code in rows.status.tolist()],
            }
        )

    # Identity.

    def arrays(self) -> dict[str, Array]:
        """All columns by name, `sessions.client` and so on."""
        columns: dict[str, Array] = {"length": self.length, "samples": self.samples, "launches": self.launches}
        for part in _PARTS:
            for name, value in attrs.asdict(getattr(self, part), recurse=False).items():
                if value is not None:
                    columns[f"{part}.{name}"] = value
        return columns

    def digest(self) -> str:
        """SHA-256 over everything that decides what a trainer does; equal schedules have equal digests."""
        whole = hashlib.sha256(json.dumps(self.meta, sort_keys=True).encode())
        for name, column in sorted(self.arrays().items()):
            data = np.asarray(column, order="C")
            little = data.astype(data.dtype.newbyteorder("<"), copy=False)
            whole.update(f"{name}:{little.dtype.str}:{little.shape}".encode())
            whole.update(little.tobytes())
        return whole.hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schedule) and self.differences(other) == []

    def __hash__(self) -> int:
        return hash(self.digest())

    def differences(self, other: Schedule) -> list[str]:
        """Names of what differs: keys of `meta`, then columns."""
        keys = sorted(set(self.meta) | set(other.meta))
        differing = [f"meta.{key}" for key in keys if self.meta.get(key) != other.meta.get(key)]
        mine, theirs = self.arrays(), other.arrays()
        names = [*mine, *(name for name in theirs if name not in mine)]
        return differing + [name for name in names if not _equal(mine.get(name), theirs.get(name))]

    def __repr__(self) -> str:
        return (
            f"Schedule({self.policy}, {self.clients} clients, {self.slots:,} slots, trial {self.trial}: "
            f"{len(self.sessions):,} sessions, {self.ancestry.events:,} aggregations, "
            f"{self.end[1]:,.0f} units)"
        )

    # Files.

    def save(self, path: str | Path) -> None:
        """Write an .npz (any numpy opens it), without pickle, whole or not at all; equal schedules, equal bytes."""
        number = FORMAT if self.energy.lost is None else FIELD
        text = np.frombuffer(json.dumps({"format": number, **self.meta}, sort_keys=True).encode(), np.uint8)
        data = io.BytesIO()
        with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            for name, column in {"meta": text, **self.arrays()}.items():
                entry = zipfile.ZipInfo(f"{name}.npy", (1980, 1, 1, 0, 0, 0))
                entry.compress_type = zipfile.ZIP_DEFLATED
                with archive.open(entry, "w", force_zip64=True) as file:
                    np.lib.format.write_array(file, np.asarray(column, order="C"), allow_pickle=False)
        write(Path(path), data.getvalue())

    @staticmethod
    def load(path: str | Path) -> Schedule:
        """Read what `save` wrote, or a run folder's plan; anything else is refused in one sentence, before it can do
        harm."""
        path = Path(path) / "schedule.npz" if Path(path).is_dir() else Path(path)
        columns = read_arrays(path)
        try:
            meta = json.loads(columns.pop("meta").tobytes())
            made_for = meta.pop("format")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise InputError(f"{path}: is not a schedule, or is damaged (meta)") from None
        if made_for not in (FORMAT, FIELD):
            known = f"formats {FORMAT} and {FIELD}"
            raise InputError(f"{path}: is a schedule of format {shown(made_for)}, this version reads {known}")
        try:
            parts: dict[str, Any] = {part: kind(**_part(columns, part)) for part, kind in _PARTS.items()}
            whole: dict[str, Any] = {name: columns[name] for name in ("length", "samples", "launches")}
            schedule = Schedule(meta=meta, **whole, **parts)
            if (made_for == FIELD) != (schedule.energy.lost is not None):
                raise TypeError
            verify(schedule)
        except (KeyError, TypeError):
            raise InputError(f"{path}: is not a schedule, or is damaged (a column is missing or unknown)") from None
        except InputError as error:
            raise InputError(f"{path}: is not a schedule, or is damaged ({error})") from None
        return schedule


_PARTS: dict[str, Any] = {kind.__name__.lower(): kind for kind in (Sessions, Versions, Publications, Tables, Energy)}


def _part(columns: dict[str, Array], part: str) -> dict[str, Array]:
    return {name.removeprefix(f"{part}."): value for name, value in columns.items() if name.startswith(f"{part}.")}


def _equal(mine: Array | None, theirs: Array | None) -> bool:
    return mine is not None and theirs is not None and np.array_equal(mine, theirs)
