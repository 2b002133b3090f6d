"""Nodes lose power, fall asleep and come back; then the server dies and goes on.  `make flower-chaos`, minutes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")
pytest.importorskip("psutil")
pytestmark = [pytest.mark.flower, pytest.mark.chaos]

from pipecycle import Schedule  # noqa: E402
from pipecycle.commands.live_app import write_app  # noqa: E402
from pipecycle.deploy import RunSettings  # noqa: E402
from pipecycle.deploy.local.federation import LOOKS, Federation  # noqa: E402
from pipecycle.deploy.local.processes import family, kill_family  # noqa: E402
from pipecycle.deploy.local.progress import Progress, Tail  # noqa: E402
from pipecycle.runs.records import load  # noqa: E402
from pipecycle.world.energy import UNIT  # noqa: E402
from pipecycle.world.specs import parse_harvest  # noqa: E402

from .shared import PATIENCE  # noqa: E402

NODES, SESSION, KILLED = 5, 12, 2
SETTINGS = {
    "clients": NODES,
    "policy-settings": '{"groups": 2, "group_size": 2}',
    "clock": "wall",
    "slot-seconds": 1.0,
    "slots": 2000,  # more than it ever takes; the resumed run has as many as it needs
    "session": SESSION,
    "slack": 10,
    "deadline": 40.0,
    "margin": 5.0,
    "initial": 40.0,
    "lr": 0.2,
    "harvest": "bernoulli:0.5",
    "evaluate-every": 10,
    "pin-nodes": True,
}


class Scene:
    """A federation, its trace, and the patience to wait for something to happen in it."""

    def __init__(self, home: Path, federation: Federation) -> None:
        self.home, self.federation = home, federation
        self.tail = Tail(home / "run" / "trace.jsonl")

    def start(self, node: int) -> None:
        ledger = self.home / "nodes" / f"{node}.json"
        self.federation.start_node(node, {"partition-id": node, "ledger": str(ledger), "pace": 0.3})

    def wait(self, condition: Callable[[Progress], object], what: str) -> Progress:
        end = time.monotonic() + PATIENCE
        while not condition(progress := self.tail.read()):
            assert progress.ended is None, f"the run ended before {what}"
            assert time.monotonic() < end, f"{what} did not happen: {progress}"
            time.sleep(0.5)
        return progress

    def at_work(self, node: int) -> bool:
        """Whether it is in mid-training: the session is charged in its ledger, and not yet answered."""
        try:
            return bool(self.account(node)["open"])
        except FileNotFoundError:
            return False

    def trace(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.tail.path.read_text().splitlines()]

    def account(self, node: int) -> dict[str, Any]:
        account: dict[str, Any] = json.loads((self.home / "nodes" / f"{node}.json").read_text())
        return {**account, **account["runs"].get(account["run"], {})}


def test_killed_suspended_restarted_and_resumed(tmp_path: Path) -> None:
    settings: dict[str, Any] = {**SETTINGS, "out": str(tmp_path / "run")}
    write_app(tmp_path / "app", RunSettings())
    # They look for work once a second, as devices do.
    with Federation(tmp_path / "federation", tls=True, expected=LOOKS) as federation:
        scene = Scene(tmp_path, federation)
        for node in range(NODES):
            scene.start(node)
        federation.submit(tmp_path / "app", settings)
        scene.wait(lambda progress: progress.aggregations, "a first aggregation")

        # Two nodes lose power, in mid-training.
        killed: list[int] = []
        while len(killed) < KILLED:
            caught: list[int] = []

            def look(progress: Progress, caught: list[int] = caught) -> bool:
                members = [node for group in progress.groups for node in group if node not in killed]
                caught[:] = [node for node in members if scene.at_work(node)]
                return bool(caught)

            scene.wait(look, "training")
            node = caught[0]
            kill_family(federation.nodes[node].pid)
            federation.nodes[node].wait()
            killed.append(node)
        asleep = next(node for node in range(NODES) if node not in killed)
        sleepers = family(federation.nodes[asleep].pid)
        for one in sleepers:
            one.suspend()

        # One comes back; those who are left go on meanwhile.
        before = scene.tail.read().aggregations
        scene.start(killed[0])
        scene.wait(lambda progress: progress.aggregations > before, "an aggregation without the dead")
        for one in sleepers:
            if one.is_running():
                one.resume()
        before = scene.tail.read().aggregations
        scene.wait(lambda progress: progress.aggregations > before, "an aggregation with the sleeper awake")

        # The server dies with a group in flight.
        progress = scene.wait(lambda progress: progress.groups, "a group in flight")
        reached, served = progress.slot, progress.version
        assert federation.link is not None
        kill_family(federation.link.pid)
        federation.link.wait()
        until_then = scene.trace()
        assert progress.ended is None
        federation.start_link()
        took = max(event["took"] for event in until_then if event["event"] == "reply")  # on this machine, today
        settings |= {"slots": (reached or 0) + 10 + int(2 * took), "deadline": max(settings["deadline"], 2 * took)}
        federation.submit(tmp_path / "app", {**settings, "resume": True})
        end = time.monotonic() + PATIENCE
        while (progress := scene.tail.read()).ended is None:
            assert time.monotonic() < end, progress
            for node, process in list(
                federation.nodes.items()
            ):  # whoever has given up is started again, as services are
                if node != killed[1] and process.poll() is not None:
                    scene.start(node)
            time.sleep(0.5)
        verdict = ("", "")
        while not verdict[0].startswith("finished"):
            verdict = federation.verdict()
        assert verdict[0] == "finished:completed", verdict

    trace = scene.trace()
    resumed = next(event for event in trace if event["event"] == "resume")
    assert resumed["slot"] <= (reached or 0)
    assert progress.version > served
    assert any(event["event"] == "reply" and event["slot"] > resumed["slot"] for event in trace)
    lost = {event.get("client") for event in trace if event["event"] in ("lost", "away")}  # none: a roll call
    assert killed[1] in lost, trace
    back = [event for event in trace if event["event"] == "roll-call" and event["client"] == killed[0]]
    assert len(back) >= 2, "the restarted node was not heard of again"

    # Keys make ids last, over restarts of nodes and of the SuperLink: everybody was one node throughout.
    told = {(event["client"], event["node"]) for event in trace if event["event"] == "roll-call"}
    assert sorted(client for client, _ in told) == list(range(NODES))
    assert len({node for _, node in told}) == NODES
    # Whatever befell them, they were honest.
    assert not [event for event in [*trace, *until_then] if event["event"] == "refused"]

    evaluations = [event["accuracy"] for event in trace if event["event"] == "evaluation"]
    assert evaluations[-1] >= 40.0, evaluations
    assert evaluations[-1] > evaluations[0]

    # Every battery: what the weather gave, to the quantum, is what was spent and what is stored; no session was paid
    # twice, none that was reported was not paid.
    weather = parse_harvest("bernoulli:0.5").weather(NODES, 0).block(SETTINGS["slots"])
    forgotten = [event for event in until_then if event["slot"] > resumed["slot"]]  # after the last checkpoint
    launches = [event for event in [*trace, *forgotten] if event["event"] == "launch"]
    agreed = 0
    for node in range(NODES):
        account = scene.account(node)
        assert account["harvested"] == int(weather[: account["slot"] + 1, node].sum()) + 40 * UNIT
        assert account["overflowed"] == 0
        assert account["harvested"] >= account["training"] + account["uploads"]
        launched = sum(event["clients"].count(node) for event in launches)
        mine = [event for event in trace if event.get("client") == node]
        replies = len({event["session"] for event in mine if event["event"] == "reply"})
        reported, rest = divmod(account["uploads"], UNIT)
        assert rest == 0
        broken = account["broken"] + bool(account["open"])
        assert replies <= reported <= reported + broken <= launched
        stopped = sum("deadline" in event.get("why", "") for event in mine)
        paid = account["training"] - SESSION * UNIT * (reported + broken)
        assert 0 <= paid <= SESSION * UNIT * stopped
        at, harvested, overflowed, spent, _ = trace[-1]["ledgers"][str(node)]
        if at == account["slot"]:
            agreed += 1
            assert (harvested, overflowed, spent) == (account["harvested"], 0, account["training"] + account["uploads"])
    assert agreed >= NODES // 2
    assert all(scene.account(node)["broken"] or scene.account(node)["open"] for node in killed)

    (record,) = load([tmp_path / "run"])
    assert record is not None
    schedule = Schedule.load(tmp_path / "run" / "schedule.npz")
    assert schedule.slots == settings["slots"]
