"""The planner that a good programmer writes first: one Python loop over the clients in every slot.

It follows the rules of `pipecycle` and `fedavg` (docs/schedulers), but records nothing: it returns only the number of
aggregations and the units spent.
"""

from __future__ import annotations

import random
from collections import deque


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
    rng = random.Random(seed)
    chance = rng.random
    size = max(1, 2 * clients // (5 * groups))
    every = -(-session // groups)
    level = [0] * clients
    busy = [False] * clients
    joined = [-1] * clients
    active: deque[tuple[int, list[int]]] = deque()  # last training slot, members
    hubs: deque[int] = deque()
    formed = -every
    aggregations = spent = 0

    for slot in range(slots):
        level = [units + 1 if units < capacity and chance() < delta else units for units in level]

        if slot - formed >= every and len(active) < groups:
            eligible = [client for client in range(clients) if level[client] > session and not busy[client]]
            if eligible:
                rng.shuffle(eligible)  # ties at random
                eligible.sort(key=joined.__getitem__)
                members = eligible[:size]
                if hubs:
                    hub = hubs.popleft()
                    level[hub] -= 1
                    busy[hub] = False
                    spent += 1
                for client in members:
                    busy[client] = True
                    joined[client] = slot
                active.append((slot + session - 1, members))
                formed = slot
        if hubs and not active:
            hub = hubs.popleft()
            level[hub] -= 1
            busy[hub] = False
            spent += 1

        for _, members in active:
            for client in members:
                level[client] -= 1
            spent += len(members)

        while active and active[0][0] == slot:
            _, members = active.popleft()
            hub = rng.choice(members)
            for client in members:
                if client != hub:
                    level[client] -= 1
                    busy[client] = False
                    spent += 1
            hubs.append(hub)
            aggregations += 1
    return aggregations, spent


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
    chance = random.Random(seed).random
    period = max(30, -(-3 * session // 2))
    level = [0] * clients
    left = [0] * clients  # training slots
    unsent = [False] * clients
    arrived = aggregations = spent = 0

    for slot in range(slots):
        level = [units + 1 if units < capacity and chance() < delta else units for units in level]

        for client in range(clients):
            if not left[client]:
                if unsent[client]:
                    if level[client]:
                        level[client] -= 1
                        spent += 1
                        arrived += 1
                        unsent[client] = False
                    continue
                if level[client] < session:
                    continue
                left[client] = session
            level[client] -= 1
            spent += 1
            left[client] -= 1
            unsent[client] = not left[client]

        if slot % period == period - 1 and arrived:
            aggregations += 1
            arrived = 0
    return aggregations, spent
