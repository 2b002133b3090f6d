"""What a live run writes while it runs: the trace, and a checkpoint from which a killed run resumes.

The trace holds everything that reached the policy, so that replaying it restores the policy's state; only tensors need
files of their own.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

import attrs
from attrs import frozen

from pipecycle.deploy.timing import Timer
from pipecycle.deploy.wire.settings import RunSettings
from pipecycle.errors import InputError
from pipecycle.files import make_folder, reason, sealed, sync_folder, unsealed, using, write
from pipecycle.runs.folders import Lock

FORMAT = 2
TRACE, STATE, TENSORS = "trace.jsonl", "checkpoint/state.json", "checkpoint"
Event = dict[str, Any]


@frozen
class Saved:
    """A checkpoint."""

    run: str
    """The run's word, which its orders carry."""
    slot: int
    """The last complete slot."""
    offset: int
    """The length of the trace in bytes at its end."""
    elapsed: float
    identity: str
    forgotten: dict[str, int]
    """Orders sent to each client that were in parts of the trace that a resumed run has cut off."""
    digest: str = ""
    """Of the trace up to there; runs of earlier versions have none."""


class Trace:
    """The files of one run; without a folder nothing is written."""

    def __init__(self, folder: Path | None, timer: Timer, *, resume: bool = False) -> None:
        self.folder, self.timer = folder, timer
        self.began = timer.monotonic()
        self.elapsed = 0.0
        self.forgotten: Counter[str] = Counter()
        self._file: IO[bytes] | None = None
        self._lock = None if folder is None else Lock(folder)
        self._digest = hashlib.sha256()
        self._dirty = False
        if folder is None or self._lock is None:
            return
        with using(folder, "written"):
            make_folder(folder / TENSORS)
            if not resume:
                if (folder / TRACE).exists():
                    raise InputError(f"{folder}: holds a run already; resume it, or choose another folder")
                self._lock.take()
                self._file = (folder / TRACE).open("ab")
                sync_folder(folder)

    def write(self, event: str, slot: int, **fields: Any) -> None:
        """One line; a killed process does not lose it."""
        self._dirty = True
        if self._file is not None:
            line = {"event": event, "slot": slot, "time": round(self.time(), 3), **fields}
            data = json.dumps(line, separators=(",", ":")).encode() + b"\n"
            self._file.write(data)
            self._file.flush()
            self._digest.update(data)

    def sync(self) -> None:
        """Wait until everything is on disk, so that no order leaves that the trace could lose, even if power fails."""
        if self._file is not None:
            os.fsync(self._file.fileno())

    def time(self) -> float:
        """Seconds that the run has lasted, without the pauses before it was resumed."""
        return self.elapsed + self.timer.monotonic() - self.began

    def save(self, run: str, slot: int, identity: str) -> bool:
        """Write a checkpoint, if anything has happened since the last; returns whether it was written."""
        if not self._dirty or self._file is None or self.folder is None:
            return False
        self.sync()
        offset, digest = self._file.tell(), self._digest.hexdigest()
        self._put(Saved(run, slot, offset, self.time(), identity, dict(self.forgotten), digest))
        self._dirty = False
        return True

    def _put(self, saved: Saved) -> None:
        assert self.folder is not None
        write(self.folder / STATE, sealed({"format": FORMAT, **attrs.asdict(saved)}))

    def resume(self, run: RunSettings, identity: str) -> tuple[Saved, list[Event]]:
        """The checkpoint and the events before it; those after it are cut off, and will happen again."""
        assert self.folder is not None
        assert self._lock is not None
        self._lock.take()  # a server that somebody believes dead may still write
        saved, events, rest = read_saved(self.folder)
        run.check_continues(events[0].get("settings", {}))
        if saved.identity != identity:
            raise InputError(f"{self.folder}: the checkpoint is of an earlier version of the policy")
        ended = events[-1]["event"] == "end"
        if run.slots < (least := saved.slot + 1 + ended):
            what = "has ended" if ended else f"is in slot {saved.slot} already"
            raise InputError(f"{self.folder}: that run {what}; slots = {run.slots}: needs at least {least}")
        self.forgotten = Counter(saved.forgotten) + orders(rest)
        self._put(attrs.evolve(saved, forgotten=dict(self.forgotten)))
        self._file = (self.folder / TRACE).open("r+b")
        self._digest = hashlib.sha256(self._file.read(saved.offset))
        self._file.truncate(saved.offset)
        self._file.seek(saved.offset)
        self.elapsed, self.began = saved.elapsed, self.timer.monotonic()
        return saved, events

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._lock is not None:
            self._lock.release()


def orders(events: Iterable[Event]) -> Counter[str]:
    """How many orders to train each client was sent."""
    sent = (event["clients"] for event in events if event["event"] in ("launch", "again"))
    return Counter(str(client) for clients in sent for client in clients)


def read_saved(folder: Path) -> tuple[Saved, list[Event], list[Event]]:
    """A folder's checkpoint, its events up to there, and the complete ones after it."""
    try:
        state = unsealed((folder / STATE).read_bytes())
        data = (folder / TRACE).read_bytes()
    except OSError as error:
        raise InputError(f"{folder}: there is no checkpoint to resume from ({reason(error)})") from None
    except ValueError:
        raise InputError(f"{folder / STATE}: is damaged") from None
    if state.pop("format", None) != FORMAT:
        raise InputError(f"{folder / STATE}: is not a checkpoint of format {FORMAT}")
    try:
        saved = Saved(**state)
        covered = data[: saved.offset]
        if len(covered) < saved.offset or (saved.digest and hashlib.sha256(covered).hexdigest() != saved.digest):
            raise ValueError
        events = [json.loads(line) for line in covered.splitlines()]
    except (TypeError, ValueError):
        raise InputError(f"{folder}: the trace does not fit the checkpoint") from None
    return saved, events, _whole(data[saved.offset :])


def _whole(data: bytes) -> list[Event]:
    events = []
    for line in data.splitlines():
        try:
            events.append(json.loads(line))
        except ValueError:
            break
    return events
