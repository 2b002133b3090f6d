"""PipeCycle: pipelined groups that relay their models (paper, Section IV and Algorithm 1; ALGORITHMS.md 2).

Ours where the paper is silent or contradicts itself: the formation interval is ceil(session / groups); a slot
with nobody eligible does nothing at all; the group's model is its reference plus the mean update (the text's
form, not Algorithm 1's); a discarded hub pays nothing.
"""

from __future__ import annotations

from collections import deque
from typing import ClassVar

from attrs import define, field

from pipecycle.checks import MOST_CLIENTS, MOST_GROUPS, MOST_SLOTS, at_least, one_of, share
from pipecycle.lineage import Kind
from pipecycle.policies.rotation import Group, Groups, Rotation, group_cap
from pipecycle.streams import Ints
from pipecycle.world import Grouping, World


@define(slots=False, eq=False)
class PipeCycle:
    """Groups of charged clients train in a pipeline; each hub relays its model to the next group."""

    name: ClassVar[str] = "pipecycle"
    grouping: ClassVar[Grouping] = "launch"

    groups: int = field(default=2, validator=at_least(1, "concurrent group", most=MOST_GROUPS))
    """Groups in training at once, at most (G)."""
    group_size: int | None = field(default=None, validator=at_least(1, "member", most=MOST_CLIENTS))
    """Members per group, at most (n_G); floor(clients / 2.5 groups) if not given."""
    interval: int | None = field(default=None, validator=at_least(1, "slot", most=MOST_SLOTS))
    """Slots between two formations, at least (R); ceil(session / groups) if not given."""
    queue_threshold: int | None = field(default=None, validator=at_least(1, "waiting model"))
    """Waiting hub models beyond which the oldest is discarded; the paper's non-IID cells use a threshold."""
    rotation: str = field(default="longest-idle", validator=one_of("longest-idle", "spread"))
    """Who joins when more clients are eligible than fit."""
    relay_mix: float = field(default=1.0, validator=share)
    """Weight of the relayed model in the server's new one; 1 is the paper's replacement."""

    def setup(self, world: World) -> None:
        self.fleet, self.lineage, self.draw = world.fleet, world.lineage, world.draw
        self.need = self.fleet.to_train + self.fleet.to_report
        self.every = self.interval or max(1, -(-world.session // self.groups))
        size = self.group_size or group_cap(world.clients, self.groups)
        self.queue = Rotation(world, size, spread=self.rotation == "spread")
        self.formed = -self.every
        self.active = Groups()
        self.hubs: deque[tuple[int, int]] = deque()  # client, version
        self.events = 0

    def decide(self, slot: int) -> None:
        if slot - self.formed >= self.every and len(self.active) < self.groups:
            members = self.queue.pick(slot, self.need)
            if len(members):
                reference = self.relay() if self.hubs else self.lineage.published
                self.active.add(members, self.fleet.start(members, reference, self.need), reference)
                self.formed = slot
        if not len(self.active) and self.hubs:  # flush a stagnated pipeline
            self.relay()

    def relay(self) -> int:
        """The oldest waiting hub uploads; the server adopts its model."""
        hub, model = self.hubs.popleft()
        self.fleet.send_one(hub, "server")
        if self.relay_mix < 1.0:
            blend = (1.0 - self.relay_mix, self.relay_mix)
            model = self.lineage.combine((self.lineage.published, model), blend, kind=Kind.MIXTURE)
        return self.lineage.publish(model)

    def collect(self, slot: int, done: Ints, lost: Ints) -> None:
        for group in self.active.closed_by(done, lost):
            self.aggregate(group)

    def aggregate(self, group: Group) -> None:
        model = self.lineage.mean(group.reference, group.sessions)
        self.events += 1
        hub = self.draw("hub", self.events).choice(group.members)
        self.fleet.send(group.members[group.members != hub], "hub", last_step=True)
        self.fleet.hold(hub)
        self.hubs.append((hub, model))
        while self.queue_threshold is not None and len(self.hubs) > self.queue_threshold:
            client, stale = self.hubs.popleft()
            self.fleet.release(client)
            self.lineage.discard(stale)


@define(slots=False, eq=False)
class PipeCyclePlus(PipeCycle):
    """PipeCycle whose chains mix: spread rotation and half-weight relays, at no extra energy."""

    name: ClassVar[str] = "pipecycle+"

    rotation: str = field(default="spread", validator=one_of("longest-idle", "spread"))
    relay_mix: float = field(default=0.5, validator=share)
