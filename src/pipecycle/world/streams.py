"""Randomness as independent named streams, each keyed by (trial, purpose, ids).

A stream is a pure function of its key: no state is shared, nothing depends on the order of calls, and a
policy can be rebuilt by replaying what happened to it.  Only raw Philox words and SHAKE digests are used,
with our own integers, samples and permutations on top, because numpy's Generator methods may change between
versions while these two cannot.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Words = NDArray[np.uint64]
FEW = 64


class Stream:
    """Random words of one key."""

    __slots__ = ("_key",)

    def __init__(self, key: str) -> None:
        self._key = key.encode()

    def _digest(self, size: int) -> bytes:
        return hashlib.shake_128(self._key).digest(size)

    def bits(self) -> np.random.Philox:
        """A fresh Philox generator that belongs to this key; use `random_raw` only."""
        return np.random.Philox(key=int.from_bytes(self._digest(16), "little"))

    def words(self, count: int) -> Words:
        """`count` words; a handful, as most draws need, comes from the digest, which is quicker to begin with."""
        if count <= FEW:
            return np.frombuffer(self._digest(8 * count), "<u8")
        return raw(self.bits(), count)

    def below(self, bound: int) -> int:
        """One integer in 0..bound-1 (the bias is below bound / 2^64)."""
        return int.from_bytes(self._digest(8), "little") * bound >> 64

    def choice(self, items: Ints) -> int:
        return int(items[self.below(len(items))])

    def permutation(self, count: int) -> Ints:
        return np.argsort(self.words(count), kind="stable").astype(np.int64, copy=False)

    def sample(self, items: Ints, count: int) -> Ints:
        """`count` of the items, every subset equally likely, in their original order."""
        if count >= len(items) or count < 1:
            return items[:count]
        words = self.words(len(items))
        ordered = words.copy()
        ordered.partition(count - 1)
        chosen: Ints = items[(words <= ordered[count - 1]).nonzero()[0][:count]]
        return chosen


Draw = Callable[..., Stream]


def streams(trial: int) -> Draw:
    """The `draw(purpose, *ids)` of a trial."""

    def draw(purpose: str, *ids: int) -> Stream:
        return Stream(f"{trial}/{purpose}/{ids}")

    return draw


def raw(bits: np.random.Philox, count: int) -> Words:
    """`count` little-endian 64-bit words, so that narrower views are the same on every machine."""
    words: Words = np.asarray(bits.random_raw(count), dtype=np.uint64).astype("<u8", copy=False)
    return words
