"""Synchronous rounds on MIFA's clock (Section VI-B), for schedulers that differ in who trains and how updates add up.

Clients start in slot S - B - 1 of an epoch, from the model that the server serves; they report in its last slot, and
the server takes its step at the end of that slot.  A client that cannot pay for its report keeps the update, tries
again at the end of the next epoch, and cannot start meanwhile; it counts in the round in which its update arrives.
Where links fail, who was out of contact or found no channel tries again in the slots that follow, or else a client
whose contact never falls on the last slot would never be heard; an update that is lost counts in no round.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from attrs import define, field

from pipecycle.checks import some_slots
from pipecycle.policies.clock import epoch_length
from pipecycle.world.contract import Grouping, World
from pipecycle.world.streams import Ints


@define(slots=False, eq=False)
class Rounds:
    """All who can train at the same time in every epoch."""

    grouping: ClassVar[Grouping] = None

    epoch: int | None = field(default=None, validator=some_slots)
    """Slots between two server steps (S); max(30, 1.5 sessions) if not given."""

    def setup(self, world: World) -> None:
        self.fleet, self.lineage, self.draw, self.clients = world.fleet, world.lineage, world.draw, world.clients
        self.period = epoch_length(self.epoch, world.session)
        self.launch = self.period - world.session - 1
        self.received: list[tuple[Ints, Ints]] = []  # clients and sessions
        self.late = False  # somebody had to wait for contact or a channel

    def decide(self, slot: int) -> None:
        phase = slot % self.period
        if phase == self.launch:
            self.begin(slot)
        if phase == self.period - 1 or self.late:
            self.deliver()

    def begin(self, slot: int) -> None:
        members = self.members(slot)
        if len(members):
            self.fleet.start(members, self.lineage.published)

    def deliver(self) -> None:
        senders = self.fleet.unsent(self.fleet.to_server)
        arrived = self.fleet.send(senders, "server")
        self.received.append((senders if len(arrived) == len(senders) else self.fleet.client_of(arrived), arrived))
        self.late = len(arrived) < len(senders) and len(self.fleet.unsent(self.fleet.to_server)) > 0

    def members(self, slot: int) -> Ints:
        """Who trains in this round."""
        return self.fleet.free(self.fleet.to_train)

    def collect(self, slot: int, done: Ints, lost: Ints) -> None:
        if slot % self.period == self.period - 1:
            clients, sessions = zip(*self.received, strict=True)
            self.received.clear()
            self.aggregate(np.concatenate(clients), np.concatenate(sessions))

    def aggregate(self, clients: Ints, sessions: Ints) -> None:
        """The round is over, and these updates have arrived; there may be none, or two of a client that was late."""
        raise NotImplementedError

    def references(self) -> list[int]:
        return []


@define(slots=False, eq=False)
class Remembering(Rounds):
    """The server remembers the last update of every client."""

    def setup(self, world: World) -> None:
        super().setup(world)
        self.memory = np.full(world.clients, -1)  # the version that holds each client's last update

    def references(self) -> list[int]:
        known: list[int] = self.memory[self.memory >= 0].tolist()
        return known
