"""The wall clock: every slot in order, late or not; the forecast put right; sessions that take longer than planned."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Message

from pipecycle.deploy.local.progress import Tail
from pipecycle.deploy.node.ledger import Account
from pipecycle.deploy.server.fleet import LiveFleet
from pipecycle.deploy.server.forecast import Forecast
from pipecycle.errors import InputError
from pipecycle.policies import REGISTRY
from pipecycle.schedule.schedule import Status
from pipecycle.world.energy import UNIT

from ..shared import read_trace

pytestmark = pytest.mark.flower
Federation = Callable[..., SimpleNamespace]
Ledgers = Callable[[Path], dict[int, dict[str, Any]]]


def test_a_late_server_catches_up_and_skips_nothing(federation: Federation) -> None:
    live = federation(policy="mifa", clock="wall", slot_seconds=2.0, slots=90, run_it=False)
    stepped: list[tuple[int, float]] = []
    decide, timer = live.driver.policy.decide, live.grid.timer

    def slow(slot: int) -> None:
        stepped.append((slot, timer.monotonic()))
        if slot == 32:
            timer.sleep(31.0)
        decide(slot)

    live.driver.policy.decide = slow
    schedule = live.driver.run()
    assert [slot for slot, _ in stepped] == list(range(90))
    began = stepped[0][1]
    assert stepped[33][1] - began >= 32 * 2 + 31
    assert stepped[46][1] - stepped[33][1] < 1.0
    assert stepped[60][1] - began == pytest.approx(60 * 2, abs=0.5)
    assert schedule.publications.slot.tolist() == [29, 59, 89]  # no epoch was missed


@pytest.mark.parametrize("policy", sorted(REGISTRY.keys() - {"isolated"}))
def test_answers_that_take_their_time(federation: Federation, policy: str) -> None:
    """Ten seconds a message where a session is meant to take four: with slack enough every policy goes on."""
    live = federation(policy=policy, clock="wall", slot_seconds=1.0, session=4, slack=10, clients=5, slots=130,
                      run_it=False)  # fmt: skip
    live.grid.latency = 10.0
    schedule = live.driver.run()
    took = (schedule.sessions.end - schedule.sessions.start)[schedule.sessions.end >= 0]
    assert took.min() >= 9
    counts = schedule.status_counts()
    assert counts["lost"] == 0
    assert counts["used"] >= 6
    assert schedule.ancestry.events >= 2
    assert counts["unused"] + counts["in_flight"] <= 2 * 5  # since the last server step


@pytest.mark.parametrize("policy", sorted(REGISTRY.keys() - {"isolated"}))
def test_slack_too_small_delays_but_never_breaks(federation: Federation, policy: str) -> None:
    live = federation(policy=policy, clock="wall", slot_seconds=1.0, session=4, clients=5, slots=130, run_it=False)
    live.grid.latency = 10.0
    schedule = live.driver.run()
    assert schedule.status_counts()["lost"] == 0
    assert schedule.ancestry.events >= 2
    assert any(event["event"] == "warning" and "slack" in event["why"] for event in live.events)


def test_a_forecast_that_is_too_low_starves_nobody(federation: Federation) -> None:
    nodes = [{"partition-id": client, "harvest": "always"} for client in range(3)]
    live = federation(nodes=nodes, clients=3, policy="fedavg", harvest="bernoulli:0.0", initial=5.0, slots=120)
    starts = live.schedule.sessions.start[live.schedule.sessions.client == 0]
    assert len(starts) >= 4
    assert np.diff(starts).max() <= 5 * 5 + 5 + 2


def test_groups_overlap(federation: Federation) -> None:
    live = federation(policy="pipecycle", clock="wall", slot_seconds=1.0, session=10, slack=0, clients=8, slots=120,
                      run_it=False)  # fmt: skip
    live.grid.latency = 9.5
    schedule = live.driver.run()
    concurrency = schedule.concurrency()
    assert concurrency is not None
    assert concurrency.max() == 2


def test_a_wall_clock_run_goes_on_after_a_kill(federation: Federation, tmp_path: Path) -> None:
    class Stop(BaseException):
        pass

    asked: dict[str, list[Any]] = {}

    def watch(client: int, message: Message, now: float) -> str | None:
        order = message.content["pipecycle"]
        if order["k"] >= 0:
            key = f"{order['life']}/{order['client']}/{order['k']}"
            asked.setdefault(key, []).append((order["slot"], message.content["arrays"].object_id))
        if order["slot"] > 50 and not stopped:
            stopped.append(1)
            raise Stop
        return None

    stopped: list[int] = []
    settings: dict[str, Any] = {"policy": "pipecycle", "clock": "wall", "slot_seconds": 1.0, "session": 4,
                                "clients": 5, "slots": 120, "out": str(tmp_path / "run")}  # fmt: skip
    with pytest.raises(Stop):
        federation(tmp_path, fault=watch, **settings)
    first = len(read_trace(tmp_path / "run/trace.jsonl"))
    live = federation(tmp_path, fault=watch, resume=True, **settings)
    events = read_trace(tmp_path / "run/trace.jsonl")
    assert events[-1]["event"] == "end"
    assert len(events) > first
    assert [one["slot"] for one in events] == sorted(one["slot"] for one in events)
    assert live.schedule.slots == 120
    assert live.schedule.status_counts()["used"] > 20
    # A key never stands for two different orders, whatever the server before has asked for.
    assert all(len(set(orders)) == 1 for orders in asked.values())
    assert Status.LOST not in live.schedule.sessions.status[-5:]


def test_full_batteries_are_forecast_as_nodes_count_them() -> None:
    """A node pays its upload as its answer leaves, and has room for the next harvest; the policy pays later."""
    account = Account(0, 6 * UNIT, harvested=6 * UNIT)
    fleet = LiveFleet(1, Forecast("always", 1, 0), session=2, capacity=6.0)
    fleet.reachable[:] = True
    fleet.correct(0, account.report())
    for slot in range(8):
        fleet.begin(slot)
        account.gain(UNIT)
        account.page.slot = slot
        if slot == 2:
            fleet.start(np.array([0]), 0)
        if slot in (2, 3):
            account.pay(training=UNIT)
        fleet.train()
        if slot == 3:
            account.pay(upload=UNIT)
            fleet.end(0, Status.UNUSED, account.report(), samples=15, fee=UNIT)
        assert fleet.true_level().tolist() == [account.level], slot
        assert fleet.overflow.tolist() == [account.overflowed], slot
    fleet.send(np.array([0]), "server")
    assert fleet.true_level().tolist() == [account.level]
    assert fleet.ledger.stored == account.level
    # A late report and what was expected since: no more than the battery holds.
    fleet.correct(0, attrs.evolve(account.report(), at=3))
    assert fleet.true_level().tolist() == [6 * UNIT]


def test_measured_batteries_on_the_logical_clock_are_refused(federation: Federation, tmp_path: Path) -> None:
    """Slots would race by, and nothing would be trained; the run says so."""
    (tmp_path / "gauge").write_text("90")
    nodes = [{"partition-id": client, "battery": f"gauge:{tmp_path / 'gauge'}"} for client in range(2)]
    with pytest.raises(InputError, match=r"no node has replied within 20 s .*needs a run with clock = wall"):
        federation(policy="pipecycle", clients=2, slots=200, nodes=nodes, roll_call=20.0)
    assert federation(policy="pipecycle", clients=2, slots=20, nodes=nodes, clock="wall").driver.counts["reply"] > 0


def test_the_closing_batteries_are_what_nodes_say(federation: Federation, ledgers: Ledgers, tmp_path: Path) -> None:
    """Gauges fall after the last session.  A node that is gone has said what it said, in its slot."""
    nodes = [
        {"partition-id": client, "battery": f"gauge:{tmp_path / f'gauge-{client}'}",
         "ledger": str(tmp_path / f"ledger-{client}.json")}
        for client in range(3)
    ]  # fmt: skip
    for client in range(3):
        (tmp_path / f"gauge-{client}").write_text("90")
    live = federation(tmp_path, policy="fedavg", clients=3, nodes=nodes, clock="wall", slots=40, run_it=False,
                      out=str(tmp_path / "run"))  # fmt: skip
    decide = live.driver.policy.decide

    def fall(slot: int) -> None:
        if slot < 25:
            decide(slot)
        elif slot == 39:
            live.grid.stop(2)
            for client in range(3):
                (tmp_path / f"gauge-{client}").write_text(f"{20 + client}.5")

    live.driver.policy.decide = fall
    live.driver.run()
    devices = Tail(tmp_path / "run/trace.jsonl").read().devices
    assert [(devices[client].battery, devices[client].at) for client in range(2)] == [(20.5, 39), (21.5, 39)]
    assert devices[2].battery == 89  # 90 by the gauge, and then the upload
    assert devices[2].at < 25
    assert live.driver.fleet.true_level()[:2].tolist() == [20.5 * UNIT, 21.5 * UNIT]
    energy = json.loads((tmp_path / "run/result.json").read_text())["final"]["energy"]
    assert energy == sum(book["spent"] for book in ledgers(tmp_path).values()) / UNIT > 0
