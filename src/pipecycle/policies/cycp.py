"""CyCP + SGD (Cho et al. 2023) with the paper's adjustment (Section VI-B).

Greedy sessions as in FedAvg, but a finished client keeps its update until it is picked for a group-round.  Ours:
clients passed over at an earlier pick go first.  Updates are added to the current model however old their
reference is; that is what breaks it for many groups.  `step` is our remedy and off by default; the lag that counts
is the largest in the group.  Where links fail, the star is drawn from the members that reach the server; if none does,
all keep their updates, and the group-round is tried again in the slots that follow, with a group drawn anew; if the
star's upload is lost, so are the updates that it had.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from attrs import define, field

from pipecycle.checks import MOST_CLIENTS, MOST_GROUPS, at_least, some_slots
from pipecycle.policies.clock import epoch_length, round_length
from pipecycle.policies.steps import rule, step_setting, through_star
from pipecycle.world.contract import Grouping, World
from pipecycle.world.streams import Ints, merged


@define(slots=False, eq=False)
class CyCP:
    """Greedy sessions; groups of finished clients take turns to update the shared model through a star node."""

    name: ClassVar[str] = "cycp"
    grouping: ClassVar[Grouping] = "aggregation"
    later: ClassVar[tuple[str, ...]] = ("step",)

    groups: int = field(default=2, validator=at_least(1, "group", most=MOST_GROUPS))
    """Group-rounds per epoch (G)."""
    epoch: int | None = field(default=None, validator=some_slots)
    """Slots per epoch (S); max(30, 1.5 sessions) if not given."""
    group_cap: int | None = field(default=None, validator=at_least(1, "member", most=MOST_CLIENTS))
    """Members per group, at most; floor(clients / groups) if not given."""
    step: float | str = field(default=1.0, validator=step_setting)
    """How much of a group's mean update is added: a part of it, or lag-stable; 1 is the paper's."""

    def setup(self, world: World) -> None:
        self.world, self.fleet, self.lineage, self.draw = world, world.fleet, world.lineage, world.draw
        self.period = round_length(epoch_length(self.epoch, world.session), self.groups)
        self.cap = self.group_cap or max(1, world.clients // self.groups)
        self.passed_over = np.zeros(world.clients, bool)
        self.steps = rule(self.step, self.groups)
        self.late = False  # a group-round is due in which nobody has reached the server yet

    def decide(self, slot: int) -> None:
        if slot % self.period == self.period - 1 or self.late:
            members = self.pick(slot, self.fleet.unsent(self.fleet.to_report))
            self.late = len(members) > 0 and not self.aggregate(slot, members)
        ready = self.fleet.free(self.fleet.to_train)
        if len(ready):
            self.fleet.start(ready, self.lineage.published)

    def pick(self, slot: int, candidates: Ints) -> Ints:
        """At most `cap` members, those passed over earlier first, the rest drawn at random."""
        if len(candidates) <= self.cap:
            self.passed_over[candidates] = False
            return candidates
        early = candidates[self.passed_over[candidates]]
        if len(early) > self.cap:
            members = self.draw("early", slot).sample(early, self.cap)
        else:
            others = candidates[~self.passed_over[candidates]]
            members = merged(early, self.draw("group", slot).sample(others, self.cap - len(early)))
        self.passed_over[candidates] = True
        self.passed_over[members] = False
        return members

    def aggregate(self, slot: int, members: Ints) -> bool:
        """False if nobody reaches the server."""
        stars = self.fleet.reaching(members, "server")
        if not len(stars):
            self.passed_over[members] = True
            return False
        through_star(self.world, self.steps, members, self.draw("star", slot).choice(stars))
        return True

    def references(self) -> tuple[int, ...]:
        return ()

    def collect(self, slot: int, done: Ints, lost: Ints) -> None:
        """Finished clients keep their updates until they are picked."""
