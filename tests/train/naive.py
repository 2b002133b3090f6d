"""Training once more, deliberately naive: slot by slot, one client at a time, as the papers write it.

Of a schedule it is told only who starts and who transmits in which slot (`Orders`), and it repeats the draws whose
outcome is not in there.  What a model is made of follows from each policy's rule as it is written down here, in
plain PyTorch with a module of its own for every client; there are no versions, no recipes and no stacks.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from pipecycle.data import session_indices
from pipecycle.schedule.schedule import Schedule, Sent
from pipecycle.train.problems import Problem
from pipecycle.world.energy import UNIT
from pipecycle.world.harvest import rows
from pipecycle.world.specs import parse_harvest
from pipecycle.world.streams import streams

Model = dict[str, Tensor]
"""Parameters by name."""


class Orders:
    """All that is taken from a schedule."""

    def __init__(self, schedule: Schedule) -> None:
        meta, sessions = schedule.meta, schedule.sessions
        self.policy, self.settings = str(meta["policy"]), dict(meta["settings"])
        self.clients, self.trial, self.slots = schedule.clients, schedule.trial, schedule.slots
        self.harvest = str(meta["harvest"])
        self.lengths: list[int] = np.broadcast_to(schedule.length, self.clients).tolist()
        self.samples: list[int] = np.broadcast_to(schedule.samples, self.clients).tolist()
        self.starts: dict[int, list[tuple[int, int]]] = defaultdict(list)  # by slot: session, client
        self.sends: dict[tuple[int, Sent], list[int]] = defaultdict(list)  # by slot and receiver: clients
        self.never_sent = np.flatnonzero(sessions.sent < 0).tolist()
        for session, (client, start) in enumerate(zip(sessions.client.tolist(), sessions.start.tolist(), strict=True)):
            self.starts[start].append((session, client))
        for client, slot, receiver in zip(sessions.client, sessions.sent.tolist(), sessions.receiver, strict=True):
            if slot >= 0:
                self.sends[slot, Sent(receiver)].append(int(client))


@dataclass(eq=False)
class Client:
    number: int
    module: nn.Module
    own: Model
    """What it held at the end of its last finished session."""
    base: Model = field(default_factory=dict)
    session: int = -1
    since: int = -1
    """Its first slot."""
    begun: int = 0
    """Sessions begun."""
    left: int = 0
    """Training slots left; 0 is not training."""
    batches: Any = None
    optimiser: torch.optim.Optimizer | None = None
    teacher: dict[int, Tensor] = field(default_factory=dict)
    """Logits to learn from, by label."""
    logits: dict[int, list[Tensor]] = field(default_factory=dict)
    """Those met in training, by label."""

    @property
    def delta(self) -> Model:
        return plus(self.own, self.base, -1.0)


class Training:
    """A whole run; what happened is in the lists once it is made."""

    def __init__(self, schedule: Schedule, problem: Problem) -> None:
        self.orders, self.problem = Orders(schedule), problem
        self.module = module = deepcopy(problem.module).double()
        self.images, self.labels = torch.from_numpy(problem.task.x_train).double(), problem.task.y_train
        self.x0 = self.x = parameters(module)
        self.clients = [Client(number, deepcopy(module), self.x0) for number in range(self.orders.clients)]

        self.server: list[Model] = []
        """The server's model at the end of every slot."""
        self.own: list[list[Model]] = []
        """Every client's model at the end of its last finished session, at the end of every slot."""
        self.energy: list[float] = []
        """Units spent so far, at the end of every slot."""
        self.references: dict[int, Tensor] = {}
        """Where every session started, as one vector."""
        self.updates: dict[int, Tensor] = {}
        """How far it got."""
        self.published: list[int] = []
        """The slots of the server's new models."""
        self.serials: dict[int, int] = {id(self.x0): 0}
        """The number of each of them, by its id."""
        self.kept = [self.x0]
        """All of them, so that no id is used twice."""
        self.distilled: set[int] = set()
        """Sessions that report logits."""
        self.taught_by: dict[int, int] = {}
        """The number of teacher tables at the start of a session."""
        self.tables: list[tuple[int, list[int]]] = []
        """The slots of the teachers, and the sessions behind each."""
        self.seen: Counter[str] = Counter()
        """How often a rule's rarer paths were taken."""

        self.units = 0.0
        rule = RULES[self.orders.policy](self)
        for slot in range(self.orders.slots):
            rule.decide(slot)
            finished = []
            for client in self.clients:
                if client.left:
                    self.step(client)
                    self.units += 1
                    if not client.left:
                        finished.append(client)
            for client in finished:
                client.own = parameters(client.module)
                self.updates[client.session] = vector(client.delta)
            rule.complete(slot, finished)
            self.server.append(self.x)
            self.own.append([client.own for client in self.clients])
            self.energy.append(self.units)
        assert not any(self.orders.starts.values())
        assert not any(self.orders.sends.values())

    # What a rule can order.

    def starting(self, slot: int) -> list[tuple[int, Client]]:
        return [(session, self.clients[number]) for session, number in self.orders.starts.pop(slot, [])]

    def sending(self, slot: int, *receivers: Sent) -> list[Client]:
        """Who transmits in the slot, in client order; each has finished a session and sends it once."""
        numbers = [number for receiver in receivers for number in self.orders.sends.pop((slot, receiver), [])]
        senders = [self.clients[number] for number in sorted(numbers)]
        assert all(client.session >= 0 and not client.left for client in senders)
        self.units += len(senders)
        return senders

    def start(self, session: int, client: Client, slot: int, reference: Model) -> None:
        assert not client.left
        sgd, training, number = self.problem.training.sgd, self.problem.training, client.number
        client.session, client.since, client.base = session, slot, reference
        with torch.no_grad():
            for name, value in client.module.named_parameters():
                value.copy_(reference[name])
        client.left = self.orders.lengths[number]
        client.batches = iter(
            session_indices(
                self.problem.split[number],
                self.problem.trial,
                number,
                client.begun,
                client.left,
                training.batch,
                training.replacement,
            )
        )
        client.begun += 1
        rate = sgd.lr * training.lr_decay ** (slot / 1000)
        client.optimiser = torch.optim.SGD(
            client.module.parameters(), rate, sgd.momentum, weight_decay=sgd.weight_decay
        )
        client.teacher, client.logits = {}, defaultdict(list)
        self.references[session] = vector(reference)

    def step(self, client: Client) -> None:
        """One step of SGD on the session's next batch."""
        index = next(client.batches)
        labels = self.labels[index].tolist()
        z = client.module(self.images[index])
        training = self.problem.training
        loss = functional.cross_entropy(z, torch.tensor(labels))
        for row, label in zip(z, labels, strict=True):
            if label in client.teacher:
                term = -(client.teacher[label].softmax(0) * row.log_softmax(0)).sum()
                loss = loss + training.distillation * term / len(labels)
            if self.orders.policy == "flda":
                client.logits[label].append(row.detach())
        if training.sgd.proximal:
            for name, value in client.module.named_parameters():
                loss = loss + training.sgd.proximal / 2 * ((value - client.base[name]) ** 2).sum()
        assert client.optimiser is not None
        client.optimiser.zero_grad()
        loss.backward()
        client.optimiser.step()
        client.left -= 1

    def publish(self, slot: int, model: Model) -> None:
        self.x = model
        self.published.append(slot)
        self.serials[id(model)] = len(self.published)
        self.kept.append(model)

    def add(self, slot: int, members: list[Client], update: Model, sizes: list[int]) -> None:
        """The server adds a part of an update: section 14, where a policy has a step, else all of it."""
        step, groups = self.orders.settings.get("step", 1.0), self.orders.settings["groups"]
        if step == "lag-stable" or self.orders.policy == "pipecycle+":
            kappa = self.orders.settings.get("kappa", 0.85)
            lag = len(self.published) - min(self.serials[id(client.base)] for client in members)
            self.seen["older than G - 1"] += lag > groups - 1
            limit = 2 * math.sin(math.pi / (4 * max(lag, groups - 1) + 2))
            sizes.append(len(members))
            recent = sizes[-50:]
            step = min(1, kappa * limit)
            if len(set(recent)) > 1:
                step = min(1, 0.87 * limit, step * len(members) * len(recent) / sum(recent))
                self.seen["weighted"] += 1
        self.publish(slot, plus(self.x, update, step))

    def mean(self, updates: Sequence[tuple[Client, Model]]) -> Model:
        """Weighted by samples (1.7)."""
        total = sum(self.orders.samples[client.number] for client, _ in updates)
        out = {name: torch.zeros_like(value) for name, value in self.x0.items()}
        for client, update in updates:
            out = plus(out, update, self.orders.samples[client.number] / total)
        return out

    # What is compared.

    def score(self, model: Model) -> tuple[float, float, list[float]]:
        """Accuracy in percent, loss, and accuracy by class on the test samples."""
        task, test = self.problem.task, self.problem.split.test
        with torch.no_grad():
            for name, value in self.module.named_parameters():
                value.copy_(model[name])
            z = self.module(torch.from_numpy(task.x_test[test]).double())
        answers = task.y_test[test].tolist()
        right = [int(row.argmax()) == answer for row, answer in zip(z, answers, strict=True)]
        by_class = [
            100.0
            * sum(good for good, answer in zip(right, answers, strict=True) if answer == label)
            / answers.count(label)
            for label in range(task.classes)
        ]
        return 100.0 * sum(right) / len(right), float(functional.cross_entropy(z, torch.tensor(answers))), by_class


class Rule:
    """A policy's effect on models.  B is the longest session, S the epoch, R the round (1.1, 15)."""

    def __init__(self, run: Training) -> None:
        self.run, self.settings = run, run.orders.settings
        self.N, self.B = run.orders.clients, max(run.orders.lengths)
        self.S = self.settings.get("epoch") or max(30, -(-3 * self.B // 2))
        self.R = max(1, self.S // self.settings.get("groups", 1))
        self.setup()

    def setup(self) -> None: ...

    def decide(self, slot: int) -> None: ...

    def complete(self, slot: int, finished: list[Client]) -> None: ...


class PipeCycle(Rule):
    """Section 2, with the relay mixture of section 14."""

    def setup(self) -> None:
        self.queue: list[tuple[Client, Model, list[Client]]] = []  # H: hubs, their models and groups
        self.active: list[tuple[list[Client], Model]] = []  # Q: members and reference

    def decide(self, slot: int) -> None:
        starting = self.run.starting(slot)
        if starting:
            if self.queue:
                self.pop(slot)
            for session, client in starting:
                self.run.start(session, client, slot, self.run.x)
            self.active.append(([client for _, client in starting], self.run.x))
        if not self.active and self.queue:
            self.pop(slot)
            self.run.seen["flush"] += 1

    def pop(self, slot: int) -> None:
        """The server adopts the oldest model, or mixes it in; then the new group's reference is the server's."""
        hub, model, _ = self.queue.pop(0)
        assert self.run.sending(slot, Sent.TO_SERVER) == [hub]
        m = self.settings["relay_mix"]
        self.run.publish(
            slot, model if m == 1.0 else {key: (1 - m) * self.run.x[key] + m * model[key] for key in model}
        )

    def complete(self, slot: int, finished: list[Client]) -> None:
        senders = self.run.sending(slot, Sent.TO_HUB)
        for group in [group for group in self.active if all(not client.left for client in group[0])]:
            members, reference = group
            (hub,) = [client for client in members if client not in senders]
            mean = self.run.mean([(client, client.delta) for client in members])
            self.queue.append((hub, plus(reference, mean), members))
            self.active.remove(group)
            self.run.seen["waiting"] += len(self.queue) > 1
            limit = self.settings["queue_threshold"]
            while limit is not None and len(self.queue) > limit:
                loser, _, _ = self.queue.pop(0)
                assert loser.session in self.run.orders.never_sent
                self.run.seen["discard"] += 1


class PipeCyclePlus(PipeCycle):
    """Section 14.  Only the hub has not started another session when it uploads, so that it speaks for its group."""

    def setup(self) -> None:
        super().setup()
        self.sizes: list[int] = []

    def pop(self, slot: int) -> None:
        hub, model, members = self.queue.pop(0)
        assert self.run.sending(slot, Sent.TO_SERVER) == [hub]
        self.run.add(slot, [hub] * len(members), plus(model, hub.base, -1.0), self.sizes)


class FedAvg(Rule):
    """Section 3."""

    def setup(self) -> None:
        self.buffer: list[tuple[Client, Model]] = []

    def decide(self, slot: int) -> None:
        for client in self.run.sending(slot, Sent.TO_SERVER):
            self.run.seen["stale"] += client.base is not self.run.x
            self.buffer.append((client, client.delta))
        for session, client in self.run.starting(slot):
            self.run.start(session, client, slot, self.run.x)

    def complete(self, slot: int, finished: list[Client]) -> None:
        if slot % self.S == self.S - 1 and self.buffer:
            self.run.seen["twice in an epoch"] += len({client.number for client, _ in self.buffer}) < len(self.buffer)
            self.run.publish(slot, plus(self.run.x, self.run.mean(self.buffer)))
            self.buffer = []


class CyCP(Rule):
    """Section 4: the new model is visible to sessions that start in the very slot."""

    def setup(self) -> None:
        self.sizes: list[int] = []

    def decide(self, slot: int) -> None:
        members = self.run.sending(slot, Sent.TO_HUB, Sent.TO_SERVER)
        if members:
            assert slot % self.R == self.R - 1
            self.run.seen["stale"] += any(client.base is not self.run.x for client in members)
            self.run.add(slot, members, self.run.mean([(client, client.delta) for client in members]), self.sizes)
        for session, client in self.run.starting(slot):
            self.run.start(session, client, slot, self.run.x)


class MIFA(Rule):
    """Section 5."""

    def setup(self) -> None:
        self.memory: dict[int, Model] = {}

    def decide(self, slot: int) -> None:
        if slot % self.S == 0:
            self.broadcast = self.run.x
        for session, client in self.run.starting(slot):
            assert slot % self.S == self.S - self.B - 1
            self.run.start(session, client, slot, self.broadcast)
        self.received = self.run.sending(slot, Sent.TO_SERVER)
        for client in self.received:
            assert slot % self.S == self.S - 1
            self.run.seen["late report"] += slot - client.since > self.B
            # As the authors do it: what is remembered is the update over the learning rate it was made with.
            self.memory[client.number] = {name: part / self.rate(client.since) for name, part in client.delta.items()}

    def rate(self, slot: int) -> float:
        training = self.run.problem.training
        return float(training.sgd.lr * training.lr_decay ** (slot / 1000))

    def complete(self, slot: int, finished: list[Client]) -> None:
        if slot % self.S != self.S - 1:
            return
        if self.settings["use_memory"]:
            if self.memory:
                self.run.seen["absent remembered"] += len(self.memory) > len(self.received)
                model = self.run.x
                now = self.rate(slot - self.B)  # that of this epoch's sessions
                for update in self.memory.values():
                    model = plus(model, update, now / self.N)
                self.run.publish(slot, model)
        elif self.received:
            self.run.publish(
                slot, plus(self.run.x, self.run.mean([(client, client.delta) for client in self.received]))
            )


class FLDA(Rule):
    """Section 6."""

    def setup(self) -> None:
        self.distils = [number % 2 == 0 for number in range(self.N)]
        self.teachers: dict[int, dict[int, Tensor]] = {}  # by label: the mean logits of each who contributed
        self.kept: dict[int, tuple[Model, Model]] = {}  # global phase: the server's x, the model trained from it
        self.origin: dict[int, Model] = {}  # what a learner's update counts from

    def decide(self, slot: int) -> None:
        for session, client in self.run.starting(slot):
            assert slot % self.S == self.S - self.B - 1
            if self.settings["phase"] == "global":
                self.distils[client.number] = slot // self.S % 2 == 0
            self.start(session, client, slot)
        self.learners, self.distillers = [], []
        for client in self.run.sending(slot, Sent.TO_SERVER):
            assert slot % self.S == self.S - 1
            self.run.seen["late report"] += slot - client.since > self.B
            (self.distillers if self.distils[client.number] else self.learners).append(client)
            self.run.units -= self.distils[client.number] * (1.0 - self.settings["upload_ratio"])
            if self.settings["phase"] == "own":
                self.distils[client.number] = not self.distils[client.number]

    def start(self, session: int, client: Client, slot: int) -> None:
        reference = self.origin[client.number] = self.run.x
        kept = self.kept.pop(client.number, None)
        if self.distils[client.number]:
            self.run.distilled.add(session)
            self.run.seen["kept model dropped"] += kept is not None
        elif kept is not None:
            self.origin[client.number], reference = kept
            self.run.seen["kept model continued"] += 1
        self.run.start(session, client, slot, reference)
        self.run.taught_by[session] = len(self.run.tables)
        for label, contributors in self.teachers.items():
            others = [logits for number, logits in contributors.items() if number != client.number]
            if others:
                client.teacher[label] = torch.stack(others).mean(0)
            self.run.seen["own share taken out"] += 0 < len(others) < len(contributors)
            self.run.seen["nobody else's row"] += not others

    def complete(self, slot: int, finished: list[Client]) -> None:
        if self.settings["phase"] == "global":
            for client in finished:
                if self.distils[client.number]:
                    self.kept[client.number] = self.origin[client.number], client.own
        if self.learners:
            updates = [(client, plus(client.own, self.origin[client.number], -1.0)) for client in self.learners]
            self.run.publish(slot, plus(self.run.x, self.run.mean(updates)))
        if self.distillers:
            self.run.tables.append((slot, [client.session for client in self.distillers]))
            self.run.seen["row kept"] += any(
                all(label not in client.logits for client in self.distillers) for label in self.teachers
            )
        for label in {label for client in self.distillers for label in client.logits}:
            self.teachers[label] = {
                client.number: torch.stack(client.logits[label]).mean(0)
                for client in self.distillers
                if label in client.logits
            }


class FedSeqPaper(Rule):
    """Section 7, the paper's mode."""

    def setup(self) -> None:
        self.active: list[list[Client]] = []
        self.sizes: list[int] = []

    def decide(self, slot: int) -> None:
        starting = self.run.starting(slot)
        for session, client in starting:
            self.run.start(session, client, slot, self.run.x)
        if starting:
            self.active.append([client for _, client in starting])

    def complete(self, slot: int, finished: list[Client]) -> None:
        senders = self.run.sending(slot, Sent.TO_HUB, Sent.TO_SERVER)
        for group in [group for group in self.active if all(not client.left for client in group)]:
            assert all(client in senders for client in group)
            self.run.add(slot, group, self.run.mean([(client, client.delta) for client in group]), self.sizes)
            self.active.remove(group)


@dataclass(eq=False)
class Cluster:
    members: list[int]
    model: Model
    begun: int
    place: int = -1
    """Of the last member that started."""
    sessions: int = 0
    reported: bool = False


class FedSeqChain(Rule):
    """Section 7, Chen et al.'s mode."""

    def setup(self) -> None:
        self.clusters: list[Cluster] = []
        self.rounds = 0
        self.patience = self.settings["patience"] or 10 * self.B

    def decide(self, slot: int) -> None:
        heads = self.run.sending(slot, Sent.TO_SERVER)
        for client in [*self.run.sending(slot, Sent.TO_HUB), *heads]:
            assert self.of(client).members[self.of(client).place] == client.number
            self.of(client).reported = client in heads
        if all(cluster.reported for cluster in self.clusters):
            self.next_round(slot)
        for session, client in self.run.starting(slot):
            cluster = self.of(client)
            assert cluster.members.index(client.number) > cluster.place
            self.run.seen["member skipped"] += cluster.members.index(client.number) > cluster.place + 1
            cluster.place = cluster.members.index(client.number)
            self.run.start(session, client, slot, cluster.model)
        for cluster in self.clusters:  # every member was waited for in vain
            if cluster.place < 0 and slot - cluster.begun == self.patience * len(cluster.members):
                cluster.reported = True
                self.run.seen["cluster in vain"] += 1

    def of(self, client: Client) -> Cluster:
        return next(cluster for cluster in self.clusters if client.number in cluster.members)

    def next_round(self, slot: int) -> None:
        total = sum(cluster.sessions for cluster in self.clusters)
        if total:
            model = {name: torch.zeros_like(value) for name, value in self.run.x.items()}
            for cluster in self.clusters:
                model = plus(model, cluster.model, cluster.sessions / total)
            self.run.publish(slot, model)
        order = streams(self.run.orders.trial)("clusters", self.rounds).permutation(self.N)
        parts = np.array_split(order, min(self.settings["groups"], self.N))
        self.clusters = [Cluster(part.tolist(), self.run.x, slot) for part in parts]
        self.rounds += 1

    def complete(self, slot: int, finished: list[Client]) -> None:
        for client in finished:
            self.of(client).model = client.own
            self.of(client).sessions += 1


class FedBacys(Rule):
    """Section 8.  Who is in a group depends on the batteries, so these are kept here: empty at first, a unit for
    every step and every transmission."""

    def setup(self) -> None:
        orders = self.run.orders
        weather = parse_harvest(orders.harvest).weather(self.N, orders.trial)
        self.gains = [gains / UNIT for gains, _ in rows(weather, self.N, orders.slots)]
        self.level = np.zeros(self.N)
        self.reference = [self.run.x0] * self.N
        self.sizes: list[int] = []
        self.members: dict[int, list[int]] = {}  # by the slot of their report

    def decide(self, slot: int) -> None:
        self.level += self.gains[slot]
        if slot % self.S == 0:
            self.assign(slot)
        participants = self.run.sending(slot, Sent.TO_HUB, Sent.TO_SERVER)
        self.run.seen["group without members"] += slot in self.members and not participants
        if participants:
            self.report(slot, participants)
        for session, client in self.run.starting(slot):
            assert client.number in self.members[slot + self.B]
            self.run.start(session, client, slot, self.reference[client.number])
        self.training = [client.number for client in self.run.clients if client.left]

    def assign(self, slot: int) -> None:
        ties = streams(self.run.orders.trial)("battery", slot).permutation(self.N).tolist()
        order = sorted(ties, key=lambda number: -self.level[number])
        G, size = self.settings["groups"], max(1, self.N // self.settings["groups"])
        turns = [turn for turn in range(slot + self.B, slot + self.B + (G + 1) * self.R) if turn % self.R == self.R - 1]
        for g in range(G):
            self.members[turns[g]] = order[g * size :] if g == G - 1 else order[g * size : (g + 1) * size]

    def report(self, slot: int, participants: list[Client]) -> None:
        assert {client.number for client in participants} <= set(self.members[slot])
        self.run.add(slot, participants, self.run.mean([(client, client.delta) for client in participants]), self.sizes)
        receivers = {client.number for client in participants}
        if self.settings["reference_refresh"] == "broadcast":
            receivers = set(range(self.N))
        elif self.settings["reference_refresh"] == "next_group":
            later = [turn for turn in self.members if turn > slot]
            receivers |= set(self.members[min(later)] if later else [])
        for number in receivers:
            self.reference[number] = self.run.x
        self.run.seen["others refreshed"] += len(receivers) > len(participants)
        self.level[[client.number for client in participants]] -= 1

    def complete(self, slot: int, finished: list[Client]) -> None:
        self.level[self.training] -= 1
        assert self.level.min() >= 0


def fedseq(run: Training) -> Rule:
    return FedSeqPaper(run) if run.orders.settings["mode"] == "paper" else FedSeqChain(run)


RULES: dict[str, Any] = {
    "pipecycle": PipeCycle,
    "pipecycle+": PipeCyclePlus,
    "fedavg": FedAvg,
    "cycp": CyCP,
    "mifa": MIFA,
    "flda": FLDA,
    "fedseq": fedseq,
    "fedbacys": FedBacys,
    "fedbacys-odd": FedBacys,
}


def parameters(module: nn.Module) -> Model:
    return {name: value.detach().clone() for name, value in module.named_parameters()}


def plus(model: Model, other: Model, factor: float = 1.0) -> Model:
    return {name: value + factor * other[name] for name, value in model.items()}


def vector(model: Model) -> Tensor:
    return torch.cat([value.reshape(-1) for value in model.values()])
