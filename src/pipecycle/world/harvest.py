"""Where energy comes from: what every client gains in every slot.

A `Harvest` is a description; `weather(clients, trial)` turns it into rows of quanta, one per slot, that depend
on the trial and the number of clients and on nothing else: every scheduler meets the same weather.  Our own take a
`place` besides, so that parts of a fleet with the same description have independent weather.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Protocol

import numpy as np
from attrs import field, frozen
from numpy.typing import ArrayLike, NDArray

from pipecycle.checks import number
from pipecycle.errors import InputError
from pipecycle.world.energy import UNIT, each, figures
from pipecycle.world.streams import Floats, Ints, raw, streams

BLOCK = 1 << 18
"""Client-slots made at a time: large enough to hide the calls, small enough to stay in cache."""

Lanes = NDArray[np.uint8]
Row = tuple[Ints, int]


class Weather(Protocol):
    """Rows of gains in slot order; `peak` is the most that any client can gain in a slot."""

    peak: int

    def block(self, slots: int) -> Ints:
        """The next `slots` rows, valid until the next call."""


class Harvest(Protocol):
    """A description of where energy comes from; `str()` of it says all that decides the weather."""

    def weather(self, clients: int, trial: int) -> Weather: ...


class Placed(Harvest, Protocol):
    """A harvest of ours."""

    def weather(self, clients: int, trial: int, place: int = 0) -> Weather: ...


def rows(weather: Weather, clients: int, slots: int) -> Iterator[Row]:
    """Every slot's gains and their sum."""
    size = max(1, BLOCK // clients)
    for first in range(0, slots, size):
        block = weather.block(min(size, slots - first))
        yield from zip(block, block.sum(axis=1).tolist(), strict=True)


class Chance:
    """Exact Bernoulli trials from 8-bit lanes: a lane below the threshold succeeds, and one that equals it is
    decided by 64 further bits, so that any double is a valid probability at the price of an eighth of a word."""

    def __init__(self, probability: ArrayLike) -> None:
        scaled = np.asarray(probability, np.float64) * 256.0
        whole = np.minimum(np.floor(scaled), 255.0)
        self.threshold = whole.astype(np.uint8)
        rest = np.minimum((scaled - whole) * 2.0**64, np.nextafter(2.0**64, 0.0))
        self.rest = np.where(scaled >= 256.0, np.uint64(2**64 - 1), rest.astype(np.uint64))
        self.exact = not self.rest.any()

    def __call__(self, lanes: Lanes, ties: np.random.Philox) -> NDArray[np.bool_]:
        hits: NDArray[np.bool_] = lanes < self.threshold
        if not self.exact:
            tied = np.flatnonzero(lanes == self.threshold)
            if len(tied):
                rest = self.rest if self.rest.ndim == 0 else self.rest[tied % lanes.shape[-1]]
                hits.reshape(-1)[tied] = raw(ties, len(tied)) < rest
        return hits


class LaneRows:
    """Rows of 8-bit lanes, one per client; a row begins at a word, so blocks of any size give the same rows."""

    def __init__(self, clients: int, trial: int, place: int = 0) -> None:
        draw = streams(trial)
        keys = ((), (1,)) if place == 0 else ((2, place), (3, place))
        self.bits, self.ties = (draw("harvest", *key).bits() for key in keys)
        self.clients = clients
        self.words = -(-clients // 8)

    def take(self, slots: int) -> Lanes:
        lanes = raw(self.bits, slots * self.words).view(np.uint8).reshape(slots, 8 * self.words)
        return lanes[:, : self.clients]


def _rate(value: ArrayLike) -> Floats:
    return figures(value, "rate", "a charging probability from 0 to 1", 0, 1)


def digest_or_number(values: Floats) -> str:
    """A number as it is, an array by its size and content."""
    if values.ndim == 0:
        return repr(float(values))
    return f"{values.size}#{hashlib.sha256(values.tobytes()).hexdigest()[:12]}"


@frozen(eq=False)
class Bernoulli:
    """One unit with probability `rate` in every slot, independently; one rate for all or one per client."""

    rate: Floats = field(converter=_rate, repr=digest_or_number)

    def __str__(self) -> str:
        return f"bernoulli:{digest_or_number(self.rate)}"

    def weather(self, clients: int, trial: int, place: int = 0) -> Weather:
        each(self.rate, clients, "rate")
        return _Coins(self.rate, clients, trial, place)


class _Units:
    """Weather of which a slot brings one unit or none."""

    peak = UNIT

    def __init__(self, clients: int, trial: int, place: int) -> None:
        self.lanes = LaneRows(clients, trial, place)
        self.out: Ints = np.empty((0, clients), np.int64)

    def hits(self, slots: int) -> NDArray[np.bool_]:
        """Who gains in each of the next slots."""
        raise NotImplementedError

    def block(self, slots: int) -> Ints:
        if len(self.out) < slots:
            self.out = np.empty((slots, self.lanes.clients), np.int64)
        out = self.out[:slots]
        np.left_shift(self.hits(slots).view(np.uint8), 20, out=out, dtype=np.int64)
        return out


class _Coins(_Units):
    def __init__(self, rate: Floats, clients: int, trial: int, place: int = 0) -> None:
        super().__init__(clients, trial, place)
        self.chance = Chance(rate)
        self.certain = bool((rate == 1.0).all())

    def hits(self, slots: int) -> NDArray[np.bool_]:
        if self.certain:
            return np.ones((slots, self.lanes.clients), bool)
        return self.chance(self.lanes.take(slots), self.lanes.ties)


@frozen(eq=False)
class Always:
    """One unit in every slot."""

    def __str__(self) -> str:
        return "always"

    def weather(self, clients: int, trial: int, place: int = 0) -> Weather:
        return _Coins(np.ones(()), clients, trial)


@frozen(eq=False)
class Markov:
    """Bursts: while on, a client gains one unit per slot.  `rate` is the long-run share of slots that are on,
    `burst` the mean length of an on-period in slots; the first slot is drawn from the long run."""

    rate: Floats = field(converter=_rate, repr=digest_or_number)
    burst: float = field(default=10.0, validator=number(least=1, most=1e12))

    def __attrs_post_init__(self) -> None:
        off = np.maximum(1.0 - self.rate, 2.0**-53)
        least = float(np.max(np.where(self.rate < 1.0, np.maximum(self.rate / off, 1.0), 1.0)))
        if self.burst < least:
            raise InputError(f"burst = {self.burst:g}: needs at least {least:g} slots at this rate")

    def __str__(self) -> str:
        return f"markov:{digest_or_number(self.rate)},{self.burst!r}"

    def weather(self, clients: int, trial: int, place: int = 0) -> Weather:
        each(self.rate, clients, "rate")
        return _Bursts(self.rate, self.burst, clients, trial, place)


class _Bursts(_Units):
    def __init__(self, rate: Floats, burst: float, clients: int, trial: int, place: int) -> None:
        super().__init__(clients, trial, place)
        stay = np.where(rate < 1.0, 1.0 - 1.0 / burst, 1.0)
        begin = np.where(rate < 1.0, rate / (burst * np.maximum(1.0 - rate, 2.0**-53)), 1.0)
        self.stay, self.begin = Chance(stay), Chance(np.minimum(begin, 1.0))
        self.on = Chance(rate)(self.lanes.take(1)[0], self.lanes.ties)

    def hits(self, slots: int) -> NDArray[np.bool_]:
        out = np.empty((slots, self.lanes.clients), bool)
        # Each chance has tie bits of its own slot by slot, so that blocks of any size give the same rows.
        for row, lanes in zip(out, self.lanes.take(slots), strict=True):
            row[:] = self.on
            stay, begin = self.stay(lanes, self.lanes.ties), self.begin(lanes, self.lanes.ties)
            np.copyto(begin, stay, where=self.on)
            self.on = begin
        return out


@frozen(eq=False)
class Mixed:
    """A fleet of different devices: who has which harvest, and what a unit of it is worth to each, in quanta."""

    parts: tuple[tuple[Placed, Ints], ...]
    """A harvest, and the clients that have it, in rising order."""
    gain: Ints
    name: str

    def __str__(self) -> str:
        return self.name

    def weather(self, clients: int, trial: int, place: int = 0) -> Weather:
        return _Parts(self, clients, trial)


class _Parts:
    def __init__(self, mixed: Mixed, clients: int, trial: int) -> None:
        self.clients = clients
        self.parts = [
            (harvest.weather(len(mine), trial, place), _where(mine))
            for place, (harvest, mine) in enumerate(mixed.parts)
        ]
        self.gain = mixed.gain
        peaks = [weather.peak * int(mixed.gain[where].max()) for weather, where in self.parts]
        if max(peaks) >= 1 << 62:
            raise InputError(f"{mixed.name}: a client could gain more than 2^22 units in a slot")
        self.peak = max(peaks) >> 20
        self.out: Ints = np.empty((0, clients), np.int64)

    def block(self, slots: int) -> Ints:
        if len(self.out) < slots:
            self.out = np.empty((slots, self.clients), np.int64)
        out = self.out[:slots]
        for weather, where in self.parts:
            part = out[:, where]  # of clients in a range, which is usual, a view
            if isinstance(weather, _Units):
                np.multiply(weather.hits(slots).view(np.uint8), self.gain[where], out=part)
            else:
                np.multiply(weather.block(slots), self.gain[where], out=part)
                part >>= 20
            if not isinstance(where, slice):
                out[:, where] = part
        return out


def _where(clients: Ints) -> slice | Ints:
    """A range where it is one, which numpy copies much faster."""
    first, last = int(clients[0]), int(clients[-1])
    return slice(first, last + 1) if last - first + 1 == len(clients) else clients
