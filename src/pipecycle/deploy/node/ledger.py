"""A node's energy ledger: a small file that is complete at every moment, whatever kills the process.

A session is charged before it begins and settled when it is over, in one write with its reply: a crash in between
leaves it charged once and without a reply.  Replies are kept until the server has them on disk, so that a repeated
order is answered without training or spending again.

There is one battery, and a page for every run that the node serves: runs may take turns.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from copy import deepcopy
from pathlib import Path

import attrs
from attrs import define, field
from flwr.app import ConfigRecord, RecordDict

from pipecycle.deploy.wire.protocol import Order, Report
from pipecycle.errors import InputError
from pipecycle.files import make_folder, sealed, unsealed, using, write

FORMAT = 2
RUNS = 8
"""Runs that are remembered; the one that has been silent for longest is forgotten first."""
BOOKS = "ledger"


@define
class Page:
    """What a node has done for one run."""

    slot: int = -1
    """The last slot whose harvest is in."""
    life: int = 0
    """The latest life of the run of which the node has answered a session."""
    last: int = -1
    """The last session (its k) of that life."""
    spent: int = 0
    """Quanta."""
    answers: dict[str, str] = field(factory=dict)
    """For the key of every order whose reply is kept, the name under which it is stored."""
    kept: dict[str, str] = field(factory=dict)
    """The same for models that stay on the node."""

    @property
    def turn(self) -> tuple[int, int]:
        return self.life, self.last

    def settle(self, order: Order) -> None:
        """Forget what no server can ask for again.  A server that resumes may repeat orders after the settled one, and
        may continue from the last model before it or from the one that this order names.  Other sessions with this
        number or a later one were ordered by servers that died before they wrote it down."""

        def known(stored: dict[str, str]) -> dict[str, str]:
            return {key: name for key, name in stored.items() if _number(key) < order.k or key == order.key}

        self.answers = {key: name for key, name in known(self.answers).items() if _number(key) > order.settled}
        kept = known(self.kept)
        needed = {order.kept, max((k for k in map(_number, kept) if k <= order.settled), default=-1)}
        self.kept = {key: name for key, name in kept.items() if _number(key) > order.settled or _number(key) in needed}


def _number(key: str) -> int:
    return int(key.rpartition("/")[2])


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
    open: str = ""
    """The key of a session that was charged and not yet answered."""
    broken: int = 0
    """Sessions that were charged and never answered."""
    run: str = ""
    """The run that is being served."""
    runs: dict[str, Page] = field(factory=dict)
    """The latest runs, the present one last."""

    @property
    def page(self) -> Page:
        return self.runs.setdefault(self.run, Page())

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

    def pay(self, *, training: int = 0, upload: int = 0) -> None:
        """Spend on the present run."""
        self.training += training
        self.uploads += upload
        self.page.spent += training + upload

    def report(self) -> Report:
        """For the present run: what others have spent is gone for it."""
        page = self.page
        return Report(page.slot, self.harvested, self.overflowed + self.spent - page.spent, page.spent, self.capacity)


class FileStore:
    """A file for the books, and one more beside it for every reply and model that is kept."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def locked(self) -> Iterator[None]:
        """No other process writes meanwhile; the system lifts the lock when the process ends, however it ends."""
        import fcntl

        with using(self.path, "written"):
            make_folder(self.path.parent)
            file = self.path.with_name(f"{self.path.name}.lock").open("w")
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise InputError(f"{self.path}: another session of this node is under way") from None
            yield

    def get(self, name: str) -> bytes | None:
        with using(self._file(name), "read"), suppress(FileNotFoundError):
            return self._file(name).read_bytes()
        return None

    def put(self, name: str, data: bytes) -> None:
        write(self._file(name), data)

    def keep_only(self, names: Collection[str]) -> None:
        """Remove all other entries but the books, and what a process left that was killed while it wrote, but no other
        files.  What cannot be removed now will be next time."""
        entry = r"(?:answer|kept)-[0-9a-f]{16}"
        ours = re.compile(rf"{re.escape(self.path.name)}\.({entry})")
        partial = re.compile(rf"\.{re.escape(self.path.name)}(\.{entry})?\.\d+\.partial")
        with suppress(OSError):
            for path in list(self.path.parent.iterdir()):
                match = ours.fullmatch(path.name)
                if (match and match[1] not in names) or partial.fullmatch(path.name):
                    path.unlink(missing_ok=True)

    def _file(self, name: str) -> Path:
        return self.path if name == BOOKS else self.path.with_name(f"{self.path.name}.{name}")


class StateStore:
    """The memory that Flower keeps for a node while a run lasts; enough for its simulation."""

    RECORD = "pipecycle-ledger"

    def __init__(self, state: RecordDict) -> None:
        self.entries: ConfigRecord = state.setdefault(self.RECORD, ConfigRecord())

    def locked(self) -> AbstractContextManager[None]:
        return nullcontext()

    def get(self, name: str) -> bytes | None:
        value: bytes | None = self.entries.get(name)
        return value

    def put(self, name: str, data: bytes) -> None:
        self.entries[name] = data

    def keep_only(self, names: Collection[str]) -> None:
        for name in self.entries.keys() - {BOOKS, *names}:
            del self.entries[name]


Store = FileStore | StateStore
"""Where a ledger and its replies are: bytes by name, each complete or not there."""


class Ledger:
    """An account in a store."""

    def __init__(self, store: Store, client: int, capacity: int, initial: int) -> None:
        self.store = store
        data = store.get(BOOKS)
        if data is None:
            self.account = Account(client, capacity, harvested=min(initial, capacity))
            self.save()
            return
        try:
            values = unsealed(data)
            if values.pop("format") != FORMAT:
                raise InputError("the ledger is of another format")
            runs = {run: Page(**page) for run, page in values.pop("runs").items()}
            self.account = Account(**values, runs=runs)
        except InputError:
            raise
        except (KeyError, TypeError, AttributeError, ValueError):
            raise InputError("the ledger is damaged, or is none") from None
        if self.account.client != client:
            raise InputError(f"the ledger belongs to client {self.account.client}, not to {client}")
        if self.account.open:  # charged, and then the process died
            self.account.open = ""
            self.account.broken += 1
        self.account.capacity = capacity
        self.account.overflowed += max(0, self.account.level - capacity)

    def save(self) -> None:
        """Write the books; only then remove what they no longer name."""
        values = {"format": FORMAT, **attrs.asdict(self.account)}
        self.store.put(BOOKS, sealed(values).encode())
        pages = self.account.runs.values()
        self.store.keep_only({name for page in pages for name in (*page.answers.values(), *page.kept.values())})

    def enter(self, run: str) -> None:
        """Every run counts its own slots and sessions; what the battery holds is the same for all."""
        account = self.account
        account.run = run
        account.runs[run] = account.runs.pop(run, Page())
        for old in list(account.runs)[:-RUNS]:
            del account.runs[old]

    def answer(self, key: str) -> bytes | None:
        """The reply to the order with this key, if it is kept."""
        name = self.account.page.answers.get(key)
        return None if name is None else self.store.get(name)

    def keep(self, key: str, data: bytes) -> None:
        """Keep a model that stays on the node."""
        self.account.page.kept[key] = self._put("kept", key, data)

    def kept(self, k: int) -> bytes | None:
        """The model of session k."""
        for key, name in self.account.page.kept.items():
            if _number(key) == k:
                return self.store.get(name)
        return None

    def charge(self, key: str, quanta: int) -> Account:
        """Take a whole session's energy before it begins; returns the account as it was, for settling."""
        before = deepcopy(self.account)
        self.account.open = key
        self.account.pay(training=quanta)
        self.save()
        return before

    def settle(self, order: Order, data: bytes) -> None:
        """Write the session's energy and its reply in one step."""
        page = self.account.page
        page.answers[order.key] = self._put("answer", order.key, data)
        page.life, page.last = max(page.turn, order.turn)
        page.settle(order)
        self.account.open = ""
        self.save()

    def _put(self, kind: str, key: str, data: bytes) -> str:
        """Under a new name: what the books on disk name must not change before they are written again."""
        name = f"{kind}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
        self.store.put(name, data)
        return name
