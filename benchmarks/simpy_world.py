"""The same world in simpy: a process per client, one for the server, and one per session or group.

A slot has phases: harvest at its start, the server's decisions a quarter of a slot later, training half-way.  As in
`naive_world`, only the number of aggregations and the units spent are returned.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Generator

import simpy

DECISIONS, TRAINING = 0.25, 0.5
"""When in a slot."""

Process = Generator[simpy.Event, None, None]


class Client:
    """A battery that may gain a unit at the start of every slot."""

    def __init__(self, env: simpy.Environment, rng: random.Random, delta: float, session: int, capacity: int) -> None:
        self.env, self.rng = env, rng
        self.delta, self.session, self.capacity = delta, session, capacity
        self.level = 0
        self.spent = 0

    def harvest(self) -> None:
        if self.level < self.capacity and self.rng.random() < self.delta:
            self.level += 1

    def spend(self) -> None:
        self.level -= 1
        self.spent += 1


class Member(Client):
    """A client of PipeCycle: charges by itself and trains when the server asks."""

    def __init__(self, env: simpy.Environment, rng: random.Random, delta: float, session: int, capacity: int) -> None:
        super().__init__(env, rng, delta, session, capacity)
        self.busy = False
        self.joined = -1
        env.process(self.charge())

    def charge(self) -> Process:
        while True:
            self.harvest()
            yield self.env.timeout(1)

    def train(self) -> Process:
        yield self.env.timeout(TRAINING - DECISIONS)
        self.spend()
        for _ in range(self.session - 1):
            yield self.env.timeout(1)
            self.spend()

    def send(self) -> None:
        self.spend()
        self.busy = False


class PipeCycleServer:
    """Forms groups, longest idle first, and relays the models of their hubs."""

    def __init__(
        self, env: simpy.Environment, rng: random.Random, clients: list[Member], groups: int, session: int
    ) -> None:
        self.env, self.rng, self.clients = env, rng, clients
        self.groups, self.session = groups, session
        self.size = max(1, 2 * len(clients) // (5 * groups))
        self.every = -(-session // groups)
        self.hubs: deque[Member] = deque()
        self.active = 0
        self.aggregations = 0
        env.process(self.serve())

    def serve(self) -> Process:
        formed = -self.every
        yield self.env.timeout(DECISIONS)
        while True:
            slot = int(self.env.now)
            if slot - formed >= self.every and self.active < self.groups:
                members = self.longest_idle()
                if members:
                    if self.hubs:
                        self.hubs.popleft().send()
                    for client in members:
                        client.busy = True
                        client.joined = slot
                    self.active += 1
                    self.env.process(self.group(members))
                    formed = slot
            if self.hubs and not self.active:
                self.hubs.popleft().send()
            yield self.env.timeout(1)

    def longest_idle(self) -> list[Member]:
        eligible = [client for client in self.clients if client.level > self.session and not client.busy]
        self.rng.shuffle(eligible)  # ties at random
        eligible.sort(key=lambda client: client.joined)
        return eligible[: self.size]

    def group(self, members: list[Member]) -> Process:
        yield self.env.all_of([self.env.process(client.train()) for client in members])
        hub = self.rng.choice(members)
        for client in members:
            if client is not hub:
                client.send()
        self.hubs.append(hub)
        self.active -= 1
        self.aggregations += 1


class GreedyClient(Client):
    """A client of FedAvg: trains and uploads as soon as the battery allows."""

    def live(self, server: FedAvgServer) -> Process:
        self.harvest()
        while True:
            while self.level < self.session:
                yield from self.next_slot()
            for _ in range(self.session):
                self.spend()
                yield from self.next_slot()
            while not self.level:
                yield from self.next_slot()
            self.spend()
            server.arrived += 1
            yield from self.next_slot()

    def next_slot(self) -> Process:
        yield self.env.timeout(1)
        self.harvest()


class FedAvgServer:
    """Averages the updates that have arrived, at the end of every epoch."""

    def __init__(self, env: simpy.Environment, epoch: int) -> None:
        self.env, self.epoch = env, epoch
        self.arrived = 0
        self.aggregations = 0
        env.process(self.serve())

    def serve(self) -> Process:
        yield self.env.timeout(self.epoch - 1 + TRAINING)
        while True:
            if self.arrived:
                self.aggregations += 1
                self.arrived = 0
            yield self.env.timeout(self.epoch)


def pipecycle(
    clients: int,
    slots: int,
    delta: float,
    *,
    groups: int = 2,
    session: int = 20,
    capacity: int = 1_000_000,
    seed: int = 0,
) -> tuple[int, int]:
    """Aggregations and units spent of PipeCycle by the paper's rule."""
    env, rng = simpy.Environment(), random.Random(seed)
    members = [Member(env, rng, delta, session, capacity) for _ in range(clients)]
    server = PipeCycleServer(env, rng, members, groups, session)
    env.run(until=slots)
    return server.aggregations, sum(client.spent for client in members)


def fedavg(
    clients: int,
    slots: int,
    delta: float,
    *,
    session: int = 20,
    capacity: int = 1_000_000,
    seed: int = 0,
) -> tuple[int, int]:
    """Aggregations and units spent of the greedy FedAvg."""
    env, rng = simpy.Environment(), random.Random(seed)
    server = FedAvgServer(env, max(30, -(-3 * session // 2)))
    everybody = [GreedyClient(env, rng, delta, session, capacity) for _ in range(clients)]
    for client in everybody:
        env.process(client.live(server))
    env.run(until=slots)
    return server.aggregations, sum(client.spent for client in everybody)
