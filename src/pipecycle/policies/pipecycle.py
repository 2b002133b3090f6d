"""PipeCycle: pipelined groups that relay their models (paper, Section IV and Algorithm 1).

Ours where the paper is silent or contradicts itself: the formation interval is ceil(session / groups); a slot
with nobody eligible does nothing at all; the group's model is its reference plus the mean update (the text's
form, not Algorithm 1's); a discarded hub pays nothing.  `rotation` and `relay_mix` are ours too.  Where links fail: a
hub that does not reach the server is passed over until it does, and a new group starts from the server's model if none
does; a model whose upload is lost is discarded, and the hub's model is made of what has reached it.
"""

from __future__ import annotations

from collections import deque
from typing import ClassVar

from attrs import define, field, frozen

from pipecycle.checks import MOST_CLIENTS, MOST_GROUPS, at_least, one_of, share, some_slots
from pipecycle.policies.rotation import Group, Groups
from pipecycle.world.contract import Grouping, World
from pipecycle.world.lineage import Kind
from pipecycle.world.streams import Ints


@frozen(eq=False)
class Hub:
    """A client that keeps its group's model until it is asked for."""

    client: int
    model: int
    reference: int
    size: int
    """Updates in the model."""


@define(slots=False, eq=False)
class Pipeline:
    """Groups that form at intervals, train side by side and leave their models with hubs, which upload in turn."""

    grouping: ClassVar[Grouping] = "launch"

    groups: int = field(default=2, validator=at_least(1, "concurrent group", most=MOST_GROUPS))
    """Groups in training at once, at most (G)."""
    group_size: int | None = field(default=None, validator=at_least(1, "member", most=MOST_CLIENTS))
    """Members per group, at most (n_G); floor(clients / 2.5 groups) if not given."""
    interval: int | None = field(default=None, validator=some_slots)
    """Slots between two formations, at least (R); ceil(session / groups) if not given."""
    queue_threshold: int | None = field(default=None, validator=at_least(1, "waiting model"))
    """Waiting hub models beyond which the oldest is discarded; the paper's non-IID cells use a threshold."""

    def setup(self, world: World) -> None:
        self.fleet, self.lineage, self.draw = world.fleet, world.lineage, world.draw
        self.active = Groups(world, self.groups, self.group_size, self.interval)
        self.hubs: deque[Hub] = deque()
        self.events = 0

    def decide(self, slot: int) -> None:
        self.active.form(slot, self.relay)
        if not len(self.active) and self.hubs:  # flush a stagnated pipeline
            self.relay()

    def relay(self) -> int:
        """The hub that has waited longest uploads, if any can; the version that the server then serves."""
        hub = next((hub for hub in self.hubs if self.fleet.reaches(hub.client, "server")), None)
        if hub is None:
            return self.lineage.published
        self.hubs.remove(hub)
        if self.fleet.send_one(hub.client, "server") < 0:
            self.lineage.discard(hub.model)
            return self.lineage.published
        return self.lineage.publish(self.adopt(hub))

    def adopt(self, hub: Hub) -> int:
        """The server's new model."""
        raise NotImplementedError

    def references(self) -> list[int]:
        return [hub.model for hub in self.hubs] + self.active.references()

    def collect(self, slot: int, done: Ints, lost: Ints) -> None:
        for group in self.active.closed_by(done, lost):
            self.aggregate(group)

    def aggregate(self, group: Group) -> None:
        self.events += 1
        hub = self.draw("hub", self.events).choice(group.members)
        updates = group.gather(self.fleet, hub)
        model = self.lineage.mean(group.reference, updates)
        self.fleet.hold(hub)
        self.hubs.append(Hub(hub, model, group.reference, len(updates)))
        while self.queue_threshold is not None and len(self.hubs) > self.queue_threshold:
            stale = self.hubs.popleft()
            self.fleet.release(stale.client)
            self.lineage.discard(stale.model)


@define(slots=False, eq=False)
class PipeCycle(Pipeline):
    """Groups of charged clients train in a pipeline; each hub relays its model to the next group."""

    name: ClassVar[str] = "pipecycle"

    rotation: str = field(default="longest-idle", validator=one_of("longest-idle", "spread"))
    """Who joins when more clients are eligible than fit."""
    relay_mix: float = field(default=1.0, validator=share)
    """Weight of the relayed model in the server's new one; 1 is the paper's replacement."""

    def setup(self, world: World) -> None:
        super().setup(world)
        self.active.queue.spread = self.rotation == "spread"

    def adopt(self, hub: Hub) -> int:
        if self.relay_mix == 1.0:
            return hub.model
        blend = (1.0 - self.relay_mix, self.relay_mix)
        return self.lineage.combine((self.lineage.published, hub.model), blend, kind=Kind.MIXTURE)
