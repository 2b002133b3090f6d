"""Clients that are held to the node that they were first heard from, where keys make nodes' ids last."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.app import Message, MetricRecord

from pipecycle.errors import InputError

from ..shared import read_trace, stop_after

pytestmark = pytest.mark.flower
Federation = Callable[..., SimpleNamespace]
SETTINGS: dict[str, Any] = {"policy": "fedavg", "clients": 5, "slots": 120, "initial": 20.0}


class Killed(BaseException):
    """Nothing catches it."""


def trained(live: SimpleNamespace, client: int, since: int = 0) -> set[int]:
    """The nodes that were sent the client's sessions."""
    orders = [(node, message.content["pipecycle"]) for node, message in live.grid.messages]
    mine = [(node, one) for node, one in orders if node >= 0 and one["client"] == client and one["k"] >= 0]
    return {node for node, one in mine if one["slot"] >= since}


def claims(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for event in events if event["event"] == "refused"]


def robbed(federation: Federation, *, pinned: bool) -> SimpleNamespace:
    """Client 1 goes away, node 4 comes back under its number, and later the true one is there again."""
    live = federation(run_it=False, pin_nodes=pinned, **SETTINGS)
    grid, done = live.grid, []
    grid.registered = True

    def fault(client: int, message: Message, now: float) -> str | None:
        slot = message.content["pipecycle"]["slot"]
        if slot > 20 and not done:
            done.append(slot)
            grid.stop(1)
            grid.stop(4)
            return "refuse" if client in (1, 4) else None
        if slot > 25 and 4 not in grid.ids:
            grid.nodes[4] = {"partition-id": 1}
            grid.start(4)
        if slot > 60 and 1 not in grid.ids:
            grid.start(1)
        return None

    grid.fault = fault
    live.driver.run()
    assert done
    assert 1 in grid.ids
    return live


def test_another_node_cannot_take_a_number_over(federation: Federation) -> None:
    live = robbed(federation, pinned=True)
    assert {event["name"] for event in claims(live.events)} == {"client"}
    assert {event["node"] for event in claims(live.events)} == {"1004"}
    assert trained(live, 1) == {1}
    assert trained(live, 1, since=65) == {1}
    assert trained(live, 4, since=30) == set()
    # Without it, which is all that can be had where ids change at every start, the first to come is believed.
    assert 4 in trained(robbed(federation, pinned=False), 1, since=30)


def test_a_node_is_one_client_only(federation: Federation) -> None:
    """It may not move on to a number that nobody has claimed yet."""
    nodes = [{"partition-id": client} for client in range(4)]
    live = federation(run_it=False, pin_nodes=True, nodes=nodes, roll_call=1.0, **SETTINGS)
    grid, done = live.grid, []
    grid.registered = True

    def fault(client: int, message: Message, now: float) -> str | None:
        if message.content["pipecycle"]["slot"] > 20 and not done:
            done.append(1)
            grid.stop(2)
            return "refuse" if client == 2 else None
        if done and message.content["pipecycle"]["slot"] > 25 and 2 not in grid.ids:
            grid.nodes[2] = {"partition-id": 4}
            grid.start(2)
        return None

    grid.fault = fault
    live.driver.run()
    assert claims(live.events)
    assert {event["name"] for event in claims(live.events)} == {"client"}
    assert trained(live, 4) == set()


def test_a_node_that_comes_back_is_itself(federation: Federation, tmp_path: Path) -> None:
    live = federation(tmp_path, run_it=False, pin_nodes=True, **SETTINGS)
    grid, done = live.grid, []
    grid.registered = True

    def fault(client: int, message: Message, now: float) -> str | None:
        if message.content["pipecycle"]["slot"] > 20 and not done:
            done.append(1)
            grid.stop(2)
            return "refuse" if client == 2 else None
        if done and message.content["pipecycle"]["slot"] > 25 and 2 not in grid.ids:
            grid.start(2)
        return None

    grid.fault = fault
    live.driver.run()
    assert done
    assert not claims(live.events)
    assert trained(live, 2, since=60) == {2}
    pins = [event for event in live.events if event["event"] == "pin"]
    told = [pair for event in pins for pair in zip(event["clients"], event["nodes"], strict=True)]
    assert told == [(client, str(1000 + client)) for client in range(5)]


def test_a_refused_roll_call_holds_no_number(federation: Federation) -> None:
    """Where ids do not last, somebody who claims an absent client's number with a report that cannot be true keeps
    nobody out."""
    live = federation(run_it=False, **SETTINGS)
    grid, done = live.grid, []

    def lie(reply: Message) -> Message:
        old = reply.content["energy"]
        more = {"spent": old["spent"] + 2**40, "harvested": old["harvested"] + 2**40}
        reply.content["energy"] = MetricRecord({**old, **more})
        return reply

    def fault(client: int, message: Message, now: float) -> Any:
        slot = message.content["pipecycle"]["slot"]
        if slot > 20 and not done:
            done.append(slot)
            grid.stop(1)
            grid.stop(4)
            grid.nodes[4] = {"partition-id": 1}
            grid.start(4)
            return "refuse" if client in (1, 4) else None
        if slot > 60 and 1 not in grid.ids:
            grid.start(1)
        return lie if client == 4 and done else None

    grid.fault = fault
    live.driver.run()
    assert "spent" in {event["name"] for event in claims(live.events)}
    assert trained(live, 1, since=100) == {1}


@pytest.mark.parametrize("link", ["the same", "another"])
def test_after_a_restart(federation: Federation, tmp_path: Path, link: str) -> None:
    """Pins last as long as the SuperLink that gave nodes their ids; another one is known by all of them being new."""
    settings = {**SETTINGS, "pin_nodes": True, "out": str(tmp_path / "run"), "roll_call": 5.0}
    live = federation(tmp_path, run_it=False, **settings)
    stop_after(live.driver, 50, Killed)
    with pytest.raises(Killed):
        live.driver.run()
    again = federation(tmp_path, run_it=False, resume=True, **settings)
    grid = again.grid
    grid.registered = link == "the same"
    for client in range(5):
        grid.stop(client)
    grid.nodes[4] = {**grid.nodes[1]}
    for client in (0, 2, 3, 4):
        grid.start(client)
    again.driver.run()
    events = read_trace(tmp_path / "run/trace.jsonl")
    names = {event["name"] for event in claims(events)}
    if link == "the same":
        assert names == {"client"}
        assert trained(again, 1) == set()
    else:
        assert names == set()
        assert trained(again, 1) == {4}
        (anew,) = [event for event in events if event.get("anew")]
        assert set(anew["clients"]) <= {0, 1, 2, 3}
    assert trained(again, 0) == {0}


def test_a_trace_in_which_pins_came_back_is_refused(federation: Federation, tmp_path: Path) -> None:
    """Version 0.1 could lift pins and restore them; what it then forgot of a client cannot be replayed."""
    settings = {**SETTINGS, "pin_nodes": True, "out": str(tmp_path / "run")}
    live = federation(tmp_path, run_it=False, **settings)
    stop_after(live.driver, 20, Killed)
    live.driver._write_pins = lambda slot: live.driver.trace.write("pin", slot, clients=[], nodes=[], back=True)
    with pytest.raises(Killed):
        live.driver.run()
    with pytest.raises(InputError, match="pins came back in that run"):
        federation(tmp_path, resume=True, **settings)
