"""FedAvg made greedy for harvested energy (paper, Section VI-B).

Ours: the server adds the mean of what arrived once per epoch; updates are added as displacements however old
their reference is, without staleness weights.  Where links fail, who could not transmit tries again in the next slot.
"""

from __future__ import annotations

from typing import ClassVar

from attrs import define, field

from pipecycle.checks import some_slots
from pipecycle.policies.clock import epoch_length
from pipecycle.world.contract import Grouping, World
from pipecycle.world.streams import Ints, merged


@define(slots=False, eq=False)
class FedAvg:
    """Everybody trains and uploads as soon as the battery allows; the server averages once per epoch."""

    name: ClassVar[str] = "fedavg"
    grouping: ClassVar[Grouping] = None

    epoch: int | None = field(default=None, validator=some_slots)
    """Slots between two server steps (S); max(30, 1.5 sessions) if not given."""

    def setup(self, world: World) -> None:
        self.fleet, self.lineage = world.fleet, world.lineage
        self.period = epoch_length(self.epoch, world.session)
        self.arrived: list[Ints] = []

    def decide(self, slot: int) -> None:
        senders = self.fleet.unsent(self.fleet.to_server)
        if len(senders):
            arrived = self.fleet.send(senders, "server")
            if len(arrived):
                self.arrived.append(arrived)
        ready = self.fleet.free(self.fleet.to_train)
        if len(ready):
            self.fleet.start(ready, self.lineage.published)

    def references(self) -> tuple[int, ...]:
        return ()

    def collect(self, slot: int, done: Ints, lost: Ints) -> None:
        if slot % self.period == self.period - 1 and self.arrived:
            updates = merged(*self.arrived)
            self.lineage.publish(self.lineage.mean(self.lineage.published, updates))
            self.arrived.clear()
