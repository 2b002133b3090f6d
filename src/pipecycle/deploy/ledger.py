"""A node's energy ledger: a small file that is whole at any moment, whatever kills the process.

A session is charged before it begins and settled when it is over, in one write with its answer: a crash in between
leaves it charged once and unanswered.  Answers are kept until the server has them on disk, so that a repeated order
is answered without training or spending again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import attrs
from attrs import define, field
from flwr.app import ConfigRecord, RecordDict

from pipecycle.deploy.protocol import Report
from pipecycle.errors import InputError
from pipecycle.files import reason, write

FORMAT = 1


class Busy(Exception):
    """Another process has the ledger."""


@define
class Account:
    """Quanta since the ledger was opened; `harvested` includes the initial charge, so that always
    harvested = training + uploads + level + overflowed."""

    client: int
    capacity: int
    harvested: int = 0
    overflowed: int = 0
    training: int = 0
    uploads: int = 0
    slot: int = -1
    """The last slot whose harvest is in."""
    run: str = ""
    """Whose slots these are."""
    last: int = -1
    """The last session (its k) that was answered in this run."""
    open: str = ""
    """The key of a session that was charged and not yet answered."""
    broken: int = 0
    """Sessions that were charged and never answered."""
    kept: str = ""
    """The session (run and k) whose model the node has kept for itself."""
    answers: dict[str, str] = field(factory=dict)
    """Key to the name under which the answer is stored."""

    @property
    def spent(self) -> int:
        return self.training + self.uploads

    @property
    def level(self) -> int:
        return self.harvested - self.overflowed - self.spent

    def gain(self, quanta: int) -> None:
        """Harvest; what does not fit is lost."""
        self.harvested += quanta
        self.overflowed += max(0, self.level - self.capacity)

    def measure(self, level: int) -> None:
        """A gauge knows the level: what it shows beyond the books was harvested, what is missing went elsewhere."""
        difference = min(level, self.capacity) - self.level
        self.harvested += max(0, difference)
        self.overflowed += max(0, -difference)

    def report(self) -> Report:
        return Report(self.slot, self.harvested, self.overflowed, self.spent, self.capacity)


class Store(Protocol):
    """Where a ledger and its answers live."""

    def load(self) -> dict[str, Any] | None: ...

    def save(self, values: dict[str, Any]) -> None: ...

    def put(self, name: str, data: bytes) -> None: ...

    def get(self, name: str) -> bytes | None: ...

    def drop(self, name: str) -> None: ...


class FileStore:
    """A file, and one more beside it for every answer that is kept."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else writes meanwhile; the system lifts the lock when the process ends, however it ends."""
        import fcntl

        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = self.path.with_name(f"{self.path.name}.lock").open("w")
        except OSError as error:
            raise InputError(f"{self.path}: cannot be written ({reason(error)})") from None
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise Busy from None
            yield

    def load(self) -> dict[str, Any] | None:
        try:
            values = json.loads(self.path.read_text())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise InputError(f"{self.path}: cannot be read ({reason(error)})") from None
        except ValueError:
            values = None
        if not isinstance(values, dict):
            raise InputError(f"{self.path}: is not a ledger, or is damaged")
        return values

    def save(self, values: dict[str, Any]) -> None:
        write(self.path, json.dumps(values, sort_keys=True) + "\n")

    def put(self, name: str, data: bytes) -> None:
        write(self._beside(name), data)

    def get(self, name: str) -> bytes | None:
        try:
            return self._beside(name).read_bytes()
        except FileNotFoundError:
            return None

    def drop(self, name: str) -> None:
        self._beside(name).unlink(missing_ok=True)

    def _beside(self, name: str) -> Path:
        return self.path.with_name(f"{self.path.name}.{name}")


class StateStore:
    """The memory that Flower keeps for a node while a run lasts; enough for its simulation."""

    NAME = "pipecycle-ledger"

    def __init__(self, state: RecordDict) -> None:
        self.state = state

    @contextmanager
    def locked(self) -> Iterator[None]:
        yield

    def load(self) -> dict[str, Any] | None:
        record = self.state.get(self.NAME)
        return None if record is None else dict(json.loads(record["ledger"]))

    def save(self, values: dict[str, Any]) -> None:
        kept = {name: data for name, data in self.state.get(self.NAME, {}).items() if name != "ledger"}
        self.state[self.NAME] = ConfigRecord({**kept, "ledger": json.dumps(values)})

    def put(self, name: str, data: bytes) -> None:
        self.state[self.NAME] = ConfigRecord({**self.state.get(self.NAME, {}), name: data})

    def get(self, name: str) -> bytes | None:
        return self.state.get(self.NAME, {}).get(name)  # type: ignore[no-any-return]

    def drop(self, name: str) -> None:
        self.state[self.NAME] = ConfigRecord(
            {key: value for key, value in self.state.get(self.NAME, {}).items() if key != name}
        )


class Ledger:
    """An account in a store."""

    def __init__(self, store: Store, client: int, capacity: int, initial: int) -> None:
        self.store = store
        values = store.load()
        if values is None:
            self.account = Account(client, capacity, harvested=min(initial, capacity))
            self.save()
            return
        try:
            if values.pop("format") != FORMAT:
                raise InputError("the ledger is of another format")
            self.account = Account(**values)
        except (KeyError, TypeError):
            raise InputError("the ledger is damaged") from None
        if self.account.client != client:
            raise InputError(f"the ledger belongs to client {self.account.client}, not to {client}")
        if self.account.open:  # charged, and then the process died
            self.account.open = ""
            self.account.broken += 1
        self.account.capacity = capacity
        self.account.overflowed += max(0, self.account.level - capacity)

    def save(self) -> None:
        self.store.save({"format": FORMAT, **attrs.asdict(self.account)})

    def enter(self, run: str) -> None:
        """A new run begins to count its slots and sessions; what the battery holds stays."""
        if run != self.account.run:
            for name in self.account.answers.values():
                self.store.drop(name)
            self.account.run, self.account.slot, self.account.last, self.account.answers = run, -1, -1, {}

    def answer(self, key: str) -> bytes | None:
        """What was answered to this key."""
        name = self.account.answers.get(key)
        return None if name is None else self.store.get(name)

    def keep(self, run: str, k: int, data: bytes) -> None:
        """A model that does not travel; the next one replaces it."""
        self.store.put("kept", data)
        self.account.kept = f"{run}/{k}"

    def kept(self, run: str, k: int) -> bytes | None:
        return self.store.get("kept") if self.account.kept == f"{run}/{k}" else None

    def charge(self, key: str, quanta: int) -> Account:
        """Take a whole session's energy before it begins; returns the account as it was, for settling."""
        before = attrs.evolve(self.account, answers=dict(self.account.answers))
        self.account.open = key
        self.account.training += quanta
        self.save()
        return before

    def settle(self, key: str, k: int, data: bytes, settled: int) -> None:
        """The session's energy and its answer, in one write; answers that the server has are dropped."""
        name = hashlib.sha256(key.encode()).hexdigest()[:16]
        self.store.put(name, data)
        account = self.account
        account.open, account.last = "", max(account.last, k)
        account.answers[key] = name
        old = {one: where for one, where in account.answers.items() if int(one.rpartition("/")[2]) <= settled}
        for one in old:
            del account.answers[one]
        self.save()
        for where in old.values():
            self.store.drop(where)
