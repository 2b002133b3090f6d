"""Servers killed at any write or message, nodes that leave and return, under any policy and clock: whatever happens, no
honest node is refused, no answer is taken for another order's, and no battery is below zero."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.app import Message

from pipecycle.deploy import client_app

from ..local_grid import VirtualTime
from ..shared import read_trace

pytestmark = pytest.mark.flower
Federation = Callable[..., SimpleNamespace]
Ledgers = Callable[[Path], dict[int, dict[str, Any]]]
POLICIES = [
    "pipecycle",
    "pipecycle+",
    "fedavg",
    "flda",
    'flda {"phase": "global"}',
    "fedseq",
    "mifa",
    "fedbacys",
    "cycp",
    "fedasync",
    "fedbuff",
    "fedau",
    "fedvarp",
    "f3ast",
]
LIVES = 4


class Killed(BaseException):
    """Nothing catches it."""


def mortal(live: SimpleNamespace, last: int) -> None:
    """Dies at its `last` moment: after a line of the trace, a weight put away or a message sent, or before a save."""
    moments = [0]

    def counted(thing: Any, name: str, *, before: bool = False) -> None:
        real = getattr(thing, name)

        def moment(*args: Any, **options: Any) -> Any:
            if before:
                tick()
            found = real(*args, **options)
            if not before:
                tick()
            return found

        setattr(thing, name, moment)

    def tick() -> None:
        moments[0] += 1
        if moments[0] == last:
            raise Killed

    counted(live.driver.trace, "write")
    counted(live.driver.weights.store, "put")
    counted(live.grid, "push_messages")
    counted(live.driver.trace, "save", before=True)


def restless(live: SimpleNamespace, chance: random.Random, leave: float) -> None:
    """Nodes go and come; one of them always stays."""
    grid, online = live.grid, live.grid.get_node_ids

    def ids() -> list[int]:
        for client in range(live.run.clients):
            if client not in grid.ids and chance.random() < 0.25:
                grid.start(client)
            elif client in grid.ids and len(grid.ids) > 1 and chance.random() < leave:
                grid.stop(client)
        found: list[int] = online()
        return found

    grid.get_node_ids = ids


@pytest.mark.parametrize("clock", ["logical", "wall"])
@pytest.mark.parametrize("seed", range(9))
def test_whatever_happens(federation: Federation, ledgers: Ledgers, tmp_path: Path, seed: int, clock: str) -> None:
    chance = random.Random(f"{seed} {clock}")
    policy, _, chosen = POLICIES[seed % len(POLICIES)].partition(" ")
    options: dict[str, Any] = {
        "policy": policy, "policy_settings": chosen, "clock": clock, "clients": chance.choice([4, 5]), "slots": 60,
        "session": 4, "slack": 2, "harvest": chance.choice(["always", "bernoulli:0.5"]), "initial": 8.0,
        "capacity": chance.choice([12.0, 1e6]), "roll_call": 3000.0, "out": str(tmp_path / "run"),
    }  # fmt: skip
    asked: dict[tuple[Any, ...], set[Any]] = {}

    def note(client: int, message: Message, now: float) -> None:
        order = message.content["pipecycle"]
        if order["k"] >= 0:
            key = order["life"], order["client"], order["k"]
            asked.setdefault(key, set()).add((order["slot"], message.content["arrays"].object_id))

    leave = chance.choice([0.0, 0.03])
    life = 0
    while True:
        if life and not (tmp_path / "run/checkpoint/state.json").exists():  # dead before its first checkpoint
            shutil.rmtree(tmp_path / "run")
            asked.clear()
            life = 0
        app = client_app(timer=VirtualTime())
        live = federation(tmp_path, app=app, fault=note, run_it=False, resume=life > 0, **options)
        live.grid.latency = chance.choice([0.05, 2.5, 8.0]) if clock == "wall" else 0.05
        restless(live, chance, leave)
        mortal(live, chance.randrange(1, 200) if life < LIVES else 0)
        try:
            live.driver.run()
            break
        except Killed:
            live.driver.trace.close()
        life += 1
    events = read_trace(tmp_path / "run/trace.jsonl")
    assert events[-1]["event"] == "end"
    asked_last = {one["client"] for one in events if one["event"] == "late" and one["outcome"] == "roll-call"}
    refused = [one for one in events if one["event"] == "refused"]
    assert refused == [], str(refused)
    assert {key: orders for key, orders in asked.items() if len(orders) > 1} == {}
    assert min(int(levels.min()) for levels in live.driver.levels) >= 0
    for client, one in ledgers(tmp_path).items():
        assert 0 <= one["harvested"] - one["overflowed"] - one["training"] - one["uploads"] <= one["capacity"]
        if client in live.driver.fleet.reports:
            assert live.driver.fleet.reports[client].spent <= one["spent"]
        if client in asked_last:  # what the result counts is what its ledger says
            counted = live.driver.fleet.trained + live.driver.fleet.fees + live.driver.fleet.paid
            assert counted[client] == one["spent"]
