"""FedSeq (Chen et al. 2023) in two readings (the paper says nothing about its adjustment).

`mode = "paper"` is the reading that explains the paper's tables: PipeCycle's groups, one shared model, and a head
that uploads as soon as its group is done.  `mode = "chain"` is faithful to Chen et al.: clusters in which one
model goes from client to client, and a server that averages what the last ones hold.  Ours in the chain: a model
stays where it was trained until the next client can afford its session, so that nobody carries a model in vain.
`step` is ours and off by default; a chain's models are averaged, so that there is no step to shorten.

Where links fail: a head that does not reach the server keeps its group's updates until it does; if its upload is lost,
so are they.  In a chain a model that is lost on its way, or with the client that was training it, begins again as the
server's, with the clients that are left, and one that has waited for `patience` slots to be uploaded is given up.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from attrs import define, field, frozen

from pipecycle.checks import MOST_GROUPS, at_least, one_of, some_slots
from pipecycle.errors import InputError
from pipecycle.policies.rotation import Groups
from pipecycle.policies.steps import rule, step_setting
from pipecycle.world.contract import Grouping, World
from pipecycle.world.lineage import Kind
from pipecycle.world.streams import Ints


@define(slots=False, eq=False)
class FedSeq:
    """Groups follow one another on one shared model (paper), or hand a model from client to client (chain)."""

    name: ClassVar[str] = "fedseq"
    grouping: ClassVar[Grouping] = "launch"
    later: ClassVar[tuple[str, ...]] = ("step",)

    groups: int = field(default=2, validator=at_least(1, "group", most=MOST_GROUPS))
    """Groups in training at once (paper mode) or clusters (chain mode)."""
    mode: str = field(default="paper", validator=one_of("paper", "chain"))
    """The reading of the algorithm."""
    patience: int | None = field(default=None, validator=some_slots)
    """Chain mode: slots after which a client without energy is skipped; 10 sessions if not given."""
    step: float | str = field(default=1.0, validator=step_setting)
    """Paper mode: how much of a group's mean update is added: a part of it, or lag-stable; 1 is the paper's."""

    def __attrs_post_init__(self) -> None:
        if self.mode == "chain" and self.step != 1.0:
            raise InputError(f"step = {self.step}: needs mode = paper, chains of clients are averaged without a step")

    def setup(self, world: World) -> None:
        self.way: Shared | Chains
        if self.mode == "paper":
            self.way = Shared(world, self.groups, self.step)
        else:
            self.way = Chains(world, self.groups, self.patience or 10 * world.session)

    def decide(self, slot: int) -> None:
        self.way.decide(slot)

    def references(self) -> list[int]:
        return self.way.references()

    def collect(self, slot: int, done: Ints, lost: Ints) -> None:
        self.way.collect(slot, done, lost)


@frozen(eq=False)
class Waiting:
    """A head that has not reached the server yet."""

    head: int
    updates: Ints
    reference: int


class Shared:
    """Paper mode: PipeCycle's group formation without hubs; every group updates the server's model."""

    def __init__(self, world: World, groups: int, step: float | str) -> None:
        self.fleet, self.lineage, self.draw = world.fleet, world.lineage, world.draw
        self.active, self.steps = Groups(world, groups), rule(step, groups)
        self.waiting: list[Waiting] = []
        self.events = 0

    def references(self) -> list[int]:
        return self.active.references()

    def decide(self, slot: int) -> None:
        if self.waiting:
            self.waiting = [group for group in self.waiting if not self.report(group)]
        self.active.form(slot, lambda: self.lineage.published)

    def collect(self, slot: int, done: Ints, lost: Ints) -> None:
        for group in self.active.closed_by(done, lost):
            self.events += 1
            head = self.draw("head", self.events).choice(group.members)
            done_with = Waiting(head, group.gather(self.fleet, head), group.reference)
            if not self.report(done_with, last_step=True):
                self.fleet.hold(head)
                self.waiting.append(done_with)

    def report(self, group: Waiting, *, last_step: bool = False) -> bool:
        """The head uploads; False if it cannot now."""
        if not self.fleet.reaches(group.head, "server"):
            return False
        if self.fleet.send_one(group.head, "server", last_step=last_step) >= 0:
            step = self.steps.of(self.lineage.lag(group.reference), len(group.updates))
            self.lineage.publish(self.lineage.mean(self.lineage.published, group.updates, step=step))
        return True


@define(eq=False)
class Cluster:
    """One round of one cluster: who comes in which order, and where the model is."""

    order: list[int]
    model: int
    place: int = 0
    since: int = 0
    """The slot from which the client in `place` has been waited for."""
    holder: int | None = None
    """The client that trained last and has not handed on."""
    training: int | None = None
    """The session in progress."""
    sessions: int = 0
    reported: bool = False


class Chains:
    """Chain mode: clusters of clients that train one after the other."""

    def __init__(self, world: World, groups: int, patience: int) -> None:
        self.fleet, self.lineage, self.draw = world.fleet, world.lineage, world.draw
        self.clients, self.groups, self.patience = world.clients, min(groups, world.clients), patience
        self.need = self.fleet.to_train + self.fleet.to_report
        self.rounds = 0
        self.clusters: list[Cluster] = []

    def references(self) -> list[int]:
        return [cluster.model for cluster in self.clusters]

    def decide(self, slot: int) -> None:
        self.eligible = self.fleet.eligible(self.need)
        for cluster in self.clusters:
            if cluster.holder is not None:
                self.pass_on(slot, cluster, cluster.holder)
        if all(cluster.reported for cluster in self.clusters):
            self.next_round(slot)
        for cluster in self.clusters:
            if cluster.holder is None and cluster.training is None and not cluster.reported:
                self.start(slot, cluster)

    def pass_on(self, slot: int, cluster: Cluster, holder: int) -> None:
        """Hand the model to the next client that can train it, or report it if there is none."""
        self.skip(slot, cluster)
        if cluster.place == len(cluster.order):
            if self.fleet.reaches(holder, "server"):
                arrived = self.fleet.send_one(holder, "server") >= 0
            elif slot - cluster.since >= self.patience:
                self.fleet.hold(holder)
                self.fleet.release(holder)
                arrived = False
            else:
                return
            cluster.reported = True
        elif self.ready(cluster) and self.fleet.reaches(holder, "hub"):
            arrived = self.fleet.send_one(holder, "hub") >= 0
            cluster.since = slot + 1
        else:
            return
        cluster.holder = None
        if not arrived:
            self.begin_again(cluster)

    def begin_again(self, cluster: Cluster) -> None:
        """The cluster's model is gone."""
        if cluster.sessions:
            self.lineage.discard(cluster.model)
        cluster.model, cluster.sessions = self.lineage.published, 0

    def start(self, slot: int, cluster: Cluster) -> None:
        if slot < cluster.since:
            return
        self.skip(slot, cluster)
        if cluster.place == len(cluster.order):  # nobody could train at all
            cluster.reported = True
            return
        if self.ready(cluster):
            client = np.array([cluster.order[cluster.place]])
            cluster.training = int(self.fleet.start(client, cluster.model, self.need)[0])

    def ready(self, cluster: Cluster) -> bool:
        return bool(self.eligible[cluster.order[cluster.place]])

    def skip(self, slot: int, cluster: Cluster) -> None:
        if cluster.place < len(cluster.order) and slot - cluster.since >= self.patience:
            cluster.place += 1
            cluster.since = slot

    def collect(self, slot: int, done: Ints, lost: Ints) -> None:
        if not len(done) and not len(lost):
            return
        ended, gone = set(done.tolist()), set(lost.tolist())
        for cluster in self.clusters:
            session = cluster.training
            if session in ended:
                cluster.model = self.lineage.mean(cluster.model, np.array([session]), kind=Kind.HANDOVER)
                cluster.holder = cluster.order[cluster.place]
                cluster.sessions += 1
            elif session in gone:
                self.begin_again(cluster)
            else:
                continue
            cluster.training = None
            cluster.place += 1
            cluster.since = slot + 1

    def next_round(self, slot: int) -> None:
        """Average the clusters' models by the sessions in them, then draw new clusters."""
        heads = [cluster for cluster in self.clusters if cluster.sessions]
        if heads:
            total = sum(cluster.sessions for cluster in heads)
            shares = [cluster.sessions / total for cluster in heads]
            self.lineage.publish(self.lineage.combine([cluster.model for cluster in heads], shares))
        order = self.draw("clusters", self.rounds).permutation(self.clients)
        self.rounds += 1
        self.clusters = [
            Cluster(part.tolist(), self.lineage.published, since=slot) for part in np.array_split(order, self.groups)
        ]
