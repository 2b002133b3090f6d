"""Synchronous rounds on MIFA's clock (Section VI-B), for schedulers that differ in who trains and how updates add up.

Clients start in slot S - B - 1 of an epoch, from the model that the server serves; they report in its last slot, and
the server takes its step at the end of that slot.  A client that cannot pay for its report keeps the update, tries
again at the end of the next epoch, and cannot start meanwhile; it counts in the round in which its update arrives.  An
update that is lost counts in none.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from attrs import define, field

from pipecycle.checks import MOST_SLOTS, at_least
from pipecycle.policies.clock import epoch_length
from pipecycle.world.contract import Grouping, World
from pipecycle.world.streams import Ints


@define(slots=False, eq=False)
class Rounds:
    """All who can train at the same time in every epoch."""

    grouping: ClassVar[Grouping] = None

    epoch: int | None = field(default=None, validator=at_least(1, "slot", most=MOST_SLOTS))
    """Slots between two server steps (S); max(30, 1.5 sessions) if not given."""

    def setup(self, world: World) -> None:
        self.fleet, self.lineage, self.draw, self.clients = world.fleet, world.lineage, world.draw, world.clients
        self.period = epoch_length(self.epoch, world.session)
        self.launch = self.period - world.session - 1
        self.received: Ints = np.empty(0, np.int64)

    def decide(self, slot: int) -> None:
        phase = slot % self.period
        if phase == self.launch:
            members = self.members(slot)
            if len(members):
                self.fleet.start(members, self.lineage.published)
        elif phase == self.period - 1:
            senders = self.fleet.unsent(self.fleet.to_server)
            self.received = self.fleet.send(senders, "server") if len(senders) else senders

    def members(self, slot: int) -> Ints:
        """Who trains in this round."""
        return self.fleet.free(self.fleet.to_train)

    def collect(self, slot: int, done: Ints, lost: Ints) -> None:
        if slot % self.period == self.period - 1:
            self.aggregate(self.fleet.client_of(self.received), self.received)

    def aggregate(self, clients: Ints, sessions: Ints) -> None:
        """The round is over, and these updates have arrived; there may be none."""
        raise NotImplementedError
