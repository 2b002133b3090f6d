"""Nodes that come and go just when a server dies or an answer waits: no honest one is refused for it, and no answer is
taken for another order's."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Message

from pipecycle.deploy import client_app
from pipecycle.deploy.node import trainer
from pipecycle.world.energy import UNIT

from ..local_grid import VirtualTime
from ..shared import read_trace

pytestmark = pytest.mark.flower
Federation = Callable[..., SimpleNamespace]
Ledgers = Callable[[Path], dict[int, dict[str, Any]]]
ALONE: dict[str, Any] = {"policy": "pipecycle", "policy_settings": '{"groups": 2, "group_size": 1}', "session": 6,
                         "slots": 60, "initial": 40.0}  # fmt: skip


class Killed(BaseException):
    """Nothing catches it."""


def new_sessions(driver: Any) -> list[int]:
    """Clients that were sent an order in this slot."""
    fleet = driver.fleet
    mine = [one for one in fleet.training().tolist() if fleet.sessions[one].slot == fleet.slot]
    found: list[int] = fleet.client_of(np.array(mine, np.int64)).tolist()
    return found


def until_killed(live: SimpleNamespace, now: Callable[[Any], bool]) -> None:
    """Run until it listens at a moment to be killed at."""
    driver, look = live.driver, live.driver.roster.receive

    def dying(*args: Any) -> Any:
        if now(driver):
            raise Killed
        return look(*args)

    driver.roster.receive = dying
    with pytest.raises(Killed):
        driver.run()


@pytest.mark.parametrize("at", range(20, 29, 2))
def test_a_key_names_one_order_whoever_is_there_when_the_run_goes_on(
    federation: Federation, tmp_path: Path, at: int
) -> None:
    """Client 0 is away when the server is killed, right after an order went out, and back when it goes on: the policy
    then decides differently, and the number of that order may come to stand for another."""
    asked: dict[str, set[Any]] = {}

    def note(client: int, message: Message, now: float) -> None:
        order = message.content["pipecycle"]
        if order["k"] >= 0:
            key = f"{order['life']}/{order['client']}/{order['k']}"
            asked.setdefault(key, set()).add((order["slot"], message.content["arrays"].object_id))

    options = {**ALONE, "clients": 5, "out": str(tmp_path / "run")}
    live = federation(tmp_path, fault=note, run_it=False, **options)

    def now(driver: Any) -> bool:
        if driver.fleet.slot == 5 and 0 in live.grid.ids:
            live.grid.stop(0)
        return driver.fleet.slot >= at and bool(new_sessions(driver))

    until_killed(live, now)
    again = federation(tmp_path, fault=note, resume=True, **options)
    assert not again.driver.refused
    assert {key: orders for key, orders in asked.items() if len(orders) > 1} == {}
    lives = [event["life"] for event in read_trace(tmp_path / "run/trace.jsonl") if event["event"] == "resume"]
    assert [life[:2] for life in lives] == ["1-"]


def test_who_comes_back_while_its_answer_is_held_is_not_refused_for_it(federation: Federation, tmp_path: Path) -> None:
    """By the logical clock an answer whose node had to wait for the energy to report waits for that slot; totals that
    the node tells meanwhile hold the session already."""
    live = federation(tmp_path, policy="mifa", clients=3, session=4, slots=160, harvest="bernoulli:0.15", run_it=False)
    driver, grid = live.driver, live.grid
    online, seen = grid.get_node_ids, dict[str, int]()

    def ids() -> list[int]:
        held = driver.clock.held()
        if held and "gone" not in seen:
            seen.update(gone=held[0]["client"], slot=driver.fleet.slot)
            grid.stop(held[0]["client"])
        elif "gone" in seen and "back" not in seen and driver.fleet.slot > seen["slot"]:
            seen["back"] = driver.fleet.slot
            grid.start(seen["gone"])
        found: list[int] = online()
        return found

    grid.get_node_ids = ids
    driver.run()
    mine = [event for event in live.events if event.get("client") == seen["gone"] and event["slot"] >= seen["slot"]]
    assert [one["event"] for one in mine[:3]] == ["away", "roll-call", "reply"]
    assert not driver.refused


@pytest.mark.parametrize("never", [False, True])
@pytest.mark.parametrize("kill", [12, 15, 18])
def test_what_a_forgotten_server_had_asked_for_is_in_the_books(
    federation: Federation, ledgers: Ledgers, tmp_path: Path, never: bool, kill: int
) -> None:
    """Client 1 is away (or was never there) at the checkpoint.  A second server finds it, asks it for a session at once
    and dies; a third hears totals that hold that session."""
    options = {**ALONE, "clients": 4, "out": str(tmp_path / "run"), "roll_call": 5.0}
    live = federation(tmp_path, run_it=False, **options)
    if never:
        live.grid.stop(1)

    def now(driver: Any) -> bool:
        if driver.fleet.slot == 5 and 1 in live.grid.ids:
            live.grid.stop(1)
        return driver.fleet.slot >= kill

    until_killed(live, now)
    second = federation(tmp_path, run_it=False, resume=True, **options)
    until_killed(second, lambda driver: driver.fleet.slot >= kill - 1 and 1 in new_sessions(driver))
    third = federation(tmp_path, resume=True, **options)
    assert not third.driver.refused
    mine = np.flatnonzero(third.schedule.sessions.client == 1)
    node = ledgers(tmp_path)[1]["spent"]
    assert node == third.driver.fleet.reports[1].spent
    assert node == third.schedule.sessions.spent[mine].sum() > 0


@pytest.mark.parametrize(
    ("seconds", "options"),
    [
        (25.0, {"session": 4, "slot_seconds": 0.1, "slots": 700}),
        (400.0, {"session": 5, "slot_seconds": 1.0, "deadline": 900.0, "slots": 900}),
        (700.0, {"session": 1, "slot_seconds": 10.0, "slack": 100, "slots": 150}),
    ],
)
def test_by_the_wall_clock_an_answer_within_its_deadline_is_taken(
    federation: Federation, monkeypatch: pytest.MonkeyPatch, seconds: float, options: dict[str, Any]
) -> None:
    """Also one that took more slots than a node on the logical clock would ever wait."""
    timer, train = VirtualTime(), trainer.train

    def slow(message: Message, *rest: Any) -> Message:
        timer.sleep(seconds)
        return train(message, *rest)

    monkeypatch.setattr(trainer, "train", slow)
    live = federation(app=client_app(timer=timer), run_it=False, policy="fedavg", clients=3, clock="wall",
                      initial=400.0, roll_call=3000.0, **options)  # fmt: skip
    live.grid.latency = seconds
    live.driver.run()
    assert live.driver.counts["reply"] >= 2
    assert not live.driver.refused
    assert live.driver.counts["lost"] == 0


def test_the_end_knows_of_answers_that_were_held(federation: Federation, ledgers: Ledgers, tmp_path: Path) -> None:
    held = 0
    for slots in range(58, 64):
        folder = tmp_path / str(slots)
        live = federation(folder, policy="mifa", clients=4, session=4, slots=slots, harvest="bernoulli:0.2",
                          out=str(folder / "run"))  # fmt: skip
        held += len(live.driver.clock.held())
        told = read_trace(folder / "run/trace.jsonl")[-1]["ledgers"]
        assert {client: one["spent"] for client, one in ledgers(folder).items()} == {
            int(client): report[3] for client, report in told.items()
        }
    assert held > 0


@pytest.mark.parametrize("clock", ["logical", "wall"])
@pytest.mark.parametrize("gone", [False, True])
def test_what_was_lost_in_the_end_is_asked_for(
    federation: Federation, ledgers: Ledgers, tmp_path: Path, clock: str, gone: bool
) -> None:
    """The last sessions are trained and paid, but their replies never come; nobody waits for a node that is gone."""
    options = {"policy": "pipecycle", "clients": 4, "session": 4, "slots": 40, "harvest": "bernoulli:0.4"}
    live = federation(tmp_path, run_it=False, clock=clock, initial=9.0, out=str(tmp_path / "run"), **options)

    def lose(client: int, message: Message, now: float) -> str | None:
        order = message.content["pipecycle"]
        return "late" if order["k"] >= 0 and order["slot"] >= 36 else None

    def dying() -> list[int]:
        for event in live.events if gone else []:
            if event["event"] == "late":
                live.grid.stop(event["client"])
        return online()

    live.grid.fault = lose
    online, live.grid.get_node_ids = live.grid.get_node_ids, dying
    live.driver.run()
    late = [event for event in read_trace(tmp_path / "run/trace.jsonl") if event["event"] == "late"]
    lost = {event["client"] for event in late if event["outcome"] == "lost"}
    assert lost
    asked = {event["client"] for event in late if event["outcome"] == "roll-call"}
    assert not asked & lost if gone else asked == set(range(4))
    spent = sum(ledger["spent"] for ledger in ledgers(tmp_path).values())
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert (result["final"]["energy"] == spent / UNIT) == (not gone)


def test_a_lost_ledger_is_noticed_when_the_run_goes_on(federation: Federation, tmp_path: Path) -> None:
    options = {**ALONE, "clients": 4, "slots": 90, "harvest": "bernoulli:0.9", "out": str(tmp_path / "run")}
    live = federation(tmp_path, run_it=False, **options)
    until_killed(live, lambda driver: driver.fleet.slot >= 40)
    for path in tmp_path.glob("ledger-*"):
        path.unlink()
    again = federation(tmp_path, resume=True, **options)
    assert not again.driver.refused
    assert min(int(levels.min()) for levels in again.driver.levels) >= 0
    assert again.driver.counts["reply"] > 5
    assert again.schedule.energy.spent[-1] >= 5 * 7 * UNIT
