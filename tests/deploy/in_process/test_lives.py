"""Servers that go on by the wall clock, where what happened after the last checkpoint cannot happen again."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.app import Message

from pipecycle.deploy import client_app
from pipecycle.deploy.node import trainer
from pipecycle.deploy.wire.protocol import Order
from pipecycle.world.energy import UNIT

from ..local_grid import VirtualTime
from ..shared import read_trace

pytestmark = pytest.mark.flower
Federation = Callable[..., SimpleNamespace]
Ledgers = Callable[[Path], dict[int, dict[str, Any]]]


class Killed(BaseException):
    """Nothing catches it."""


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often nodes train, by key, over all servers of a run."""
    found, train = Counter[str](), trainer.train

    def counted(message: Message, *rest: Any) -> Message:
        order = Order.of(message.content)
        assert order is not None
        found[order.key] += 1
        return train(message, *rest)

    monkeypatch.setattr(trainer, "train", counted)
    return found


def node() -> Any:
    return client_app(timer=VirtualTime())


WALL: dict[str, Any] = {"clock": "wall", "clients": 5, "session": 4, "evaluate_every": 30}


@pytest.mark.parametrize("policy", ["fedavg", "pipecycle", "flda", 'flda {"phase": "global"}'])
@pytest.mark.parametrize("seconds", [1.0, 60.0])
def test_by_the_wall_clock_numbers_used_after_the_last_checkpoint_may_be_used_again(
    federation: Federation, ledgers: Ledgers, tmp_path: Path, trained: Counter[str], policy: str, seconds: float
) -> None:
    """Killed right after sessions were sent out, again and again: nodes train and answer what nobody remembers, and
    what the next server asks for under the same number is no old order."""
    policy, _, chosen = policy.partition(" ")
    options = {**WALL, "policy": policy, "policy_settings": chosen, "slot_seconds": seconds, "slack": 2, "slots": 70,
               "initial": 400.0, "out": str(tmp_path / "run")}  # fmt: skip
    killed = list[int]()
    for life in range(4):
        live = federation(tmp_path, app=node(), run_it=False, resume=life > 0, **options)
        live.grid.latency = 0.4 * seconds
        if life < 3:
            look, slots = live.driver.roster.receive, [killed[-1] if killed else 20]

            def dying(*args: Any, driver: Any = live.driver, look: Any = look, slots: list[int] = slots) -> Any:
                new = [one for one in driver.fleet.training() if driver.fleet.sessions[one].slot == driver.fleet.slot]
                if driver.fleet.slot >= slots[0] and new:
                    killed.append(driver.fleet.slot)
                    raise Killed
                return look(*args)

            live.driver.roster.receive = dying
            with pytest.raises(Killed):
                live.driver.run()
        else:
            live.driver.run()
    events = read_trace(tmp_path / "run/trace.jsonl")
    assert [event["life"].partition("-")[0] for event in events if event["event"] == "resume"] == ["1", "2", "3"]
    assert [event for event in events if event["event"] in ("decline", "lost", "refused")] == []
    assert events[-1]["event"] == "end"
    assert any(event["event"] == "roll-call" and "after" in event for event in events)  # what was spent meanwhile
    assert set(trained.values()) == {1}
    lives = Counter(key.split("/")[1].partition("-")[0] for key in trained)
    assert lives["3"] > 0
    numbers = Counter(tuple(key.split("/")[2:]) for key in trained)
    assert max(numbers.values()) > 1  # some were indeed used again
    for client, one in ledgers(tmp_path).items():
        mine = sum(key.split("/")[2] == str(client) for key in trained)
        assert (one["training"], one["broken"]) == (mine * 4 * UNIT, 0)
    report = events[-1]["ledgers"]
    for client, one in ledgers(tmp_path).items():
        assert report[str(client)][3] <= one["training"] + one["uploads"]


@pytest.mark.parametrize(("policy", "latency"), [("fedavg", 2.5), ("fedavg", 8.0), ("pipecycle", 8.0)])
def test_by_the_wall_clock_a_session_under_way_is_taken_by_the_server_that_goes_on(
    federation: Federation, ledgers: Ledgers, tmp_path: Path, trained: Counter[str], policy: str, latency: float
) -> None:
    """The node has finished while nobody listened, and its totals are ahead of the answer that it gives again."""
    options = {**WALL, "policy": policy, "slot_seconds": 1.0, "slack": 10, "slots": 120, "initial": 30.0,
               "harvest": "bernoulli:0.7", "out": str(tmp_path / "run")}  # fmt: skip
    live = federation(tmp_path, app=node(), run_it=False, **options)
    live.grid.latency = latency
    driver = live.driver
    decide, fleet = driver.policy.decide, driver.fleet

    def dying(slot: int) -> None:
        decide(slot)
        saved = json.loads((tmp_path / "run/checkpoint/state.json").read_text())["slot"]
        if slot >= 50 and any(fleet.sessions[one].slot < saved for one in fleet.training().tolist()):
            raise Killed

    driver.policy.decide = dying
    with pytest.raises(Killed):
        driver.run()
    under_way = [one for one in fleet.training().tolist() if fleet.sessions[one].slot < fleet.slot]
    resumed = federation(tmp_path, app=node(), run_it=False, resume=True, **options)
    resumed.grid.latency = latency
    resumed.driver.run()
    assert not resumed.driver.refused
    events = read_trace(tmp_path / "run/trace.jsonl")
    ends = {event["session"]: event["event"] for event in events if event.get("session") in under_way}
    assert ends == dict.fromkeys(under_way, "reply")
    assert min(int(levels.min()) for levels in resumed.driver.levels) >= 0
    assert set(trained.values()) == {1}
    assert all(one["broken"] == 0 for one in ledgers(tmp_path).values())
