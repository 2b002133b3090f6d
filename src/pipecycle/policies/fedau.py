"""FedAU (Wang and Ji, *A Lightweight Method for Tackling Unknown Participation Statistics in Federated Averaging*,
2024).

Who takes part is not known in advance.  An update counts by the mean of the intervals, in rounds, between its client's
participations so far, which estimates one over the client's chance to take part: x <- x + (1 / N) sum of w_i update_i.
A client that has been away for `cutoff` rounds has an interval of that length booked, so that no weight explodes; the
interval that ends with a participation counts from the next one on, and until there is one the weight is 1.  All as in
the authors' code.

Ours: rounds are MIFA's epochs (`rounds.py`), and taking part is a matter of energy; the server's learning rate is 1;
clients count alike whatever their samples, as in its paper.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from attrs import define, field

from pipecycle.checks import MOST_SLOTS, at_least
from pipecycle.policies.rounds import Rounds
from pipecycle.world.contract import World
from pipecycle.world.streams import Ints


@define(slots=False, eq=False)
class FedAU(Rounds):
    """All train at the same time in every epoch; an update counts by how long its client usually stays away."""

    name: ClassVar[str] = "fedau"

    cutoff: int = field(default=50, validator=at_least(1, "round", most=MOST_SLOTS))
    """Rounds after which an absence is counted as an interval (K)."""

    def setup(self, world: World) -> None:
        super().setup(world)
        self.since = np.zeros(world.clients, np.int64)  # rounds since the last interval ended
        self.total = np.zeros(world.clients, np.int64)  # sum of all intervals
        self.count = np.zeros(world.clients, np.int64)

    def aggregate(self, clients: Ints, sessions: Ints) -> None:
        if len(sessions):
            count = self.count[clients]
            weights = np.where(count, self.total[clients] / np.maximum(count, 1), 1.0) / self.clients
            self.lineage.publish(self.lineage.combine((self.lineage.published,), (1.0,), sessions, weights))
        self.since += 1
        over = self.since >= self.cutoff
        over[clients] = True
        self.total[over] += self.since[over]
        self.count[over] += 1
        self.since[over] = 0
