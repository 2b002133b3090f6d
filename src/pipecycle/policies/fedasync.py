"""FedAsync (Xie, Koyejo and Gupta, *Asynchronous Federated Optimization*, 2019) on harvested energy.

Every model that arrives is mixed into the server's at once: x <- (1 - a) x + a (reference + update), where a is
`mixing` times 1 / sqrt(1 + staleness), the paper's polynomial rule with exponent 0.5.  Staleness is the paper's: models
mixed in since the client's reference.

Ours: models that arrive in the same slot are mixed in one after the other, the session that began first going first,
and published as one version; `mixing` is 0.6 unless given and never decays; no model is refused for its age; the
paper's proximal term is a setting of training (`train.proximal`), off by default.  `asynchronous.py` says who trains.
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
        steps = np.arange(self.steps, self.steps + len(sessions))
        mixing = self.mixing * staleness(steps - self.seen[clients])
        # What is left of the server's model, and of each mixed in, after those that follow.
        left = np.append(np.cumprod((1.0 - mixing)[::-1])[::-1], 1.0)
        weights = mixing * left[1:]
        named = np.append(self.lineage.published, self.fleet.reference[clients])
        versions, place = np.unique(named, return_inverse=True)
        coefficients = np.bincount(place, np.append(left[0], weights)).astype(np.float64)
        self.lineage.publish(self.lineage.combine(versions, coefficients, sessions, weights))
        self.steps += len(sessions)
        self.out[clients] = False

    def references(self) -> list[int]:
        """A model that arrives is its reference plus its update."""
        known: list[int] = np.unique(self.fleet.reference[self.out]).tolist()
        return known

    def collect(self, slot: int, done: Ints, lost: Ints) -> None:
        super().collect(slot, done, lost)
        if len(lost):
            self.out[self.fleet.client_of(lost)] = False
