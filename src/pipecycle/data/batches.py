"""The batches of every session: a pure function of (trial, client, k), where k counts the client's sessions.
So is the random view of each image, if images are augmented.

A session shuffles its client's samples and takes consecutive blocks; where they are used up it shuffles
again, so a block may straddle two passes.  With `replacement` every place is drawn independently.

The random words come from one Philox per trial, at the counter (0, k, client): any session is reached at once,
and its first steps do not depend on how many follow.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from pipecycle.data.augment import Augment
from pipecycle.data.split import Split
from pipecycle.world.streams import Ints, Words, streams

CHUNK = 1 << 16
"""Words made at a time: large enough to hide the calls, small enough to stay in cache."""


def session_indices(
    indices: Ints, trial: int, client: int, k: int, steps: int, batch: int, replacement: bool = False
) -> Ints:
    """The batches of a client's k-th session, (steps, min(batch, samples)), out of the samples that it holds."""
    width = min(batch, len(indices))
    words = _Words(trial).take(np.array([client]), np.array([k]), _count(len(indices), steps * width, replacement))
    places = _places(words, len(indices), steps * width, replacement)
    return indices[places.reshape(steps, width)]


class Batches:
    """The same for many sessions at once: `batches(clients, ks)`."""

    def __init__(self, split: Split, trial: int, steps: int, batch: int = 15, replacement: bool = False) -> None:
        self.split, self.steps, self.batch, self.replacement = split, steps, batch, replacement
        self.words = _Words(trial)
        self.sizes = split.sizes

    def __call__(self, clients: ArrayLike, ks: ArrayLike) -> Ints:
        """(sessions, steps, batch): session i is the ks[i]-th of clients[i].

        A client with fewer samples than `batch` fills the first columns, and -1 stands in the others."""
        clients, ks = (np.atleast_1d(np.asarray(numbers, np.int64)) for numbers in (clients, ks))
        out = np.full((len(clients), self.steps, self.batch), -1, np.int64)
        sizes = self.sizes[clients]
        order = np.argsort(sizes, kind="stable")
        for rows in np.split(order, np.flatnonzero(np.diff(sizes[order])) + 1) if len(order) else ():
            size = int(sizes[rows[0]])
            width = min(self.batch, size)
            count = _count(size, self.steps * width, self.replacement)
            for first in range(0, len(rows), max(1, CHUNK // count)):
                some = rows[first : first + max(1, CHUNK // count)]
                words = self.words.take(clients[some], ks[some], count)
                places = _places(words, size, self.steps * width, self.replacement)
                places += self.split.starts[clients[some], None]
                out[some, :, :width] = self.split.indices[places].reshape(len(some), self.steps, width)
        return out


class Views:
    """How each place of each batch is seen: `views(clients, ks)`, codes of `augment` as `Augment.codes` makes them.

    One word for each place, at the same counters as the batches' words and in a stream of its own."""

    def __init__(self, augment: Augment, trial: int, steps: int, batch: int) -> None:
        self.augment, self.steps, self.batch = augment, steps, batch
        self.words = _Words(trial, "augment")

    def __call__(self, clients: ArrayLike, ks: ArrayLike) -> Ints:
        """(sessions, steps, batch): session i is the ks[i]-th of clients[i].  Places without a sample count too."""
        clients, ks = (np.atleast_1d(np.asarray(numbers, np.int64)) for numbers in (clients, ks))
        out = np.empty((len(clients), self.steps, self.batch), np.int64)
        several = max(1, CHUNK // (self.steps * self.batch))
        for first in range(0, len(clients), several):
            some = slice(first, first + several)
            words = self.words.take(clients[some], ks[some], self.steps * self.batch)
            out[some] = self.augment.codes(words).reshape(-1, self.steps, self.batch)
        return out


class _Words:
    """Random access to a trial's words for a purpose, by client and session."""

    def __init__(self, trial: int, purpose: str = "batches") -> None:
        self.bits = streams(trial)(purpose).bits()
        self.state = self.bits.state
        self.state["buffer_pos"] = 4

    def take(self, clients: Ints, ks: Ints, count: int) -> Words:
        out = np.empty((len(ks), count), np.uint64)
        counter = self.state["state"]["counter"]
        for row, client, k in zip(out, clients.tolist(), ks.tolist(), strict=True):
            counter[:] = 0, k, client, 0
            self.bits.state = self.state
            row[:] = self.bits.random_raw(count)
        return out


def _count(size: int, needed: int, replacement: bool) -> int:
    """Words that a session takes: one for each place, or one for each sample of every pass that it begins."""
    return needed if replacement else -(-needed // size) * size


def _places(words: Words, size: int, needed: int, replacement: bool) -> Ints:
    """Positions among a client's `size` samples, (sessions, needed)."""
    if replacement:
        return ((words >> np.uint64(32)) * np.uint64(size) >> np.uint64(32)).view(np.int64)
    # Samples ordered by random keys that end in the sample's own number: no ties, so any sort gives the same.
    width = np.uint64((size - 1).bit_length())
    keys = words.reshape(len(words), -1, size)
    keys >>= width
    keys <<= width
    keys |= np.arange(size, dtype=np.uint64)
    if needed < size:
        keys = np.partition(keys, needed - 1, axis=2)[:, :, :needed]
    keys.sort(axis=2)
    keys &= (np.uint64(1) << width) - np.uint64(1)
    return keys.view(np.int64).reshape(len(words), -1)[:, :needed]
