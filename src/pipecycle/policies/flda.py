"""FLDA (Valente da Silva et al. 2025) on MIFA's clock (paper, Section VI-B).

Sessions alternate between learning (the update is uploaded whole) and distillation (only a table of mean logits
per label is, at a small fraction of the energy).  Ours: every client alternates on its own, even clients
beginning with distillation; `phase = "global"` alternates whole epochs as the original does, and a client then
continues in the learning epoch from the model it kept.  Where links fail, who could not transmit tries again in the
slots that follow, tables before updates, and a client whose report is lost makes another of the same kind.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from attrs import define, field

from pipecycle.checks import one_of, share
from pipecycle.policies.rounds import Rounds
from pipecycle.world.contract import World
from pipecycle.world.streams import Ints


@define(slots=False, eq=False)
class FLDA(Rounds):
    """All train at the same time; every other report of a client is a cheap logit table instead of an update."""

    name: ClassVar[str] = "flda"
    teaches: ClassVar[bool] = True

    phase: str = field(default="own", validator=one_of("own", "global"))
    """Who alternates: every client on its own, or all together from epoch to epoch."""
    upload_ratio: float = field(default=100 / 307_842, validator=share)
    """Size of a logit table relative to the model (d_FD / d_FL)."""

    def setup(self, world: World) -> None:
        super().setup(world)
        self.distils = np.arange(world.clients) % 2 == 0  # payload of each client's current or next session
        self.teacher = -1
        self.tables: Ints = np.empty(0, np.int64)
        # Updates that have arrived, the versions that they continued (-1: none) and where those started.
        self.updates: Ints = np.empty((3, 0), np.int64)
        # Global phase: the distillation session whose model a client kept, where that one started, and the
        # version that a learning session continues from.
        self.kept = np.full(world.clients, -1)
        self.origin = np.zeros(world.clients, np.int64)
        self.continued = np.full(world.clients, -1)

    def begin(self, slot: int) -> None:
        ready = self.members(slot)
        if self.phase == "global":
            self.distils[ready] = slot // self.period % 2 == 0
        self.start(ready[self.distils[ready]], ready[~self.distils[ready]])

    def start(self, distillers: Ints, learners: Ints) -> None:
        server = self.lineage.published
        if len(distillers):
            sessions = self.fleet.start(distillers, server, teacher=self.teacher, payload="logits")
            if self.phase == "global":
                self.kept[distillers], self.origin[distillers] = sessions, server
        if len(learners):
            self.continued[learners] = -1
            keepers = learners[self.kept[learners] >= 0]
            self.continued[keepers] = self.lineage.each(self.kept[keepers], self.origin[keepers])
            self.kept[keepers] = -1
            reference = np.where(self.continued[learners] >= 0, self.continued[learners], server)
            self.fleet.start(learners, reference, teacher=self.teacher)

    def deliver(self) -> None:
        cost = self.fleet.price("server", self.upload_ratio)
        cheap = self.fleet.unsent(cost)
        cheap = cheap[self.distils[cheap]]
        whole = self.fleet.unsent(self.fleet.to_server)
        learners = whole[~self.distils[whole]]
        tables = self.fleet.send(cheap, "server", ratio=self.upload_ratio)
        updates = self.fleet.send(learners, "server")
        waiting = len(tables) + len(updates) < len(cheap) + len(learners)
        self.late = waiting and len(self.fleet.unsent(cost)) > 0
        learners = self.fleet.client_of(updates)
        self.tables = np.concatenate([self.tables, tables])
        arrived = [updates, self.continued[learners], self.origin[learners]]
        self.updates = np.concatenate([self.updates, arrived], axis=1)
        if self.phase == "own":
            self.distils[self.fleet.client_of(tables)] = False
            self.distils[learners] = True

    def references(self) -> list[int]:
        """Models that clients continue from, and where they started."""
        arrived = self.updates[1:, self.updates[1] >= 0].ravel()
        continued = self.continued[self.continued >= 0]
        origins = self.origin[(self.kept >= 0) | (self.continued >= 0)]
        return [*arrived.tolist(), *continued.tolist(), *origins.tolist()]

    def collect(self, slot: int, done: Ints, lost: Ints) -> None:
        if len(lost):  # nobody has kept the model of a session that did not come back
            gone = self.fleet.client_of(lost)
            self.kept[gone[np.isin(self.kept[gone], lost)]] = -1
        if slot % self.period != self.period - 1:
            return
        if self.updates.size:
            self.add(*self.updates)
        if len(self.tables):
            self.teacher = self.lineage.tabulate(self.tables, self.teacher)
        self.tables, self.updates = self.tables[:0], self.updates[:, :0]

    def add(self, updates: Ints, continued: Ints, origins: Ints) -> None:
        """The mean update; one that continued a kept model counts from where that model started."""
        shares = self.lineage.shares(updates)
        mine = continued >= 0
        versions = np.concatenate([[self.lineage.published], continued[mine], origins[mine]])
        coefficients = np.concatenate([[1.0], shares[mine], -shares[mine]])
        self.lineage.publish(self.lineage.combine(versions, coefficients, updates, shares))
