"""MIFA (Gu et al. 2021) with the paper's clock (Section VI-B).

The server remembers the last update of every client and moves by the mean over all of them, heard from in this
epoch or not.  Ours: memories start at zero rather than waiting for everybody, and are kept although the paper's
sentence leaves them out (`use_memory = false` is that reading).  Where the learning rate decays, the trainer uses
memories at the present rate, as MIFA's authors do.  Where links fail, who could not transmit tries again in the
slots that follow, and a lost update leaves the client's memory as it was.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from attrs import define, field

from pipecycle.checks import MOST_SLOTS, at_least, flag
from pipecycle.policies.clock import epoch_length
from pipecycle.world.contract import Grouping, World
from pipecycle.world.streams import Ints, merged


@define(slots=False, eq=False)
class MIFA:
    """All train at the same time in every epoch; the server also reuses the last update of absent clients."""

    name: ClassVar[str] = "mifa"
    grouping: ClassVar[Grouping] = None

    epoch: int | None = field(default=None, validator=at_least(1, "slot", most=MOST_SLOTS))
    """Slots between two server steps (S); max(30, 1.5 sessions) if not given."""
    use_memory: bool = field(default=True, validator=flag)
    """Average over the last updates of all clients instead of those just received."""

    def setup(self, world: World) -> None:
        self.fleet, self.lineage, self.clients = world.fleet, world.lineage, world.clients
        self.period = epoch_length(self.epoch, world.session)
        self.launch = self.period - world.session - 1
        self.memory = np.full(world.clients, -1)  # the version that holds each client's last update
        self.received: Ints = self.memory[:0]  # without memory
        self.late = False  # somebody had to wait for contact or a channel

    def decide(self, slot: int) -> None:
        phase = slot % self.period
        if phase == self.launch:
            ready = self.fleet.free(self.fleet.to_train)
            if len(ready):
                self.fleet.start(ready, self.lineage.published)
        if phase == self.period - 1 or self.late:
            senders = self.fleet.unsent(self.fleet.to_server)
            arrived = self.fleet.send(senders, "server")
            self.late = False
            if len(arrived) < len(senders):
                self.late = len(self.fleet.unsent(self.fleet.to_server)) > 0
                senders = self.fleet.client_of(arrived)
            if self.use_memory:
                self.memory[senders] = self.lineage.each(arrived)
            else:
                self.received = np.concatenate([self.received, arrived])

    def references(self) -> list[int]:
        known: list[int] = self.memory[self.memory >= 0].tolist()
        return known

    def collect(self, slot: int, done: Ints, lost: Ints) -> None:
        if slot % self.period != self.period - 1:
            return
        server = self.lineage.published
        if not self.use_memory:
            if len(self.received):
                self.lineage.publish(self.lineage.mean(server, merged(self.received)))
                self.received = self.received[:0]
            return
        known = self.memory[self.memory >= 0]
        if len(known):
            coefficients = np.full(len(known) + 1, 1.0 / self.clients)
            coefficients[0] = 1.0
            self.lineage.publish(self.lineage.combine(np.concatenate([[server], known]), coefficients))
