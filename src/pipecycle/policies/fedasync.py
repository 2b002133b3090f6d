"""FedAsync (Xie, Koyejo and Gupta, *Asynchronous Federated Optimization*, 2019) on harvested energy.

Every model that arrives is mixed into the server's at once: x <- (1 - a) x + a (reference + update), where a is
`mixing` times 1 / sqrt(1 + staleness), its paper's polynomial rule with exponent 0.5.  Staleness, as there, counts the
models mixed in since the client's reference.

Ours: the model that is mixed in does not count itself, as it does by the letter of its paper's Algorithm 1; models that
arrive in the same slot are mixed in one after the other, the session that began first going first, and published as one
version; `mixing` is 0.6 unless given and never decays; no model is refused for its age; its paper's proximal term is a
setting of training (`train.proximal`), off by default.  `asynchronous.py` says who trains.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from attrs import define, field

from pipecycle.checks import share
from pipecycle.policies.asynchronous import Asynchronous, staleness
from pipecycle.world.contract import World
from pipecycle.world.streams import Ints


@define(slots=False, eq=False)
class FedAsync(Asynchronous):
    """Some train at any time; the server mixes in every model as it arrives, the less the staler it is."""

    name: ClassVar[str] = "fedasync"

    mixing: float = field(default=0.6, validator=share)
    """Weight of a fresh model in the server's new one (alpha)."""

    def setup(self, world: World) -> None:
        super().setup(world)
        self.out = np.zeros(world.clients, bool)  # whose model is still to come

    def begin(self, clients: Ints) -> None:
        super().begin(clients)
        self.out[clients] = True

    def receive(self, clients: Ints, sessions: Ints) -> None:
        count = len(sessions)
        steps = np.arange(self.steps, self.steps + count)
        mixing = self.mixing * staleness(steps - self.seen[clients])
        left = np.ones(count + 1)  # of the server's model, and of each that is mixed in, after those that follow
        np.multiply.accumulate((1.0 - mixing)[::-1], out=left[-2::-1])
        # Sessions in the order of their beginning have references in the order of theirs.
        named, parts = np.empty(count + 1, np.int64), np.empty(count + 1)
        named[:count], named[count] = self.fleet.reference[clients], self.lineage.published
        parts[:count], parts[count] = mixing * left[1:], left[0]
        first = np.ones(count + 1, bool)
        np.not_equal(named[1:], named[:-1], out=first[1:])
        coefficients = np.bincount(first.cumsum() - 1, parts).astype(np.float64, copy=False)
        self.lineage.publish(self.lineage.combine(named[first], coefficients, sessions, parts[:count]))
        self.steps += count
        self.out[clients] = False

    def references(self) -> list[int]:
        """A model that arrives is its reference plus its update."""
        known: list[int] = np.unique(self.fleet.reference[self.out]).tolist()
        return known

    def collect(self, slot: int, done: Ints, lost: Ints) -> None:
        super().collect(slot, done, lost)
        if len(lost):
            self.out[self.fleet.client_of(lost)] = False
