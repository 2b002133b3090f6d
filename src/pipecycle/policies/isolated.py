"""Every client for itself: the line that working together has to beat (paper, Section VI-A).

The server keeps serving the initial model: the mean over the clients' own models (`look.clients_every`) is what tells
how well they do.  Links do not matter to it; a client whose session fails begins again from the model it had.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from attrs import define

from pipecycle.world.contract import Grouping, World
from pipecycle.world.streams import Ints


@define(slots=False, eq=False)
class Isolated:
    """Clients train whenever their battery allows, from their own last model, and never transmit."""

    name: ClassVar[str] = "isolated"
    grouping: ClassVar[Grouping] = None
    fetches: ClassVar[bool] = False

    def setup(self, world: World) -> None:
        self.fleet, self.lineage = world.fleet, world.lineage
        self.own: Ints = np.zeros(world.clients, np.int64)

    def decide(self, slot: int) -> None:
        clients = self.fleet.free(self.fleet.to_train)
        if len(clients):
            self.fleet.start(clients, self.own[clients])

    def references(self) -> list[int]:
        own: list[int] = self.own.tolist()
        return own

    def collect(self, slot: int, done: Ints, lost: Ints) -> None:
        if not len(done):
            return
        clients = self.fleet.client_of(done)
        self.own[clients] = self.lineage.each(done, self.own[clients])
        for client in clients.tolist():
            self.fleet.hold(client)
            self.fleet.release(client)
