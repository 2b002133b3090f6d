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
Floats = NDArray[np.float64]
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


_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL = 0x9E3779B9, 0xBB67AE85
_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
_PIECE = 1 << 13  # few enough to stay in cache


class Lots:
    """Two random words for every pair of numbers, such as a client and how often it has done something.

    Philox4x32-10 (Salmon et al. 2011) with the pair as its counter and a digest of the stream's key as its key: a word
    is known by its name alone, and many are drawn at once, which a digest for each would be too slow for."""

    def __init__(self, stream: Stream) -> None:
        digest = stream._digest(8)
        self._keys = int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")

    def __call__(self, first: Ints, second: Ints) -> tuple[Words, Words]:
        one, two = np.empty(len(first), np.uint64), np.empty(len(first), np.uint64)
        for begin in range(0, len(first), _PIECE):
            piece = slice(begin, begin + _PIECE)
            a, b = first[piece].astype(np.uint64) & _LOW, second[piece].astype(np.uint64) & _LOW
            nothing = np.zeros(len(a), np.uint64)
            a, b, c, d = philox(a, b, nothing, nothing, *self._keys)
            one[piece], two[piece] = a << _HALF | b, c << _HALF | d
        return one, two


def philox(a: Words, b: Words, c: Words, d: Words, key: int, other: int) -> tuple[Words, Words, Words, Words]:
    """Ten rounds on counters of four 32-bit words, each in the lower half of a 64-bit one."""
    for _ in range(10):
        left, right = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        a, b = (right >> _HALF) ^ b ^ np.uint64(key), right & _LOW
        c, d = (left >> _HALF) ^ d ^ np.uint64(other), left & _LOW
        key, other = (key + _WEYL[0]) & 0xFFFFFFFF, (other + _WEYL[1]) & 0xFFFFFFFF
    return a, b, c, d


def merged(*runs: Ints) -> Ints:
    """Sorted, all of them together; runs that are in order already, as ours mostly are, take a tenth of the time."""
    return np.sort(np.concatenate(runs), kind="stable")


def unit(words: Words) -> Floats:
    """Words as numbers from 0 to below 1, exactly."""
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


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
