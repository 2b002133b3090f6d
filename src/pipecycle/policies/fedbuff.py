"""FedBuff (Nguyen et al., *Federated Learning with Buffered Asynchronous Aggregation*, 2022) on harvested energy.

Updates that arrive wait in a buffer.  When it holds K of them the server adds their mean, each scaled by 1 / sqrt(1 +
lag), and empties it: x <- x + (1 / K) sum of s_i update_i.

Ours: the mean is weighted by samples, as everywhere in this project; the server's learning rate is 1; K is one client
in ten unless given; of updates that arrive in the same slot the session that began first goes first, and what is left
in the buffer at the end of a run is not used.  `asynchronous.py` says who trains.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from attrs import define, field

from pipecycle.checks import MOST_CLIENTS, at_least
from pipecycle.policies.asynchronous import Asynchronous, staleness
from pipecycle.world.contract import World
from pipecycle.world.streams import Ints


@define(slots=False, eq=False)
class FedBuff(Asynchronous):
    """Some train at any time; the server adds the mean of every K updates that arrive, stale ones scaled down."""

    name: ClassVar[str] = "fedbuff"

    buffer: int | None = field(default=None, validator=at_least(1, "update", most=MOST_CLIENTS))
    """Updates in every step of the server (K); one client in ten if not given."""

    def setup(self, world: World) -> None:
        super().setup(world)
        self.size = self.buffer or max(1, world.clients // 10)
        self.waiting: Ints = np.empty((2, 0), np.int64)  # sessions, and the steps that their references had behind them

    def receive(self, clients: Ints, sessions: Ints) -> None:
        self.waiting = np.concatenate([self.waiting, [sessions, self.seen[clients]]], axis=1)
        while self.waiting.shape[1] >= self.size:
            updates, seen = self.waiting[:, : self.size]
            self.waiting = self.waiting[:, self.size :]
            weights = self.lineage.shares(updates) * staleness(self.steps - seen)
            self.lineage.publish(self.lineage.combine((self.lineage.published,), (1.0,), updates, weights))
            self.steps += 1
