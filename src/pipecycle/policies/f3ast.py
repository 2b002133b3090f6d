"""F3AST (Ribero, Vikalo and de Veciana, *Federated Learning Under Intermittent Client Availability and Time-Varying
Communication Constraints*, 2022).

The server keeps every client's long-term rate of taking part, r <- (1 - beta) r + beta [took part].  Of the available
clients it picks the K that lower the variance bound sum of p_i^2 / r_i most, those with the largest p_i / r_i, and adds
their updates with these weights: x <- x + sum over S of (p_i / r_i) update_i. p_i is the client's share of all samples.

Ours: rounds are MIFA's epochs (`rounds.py`); available is who holds the energy of a session and of its report, so that
whoever is picked takes part; a rate counts updates that arrived, and is brought up to date before it divides, as in the
authors' code; rates begin at K p_i, 1 at most, what they are when everybody is available (the code begins at p_i and
divides all weights by K); where fewer than K are available, all are picked; ties are broken at random; K does not vary
and is two clients in five unless given; the server's learning rate is 1; clients count alike where their samples are
not known, as in a live run.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from attrs import define, field

from pipecycle.checks import share, some_clients
from pipecycle.policies.rotation import group_cap
from pipecycle.policies.rounds import Rounds
from pipecycle.world.contract import World
from pipecycle.world.streams import Floats, Ints


@define(slots=False, eq=False)
class F3AST(Rounds):
    """In every epoch those train who have taken part least for their data; updates count by how rare they are."""

    name: ClassVar[str] = "f3ast"

    picked: int | None = field(default=None, validator=some_clients)
    """Clients in every round, at most (K); two in five if not given."""
    beta: float = field(default=0.01, validator=share)
    """How fast long-term rates follow what happens."""

    def setup(self, world: World) -> None:
        super().setup(world)
        self.need = self.fleet.to_train + self.fleet.to_server
        self.most = self.picked or group_cap(world.clients, 1)
        samples = np.ones(world.clients, np.int64) if self.fleet.samples is None else self.fleet.samples
        self.shares: Floats = samples / int(samples.sum())
        self.rates: Floats = np.minimum(1.0, self.most * self.shares)

    def members(self, slot: int) -> Ints:
        available = self.fleet.free(self.need)
        if len(available) <= self.most:
            return available
        mixed = available[self.draw("tie", slot).permutation(len(available))]
        order = np.argsort(-self.shares[mixed] / self.rates[mixed], kind="stable")
        return np.sort(mixed[order[: self.most]])

    def aggregate(self, clients: Ints, sessions: Ints) -> None:
        self.rates *= 1.0 - self.beta
        if len(sessions):
            self.rates[clients] += self.beta
            weights = self.shares[clients] / self.rates[clients]
            self.lineage.publish(self.lineage.combine((self.lineage.published,), (1.0,), sessions, weights))
