"""The rules of FedAsync, FedBuff, FedAU, FedVARP and F3AST for the naive trainer: one model, one client at a time."""

from __future__ import annotations

import math
from typing import Any

from pipecycle.schedule.schedule import Sent

from .naive import Client, Model, Rule, plus


class Asynchronous(Rule):
    """Arrivals first, in the order in which their sessions began; then new sessions, from what the server has then."""

    def setup(self) -> None:
        self.steps = 0
        self.seen: dict[int, int] = {}
        self.prepare()

    def prepare(self) -> None: ...

    def decide(self, slot: int) -> None:
        arrived = sorted(self.run.sending(slot, Sent.TO_SERVER), key=lambda client: client.session)
        if arrived:
            self.receive(slot, arrived)
        for session, client in self.run.starting(slot):
            self.seen[client.number] = self.steps
            self.run.start(session, client, slot, self.run.x)

    def receive(self, slot: int, arrived: list[Client]) -> None: ...

    def scale(self, seen: int) -> float:
        self.run.seen["stale"] += self.steps > seen
        return 1 / math.sqrt(1 + self.steps - seen)


class FedAsync(Asynchronous):
    def receive(self, slot: int, arrived: list[Client]) -> None:
        model = self.run.x
        self.run.seen["several in a slot"] += len(arrived) > 1
        for client in arrived:
            part = self.settings["mixing"] * self.scale(self.seen[client.number])
            model = {name: (1 - part) * value + part * client.own[name] for name, value in model.items()}
            self.steps += 1
        self.run.publish(slot, model)


class FedBuff(Asynchronous):
    def prepare(self) -> None:
        self.size = self.settings["buffer"] or max(1, self.N // 10)
        self.buffer: list[tuple[int, int, Model]] = []  # samples, steps seen, update

    def receive(self, slot: int, arrived: list[Client]) -> None:
        for client in arrived:
            samples = self.run.orders.samples[client.number]
            self.buffer.append((samples, self.seen[client.number], client.delta))
            if len(self.buffer) == self.size:
                total, model = sum(samples for samples, _, _ in self.buffer), self.run.x
                for samples, seen, update in self.buffer:
                    model = plus(model, update, samples / total * self.scale(seen))
                self.run.publish(slot, model)
                self.steps += 1
                self.buffer = []


class Rounds(Rule):
    """All start together and report together; the server steps at the end of the epoch."""

    def decide(self, slot: int) -> None:
        for session, client in self.run.starting(slot):
            assert slot % self.S == self.S - self.B - 1
            self.run.start(session, client, slot, self.run.x)
        self.received = self.run.sending(slot, Sent.TO_SERVER)
        for client in self.received:
            assert slot % self.S == self.S - 1
            self.run.seen["late report"] += slot - client.since > self.B

    def complete(self, slot: int, finished: list[Client]) -> None:
        if slot % self.S == self.S - 1:
            self.run.seen["empty round"] += not self.received
            self.aggregate(slot)

    def aggregate(self, slot: int) -> None: ...


class FedAU(Rounds):
    def setup(self) -> None:
        self.absent = [0] * self.N
        self.intervals: list[list[int]] = [[] for _ in range(self.N)]

    def aggregate(self, slot: int) -> None:
        model, here = self.run.x, {client.number for client in self.received}
        for client in self.received:
            known = self.intervals[client.number]
            model = plus(model, client.delta, (sum(known) / len(known) if known else 1.0) / self.N)
        for number in range(self.N):
            self.absent[number] += 1
            cut = self.absent[number] == self.settings["cutoff"]
            if number in here or cut:
                self.run.seen["cut off"] += cut and number not in here
                self.intervals[number].append(self.absent[number])
                self.absent[number] = 0
        if here:
            self.run.publish(slot, model)


class FedVARP(Rounds):
    def setup(self) -> None:
        self.memory: dict[int, Model] = {}

    def rate(self, slot: int) -> float:
        training = self.run.problem.training
        return float(training.sgd.lr * training.lr_decay ** (slot / 1000))

    def aggregate(self, slot: int) -> None:
        """Memories are kept over the rate they were made with, and used at that of this epoch's sessions."""
        if not self.received:
            return
        model, now, beta = self.run.x, self.rate(slot - self.B), self.settings["beta"]
        new = {}
        for client in self.received:
            new[client.number] = {name: part / self.rate(client.since) for name, part in client.delta.items()}
            model = plus(model, new[client.number], now / len(self.received))
            if client.number in self.memory:
                model = plus(model, self.memory[client.number], -beta * now / len(self.received))
        for update in self.memory.values():
            model = plus(model, update, beta * now / self.N)
        self.run.seen["absent remembered"] += bool(self.memory.keys() - new.keys())
        self.memory |= new
        self.run.publish(slot, model)


class F3AST(Rounds):
    def setup(self) -> None:
        samples = self.run.orders.samples
        self.p = [mine / sum(samples) for mine in samples]
        most = self.settings["picked"] or max(1, 2 * self.N // 5)
        self.r = [min(1.0, most * share) for share in self.p]

    def aggregate(self, slot: int) -> None:
        model, here = self.run.x, {client.number for client in self.received}
        self.r = [(1 - self.settings["beta"]) * rate for rate in self.r]
        for number in here:
            self.r[number] += self.settings["beta"]
        for client in self.received:
            model = plus(model, client.delta, self.p[client.number] / self.r[client.number])
        if here:
            self.run.publish(slot, model)


RIVALS: dict[str, Any] = {
    "fedasync": FedAsync,
    "fedbuff": FedBuff,
    "fedau": FedAU,
    "fedvarp": FedVARP,
    "f3ast": F3AST,
}
