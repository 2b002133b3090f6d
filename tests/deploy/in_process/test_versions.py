"""Nodes and servers of different versions: each says its protocol, and one sentence says which side to upgrade."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.app import Message

from pipecycle import __version__
from pipecycle.deploy.local.progress import Progress
from pipecycle.deploy.wire.protocol import HELLO, PROTOCOL, compare
from pipecycle.errors import InputError

pytestmark = pytest.mark.flower
Federation = Callable[..., SimpleNamespace]
ODD = 2
OURS = f"{__version__} (protocol {PROTOCOL})"


@pytest.mark.parametrize(
    ("said", "understood", "words"),
    [
        (HELLO, True, None),
        ({}, False, "the node's pipecycle is older than versions that say their protocol: upgrade the node"),
        ({"protocol": "1"}, False, "upgrade the node"),
        (
            {"protocol": PROTOCOL + 1, "version": "9.1"},
            False,
            f"the node has pipecycle 9.1 (protocol {PROTOCOL + 1}), the server {OURS}: upgrade the server",
        ),
        (
            {"protocol": PROTOCOL - 1, "version": "9.1"},
            False,
            f"the node has pipecycle 9.1 (protocol {PROTOCOL - 1}), the server {OURS}: upgrade the node",
        ),
        ({**HELLO, "version": "0.0.9"}, True, "upgrade the node"),
        ({**HELLO, "version": "0.10.1"}, True, "upgrade the server"),
        ({**HELLO, "version": b"\xff" * 10_000}, True, "upgrade the node"),
    ],
)
def test_which_side_to_upgrade(said: dict[str, Any], understood: bool, words: str | None) -> None:
    accepted, why = compare(said, "server", "node")
    assert accepted == understood
    assert len(why) < 160
    if words is None:
        assert why == ""
    else:
        assert why.endswith(words)


def said(**changes: Any) -> Callable[[int, Message, float], Any]:
    """The odd node's replies say something else; without changes, nothing."""

    def alter(reply: Message) -> Message:
        record = reply.content["pipecycle"]
        for name in HELLO:
            del record[name]
        record.update(changes)
        return reply

    return lambda client, message, now: alter if client == ODD else None


def shown(events: list[dict[str, Any]]) -> list[str]:
    progress = Progress()
    for event in events:
        progress.add(event)
    return progress.warnings


def test_a_node_that_says_no_protocol_is_refused_and_the_others_train(federation: Federation) -> None:
    live = federation(policy="fedavg", clients=3, slots=30, roll_call=5.0, fault=said())
    refused = [event for event in live.events if event["event"] == "refused"]
    assert {event["name"] for event in refused} == {"protocol"}
    assert all(event["why"].endswith("upgrade the node") for event in refused)
    assert set(live.schedule.sessions.client.tolist()) == {0, 1}
    assert shown(live.events) == [f"an unknown node: {refused[0]['why']}"]


def test_a_run_that_finds_only_old_nodes_says_so(federation: Federation) -> None:
    def fault(client: int, message: Message, now: float) -> Any:
        return said()(ODD, message, now)

    with pytest.raises(
        InputError, match=r"no node has replied within 5 s \(the last that was heard: .*upgrade the node"
    ):
        federation(policy="fedavg", clients=3, slots=30, roll_call=5.0, fault=fault)


def test_another_version_with_the_same_protocol_is_let_in_with_a_note(federation: Federation) -> None:
    live = federation(policy="fedavg", clients=3, slots=30, fault=said(**{**HELLO, "version": "0.0.9"}))
    assert live.driver.counts["refused"] == 0
    assert set(live.schedule.sessions.client.tolist()) == {0, 1, 2}
    why = f"the node has pipecycle 0.0.9 (protocol {PROTOCOL}), the server {OURS}: upgrade the node"
    assert shown(live.events) == [f"node {ODD}: {why}"]


@pytest.mark.parametrize("protocol", [None, PROTOCOL + 1])
def test_a_node_refuses_a_server_that_it_does_not_understand(
    federation: Federation, tmp_path: Path, protocol: int | None
) -> None:
    """Before it looks at anything else: its ledger is not even made."""

    def fault(client: int, message: Message, now: float) -> None:
        if client == ODD:
            record = message.content["pipecycle"]
            del record["protocol"], record["run"]  # the next protocol may have no such thing
            if protocol is not None:
                record["protocol"] = protocol

    live = federation(tmp_path, policy="fedavg", clients=3, slots=30, roll_call=5.0, fault=fault)
    lost = [event for event in live.events if event["event"] == "lost"]
    side = "server" if protocol is None else "node"
    assert lost
    assert all(f": upgrade the {side}" in event["why"] for event in lost)
    assert sorted(path.name for path in tmp_path.glob("*.json")) == ["ledger-0.json", "ledger-1.json"]


def test_a_reply_that_was_stored_before_an_upgrade_says_the_new_version(federation: Federation, tmp_path: Path) -> None:
    live = federation(tmp_path, policy="fedavg", clients=1, slots=30)
    orders = [message for _, message in live.grid.messages if message.content["pipecycle"]["k"] >= 0]
    stored = [path.read_bytes() for path in tmp_path.iterdir() if ".answer-" in path.name]
    assert stored
    assert not any(b"protocol" in data for data in stored)
    again = live.grid.app(orders[-1], live.grid.contexts[0]).content["pipecycle"]
    assert again["outcome"] == "trained"
    assert {name: again[name] for name in HELLO} == HELLO
