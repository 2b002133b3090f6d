"""Which samples each client holds, and which are used for testing."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

import numpy as np
from attrs import evolve, field, frozen
from numpy.typing import ArrayLike

from pipecycle.data.task import Task
from pipecycle.errors import InputError
from pipecycle.world.streams import Ints, streams


@frozen(eq=False, repr=False)
class Split:
    """Client i holds the training samples `split[i]`, that is `indices[starts[i]:starts[i + 1]]`, in rising order.

    `test` are the test samples in use, `validation` training samples that nobody trains on, and `notes` say what did
    not go as asked for, such as a class that ran out.  Build one with `iid`, `dirichlet`, `load_split` or
    `Split.of`."""

    indices: Ints
    starts: Ints
    test: Ints
    notes: tuple[str, ...] = ()
    validation: Ints = field(factory=lambda: np.empty(0, np.int64))

    @classmethod
    def of(
        cls,
        clients: Iterable[ArrayLike],
        test: ArrayLike,
        notes: Iterable[str] = (),
        validation: ArrayLike | None = None,
    ) -> Split:
        """From each client's indices in any order; nothing may be negative, repeated within a client or empty."""
        rows = [_rising(values, f"client {client}") for client, values in enumerate(clients)]
        if not rows:
            raise InputError("a split needs at least 1 client")
        starts = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
        held = np.empty(0, np.int64) if validation is None else _rising(validation, "validation")
        return cls(np.concatenate(rows), starts, _rising(test, "test"), tuple(notes), held)

    def __iter__(self) -> Iterator[Ints]:
        return (self[client] for client in range(len(self)))

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, client: int) -> Ints:
        if not 0 <= client < len(self):
            raise IndexError(f"client {client}: there are {len(self)}")
        return self.indices[self.starts[client] : self.starts[client + 1]]

    @property
    def sizes(self) -> Ints:
        """Samples of every client."""
        return np.diff(self.starts)

    def used(self, session: ArrayLike, batch: int) -> Ints:
        """Samples that a session of `session` steps uses, by client: the weight of its update."""
        return np.asarray(session) * np.minimum(batch, self.sizes)

    def check(self, task: Task, overlap: bool = False) -> Split:
        """Itself, if every index exists in the task and, unless `overlap`, no two clients share a sample."""
        total = len(task.y_train)
        outside = np.flatnonzero(self.indices >= total)
        if len(outside):
            client = int(np.searchsorted(self.starts, outside[0], side="right")) - 1
            index = self.indices[outside[0]]
            raise InputError(f"client {client} holds index {index}: {task.name} has 0 to {total - 1}")
        if self.test[-1] >= len(task.y_test):
            raise InputError(f"test holds index {self.test[-1]}: {task.name} has 0 to {len(task.y_test) - 1}")
        if len(self.validation):
            if self.validation[-1] >= total:
                raise InputError(f"validation holds index {self.validation[-1]}: {task.name} has 0 to {total - 1}")
            shared = np.intersect1d(self.validation, self.indices)
            if len(shared):
                raise InputError(f"validation holds index {shared[0]}, which a client holds too")
        if not overlap:
            order = np.argsort(self.indices, kind="stable")
            ranked = self.indices[order]
            twice = np.flatnonzero(ranked[1:] == ranked[:-1])
            if len(twice):
                first, second = np.searchsorted(self.starts, order[twice[0] : twice[0] + 2], side="right") - 1
                raise InputError(f"clients {first} and {second} share index {ranked[twice[0]]}: overlap is not allowed")
        return self

    def hold_back(self, count: int, task: Task, trial: int) -> Split:
        """With `count` validation samples out of those that no client holds, every subset equally likely."""
        free = np.setdiff1d(np.arange(len(task.y_train)), self.indices)
        if count > len(free):
            raise InputError(f"validation = {count}: the clients leave {len(free)} training samples of {task.name}")
        return evolve(self, validation=streams(trial)("validation").sample(free, count))

    def trimmed(self, sizes: Ints, trial: int) -> Split:
        """With `sizes` samples of the clients, drawn from those that they have."""
        if (sizes > self.sizes).any():
            raise InputError(f"samples = {int(sizes.max())}: the clients have {int(self.sizes.min())} each")
        draw = streams(trial)
        rows = [draw("share", client).sample(row, int(sizes[client])) for client, row in enumerate(self)]
        starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        return evolve(self, indices=np.concatenate(rows), starts=starts)

    def counts(self, task: Task) -> Ints:
        """Samples by client and class."""
        cells = np.repeat(np.arange(len(self)), self.sizes) * task.classes + task.y_train[self.indices]
        return np.bincount(cells, minlength=len(self) * task.classes).reshape(len(self), task.classes)

    def show(self, task: Task) -> list[dict[str, int]]:
        """`counts` as rows of a table: client, samples, then one column per class."""
        return [
            {"client": client, "samples": sum(row), **{str(label): count for label, count in enumerate(row)}}
            for client, row in enumerate(self.counts(task).tolist())
        ]

    def digest(self) -> str:
        """A fingerprint of who holds what and of the test subset."""
        state = hashlib.blake2b(digest_size=16)
        for part in (self.starts, self.indices, self.test, *([self.validation] if len(self.validation) else [])):
            state.update(np.int64(len(part)).astype("<i8").tobytes())
            state.update(part.astype("<i8").tobytes())
        return state.hexdigest()

    def __repr__(self) -> str:
        least, most = int(self.sizes.min()), int(self.sizes.max())
        each = f"{least:,}" if least == most else f"{least:,} to {most:,}"
        notes = "".join(f"; {note}" for note in self.notes[:3]) + ("; ..." if len(self.notes) > 3 else "")
        held = f", {len(self.validation):,} validation" if len(self.validation) else ""
        return f"Split({len(self):,} clients x {each} samples, {len(self.test):,} test{held}{notes})"


def _rising(values: ArrayLike, who: str) -> Ints:
    try:
        array = np.asarray(values)
    except ValueError:
        raise InputError(f"{who}: needs a flat list of indices") from None
    if array.ndim != 1:
        raise InputError(f"{who}: has indices of shape {array.shape}, needs a flat list")
    if not len(array):
        raise InputError(f"{who} has no samples: needs at least 1")
    if array.dtype.kind not in "iu":
        raise InputError(f"{who}: has indices of type {array.dtype}, needs integers")
    ranked = np.sort(array)
    if ranked[0] < 0:
        raise InputError(f"{who} holds index {ranked[0]}: needs 0 or more")
    if ranked[-1] > np.iinfo(np.int64).max:
        raise InputError(f"{who} holds index {ranked[-1]}: is too large")
    twice = np.flatnonzero(ranked[1:] == ranked[:-1])
    if len(twice):
        raise InputError(f"{who} holds index {ranked[twice[0]]} twice")
    return ranked.astype(np.int64)
