"""What FedAsync and FedBuff share: at most M clients train at once, and what is late counts for less.

Ours, where their papers have no batteries: a client is asked to train when it holds the energy of a session and of its
report, so that no update grows old for want of a unit; a client that cannot send its report after all keeps the update
and sends it in the first slot in which it can, and does not count among the M meanwhile; a client whose report or
session is lost is free again.  Who trains is drawn at random, as in both papers.  M is two clients in five unless
given: as many as PipeCycle has in training, for the same energy.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from attrs import define, field

from pipecycle.checks import some_clients
from pipecycle.policies.rotation import group_cap
from pipecycle.world.contract import Grouping, World
from pipecycle.world.streams import Floats, Ints, merged


def staleness(steps: Ints) -> Floats:
    """1 / sqrt(1 + steps that the server took since the update's reference)."""
    return np.asarray(1.0 / np.sqrt(1.0 + steps), np.float64)


@define(slots=False, eq=False)
class Asynchronous:
    """Clients train, upload and begin again on their own time."""

    grouping: ClassVar[Grouping] = None

    concurrency: int | None = field(default=None, validator=some_clients)
    """Clients in training at once, at most (M); two in five if not given."""

    def setup(self, world: World) -> None:
        self.fleet, self.lineage, self.draw = world.fleet, world.lineage, world.draw
        self.need = self.fleet.to_train + self.fleet.to_server
        self.most = self.concurrency or group_cap(world.clients, 1)
        self.busy = np.zeros(world.clients, bool)  # in training
        self.steps = 0
        """Steps that the server has taken."""
        self.seen = np.zeros(world.clients, np.int64)
        """How many of them each client's reference has behind it."""

    def decide(self, slot: int) -> None:
        senders = self.fleet.unsent(self.fleet.to_server)
        if len(senders):
            sessions = merged(self.fleet.send(senders, "server"))  # those that began first go first
            if len(sessions):
                clients = self.fleet.client_of(sessions)
                self.receive(clients, sessions)
        room = self.most - int(np.count_nonzero(self.busy))
        if room > 0:
            ready = self.fleet.free(self.need)
            if len(ready):
                self.begin(self.draw("train", slot).sample(ready, room))

    def begin(self, clients: Ints) -> None:
        self.fleet.start(clients, self.lineage.published, self.need)
        self.seen[clients] = self.steps
        self.busy[clients] = True

    def receive(self, clients: Ints, sessions: Ints) -> None:
        """Updates have arrived."""
        raise NotImplementedError

    def references(self) -> list[int]:
        return []

    def collect(self, slot: int, done: Ints, lost: Ints) -> None:
        for sessions in (done, lost):
            if len(sessions):
                self.busy[self.fleet.client_of(sessions)] = False
