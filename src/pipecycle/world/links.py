"""What stands between a client and the server: channels, lost transmissions, contact windows, and sessions that fail.

`Links` is a description; `Air` is what a trial makes of it.  All chances are keyed by the trial, the client and how
many transmissions or sessions it has had before, so that every scheduler meets the same ones.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Literal

import numpy as np
from attrs import field, frozen
from numpy.typing import ArrayLike, NDArray

from pipecycle.checks import MOST_SLOTS, at_least, some_slots
from pipecycle.errors import InputError
from pipecycle.world.energy import each, figures
from pipecycle.world.streams import Ints, Lots, streams, unit

Flags = NDArray[np.bool_]
MOST_TRIES = 100


def _chance(instance: object, attribute: Any, value: ArrayLike) -> None:
    figures(value, attribute.name, "a probability from 0 to 1", 0, 1)


def _slots(instance: object, attribute: Any, value: ArrayLike) -> None:
    needs = f"a whole number of 1 to {MOST_SLOTS:,} slots"
    figures(value, "contact_period", needs, 1, MOST_SLOTS, whole=True)


@frozen(eq=False)
class Passes:
    """Contact for a share of every `period` slots, each client with a phase of its own, which the trial draws."""

    period: ArrayLike = field(validator=_slots)
    """Slots; one figure, or one per client."""
    share: ArrayLike = field(default=1.0, validator=_chance)
    """Of every period, rounded up to a slot; 1 is always, 0 is never."""


@frozen(eq=False, slots=False)
class Windows:
    """Contact in some slots: a row is a client, and the first and last slot in which it can transmit.

    A client without any row is always in contact.  With a `period` the windows come again after so many slots."""

    client: Ints
    first: Ints
    last: Ints
    """A client's windows do not overlap."""
    period: int | None = field(default=None, validator=some_slots)

    def __len__(self) -> int:
        return len(self.client)

    @cached_property
    def rows(self) -> tuple[Ints, Ints, Ints]:
        """Client, first and last slot, in this order."""
        order = np.lexsort((self.first, self.client))
        return self.client[order], self.first[order], self.last[order]

    @cached_property
    def _begins(self) -> Ints:
        client, first, _ = self.rows
        return client * (MOST_SLOTS + 1) + first

    def open(self, clients: Ints, slot: int) -> Flags:
        client, _, last = self.rows
        now = slot if self.period is None else slot % self.period
        limited = client[np.minimum(np.searchsorted(client, clients), len(self) - 1)] == clients
        # Of a client's windows the latest that has begun decides: they do not overlap.
        place = np.searchsorted(self._begins, clients * (MOST_SLOTS + 1) + now, "right") - 1
        begun = (place >= 0) & (client[place] == clients)
        within: Flags = ~limited | (begun & (last[place] >= now))
        return within


@frozen(eq=False)
class Links:
    """Chances are one figure for all clients or one per client; the defaults are links that never fail."""

    channels: int | None = field(default=None, validator=at_least(1, "channel"))
    """Transmissions to the server in a slot, at most; sessions that started first go first."""
    loss: ArrayLike = field(default=0.0, validator=_chance)
    """That a transmission to the server does not arrive, for every try."""
    loss_to_hub: ArrayLike = field(default=0.0, validator=_chance)
    tries: int = field(default=3, validator=at_least(1, "try", most=MOST_TRIES))
    """After so many, or when the battery is empty, a transmission is given up."""
    failure: ArrayLike = field(default=0.0, validator=_chance)
    """That a session breaks off, in a step that is drawn as well."""
    passes: Passes | None = None
    windows: Windows | None = None

    @property
    def perfect(self) -> bool:
        """Whether nothing can go wrong or be late."""
        chances = (self.loss, self.loss_to_hub, self.failure)
        return self.channels is None and not any(np.any(c) for c in chances) and not (self.passes or self.windows)


class Air:
    """The links of one trial."""

    def __init__(self, links: Links, clients: int, trial: int) -> None:
        draw = streams(trial)
        self.links = links
        self._needed = {
            "server": _Tries(links.loss, links.tries, clients, Lots(draw("loss", 0)), "loss"),
            "hub": _Tries(links.loss_to_hub, links.tries, clients, Lots(draw("loss", 1)), "loss_to_hub"),
        }
        self._failure = each(links.failure, clients, "failure") if np.any(links.failure) else None
        self._failing = Lots(draw("failure"))
        self._started = np.zeros(clients, np.int64)
        self._passes = None if links.passes is None else _Passes(links.passes, clients, Lots(draw("contact")))
        if links.windows and int(links.windows.client.max()) >= clients:
            last = int(links.windows.client.max())
            raise InputError(f"contact windows name client {last}: there are {clients} clients")

    def contact(self, clients: Ints, slot: int) -> Flags:
        """Who of the clients can reach the server."""
        able = np.ones(len(clients), bool)
        if self._passes is not None:
            able &= self._passes.open(clients, slot)
        if self.links.windows:
            able &= self.links.windows.open(clients, slot)
        return able

    def tries(self, clients: Ints, to: Literal["hub", "server"]) -> Ints:
        """How often each client's next transmission has to be tried until it arrives."""
        return self._needed[to](clients)

    def failures(self, clients: Ints, length: Ints | int) -> Ints:
        """The step in which each client's next session breaks off, -1 for those that last."""
        if self._failure is None:
            return np.full(len(clients), -1)
        count = self._started[clients]
        self._started[clients] = count + 1
        whether, when = self._failing(clients, count)
        step = np.minimum(np.floor(unit(when) * length).astype(np.int64), np.asarray(length) - 1)
        return np.where(unit(whether) < self._failure[clients], step, -1)


class _Tries:
    """Tries until success by one draw: more than k are needed with probability loss ** k."""

    def __init__(self, loss: ArrayLike, most: int, clients: int, lots: Lots, name: str) -> None:
        self._lots, self._most, self._sent = lots, most, np.zeros(clients, np.int64)
        self._loss = each(loss, clients, name) if np.any(loss) else None

    def __call__(self, clients: Ints) -> Ints:
        needed: Ints = np.ones(len(clients), np.int64)
        if self._loss is None:
            return needed
        count = self._sent[clients]
        self._sent[clients] = count + 1
        drawn = unit(self._lots(clients, count)[0])
        chance = bound = self._loss[clients]
        for _ in range(self._most):
            lost = drawn < bound
            if not lost.any():
                break
            needed += lost
            bound = bound * chance
        return needed


class _Passes:
    def __init__(self, passes: Passes, clients: int, lots: Lots) -> None:
        self._period = each(passes.period, clients, "contact_period")
        self._length = np.ceil(each(passes.share, clients, "contact_share") * self._period).astype(np.int64)
        some = np.flatnonzero(self._period > 1)
        drawn = unit(lots(some, np.zeros_like(some))[0])
        self._phase = np.zeros(clients, np.int64)
        self._phase[some] = np.minimum(np.floor(drawn * self._period[some]).astype(np.int64), self._period[some] - 1)

    def open(self, clients: Ints, slot: int) -> Flags:
        within: Flags = (slot + self._phase[clients]) % self._period[clients] < self._length[clients]
        return within
