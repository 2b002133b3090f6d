"""Every policy among nodes that fail in every way: no stall, no negative battery, no energy from nowhere."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from pipecycle import Bernoulli
from pipecycle.deploy.apps import client_app
from pipecycle.policies import REGISTRY
from pipecycle.schedule.schedule import Status
from pipecycle.world.energy import UNIT

from ..local_grid import VirtualTime
from ..shared import audit

pytestmark = pytest.mark.flower
Federation = Callable[..., SimpleNamespace]
Ledgers = Callable[[Path], dict[int, dict[str, Any]]]
CLIENTS, SLOTS, SESSION = 8, 180, 4
FAULTS = ("lose", "late", "crash", "raise", "refuse", "slow")
WHY = {"lose": "(code 5)", "late": "(code 3)", "crash": "(code 8)", "raise": "(code 2)", "refuse": "was refused"}
CAPACITY, POOR = 30.0, 6
"""The node in the shade, which gains less than the server expects, and declines."""
RARE = {"fedbacys-odd": {"decline"}, "pipecycle+": {"decline"}}
"""One asks for few sessions, the other for those of the fullest batteries."""
ALL = {"fedasync": '{"concurrency": 8}', "fedbuff": '{"concurrency": 8}', "f3ast": '{"picked": 8}'}
"""Who asks few clients at a time is to ask all, or there are too few messages for every fault."""
BUSY = {"fedavg", "fedasync", "fedbuff"}
"""Whose clients train all the time: two thirds of the slots hold messages enough."""
DECISIVE = ("reply", "decline", "lost", "refused")


class Spy:
    """Counts what nodes really did: every session that was trained, and every upload; audits their ledgers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.trained: Counter[int] = Counter()
        self.uploads: Counter[int] = Counter()
        self.inner = client_app(timer=VirtualTime())
        self.app = ClientApp()
        self.app.train()(self.handle)

    def handle(self, message: Message, context: Context) -> Message:
        reply = self.inner(message, context)
        client = reply.content["energy"]["client"]
        self.trained[client] += reply.content["energy"]["steps"] * UNIT
        if reply.content["pipecycle"]["outcome"] == "trained":
            self.uploads[client] += message.content["pipecycle"]["fee"]
        audit_ledger(json.loads((self.folder / f"ledger-{client}.json").read_text()))
        return reply


def audit_ledger(one: dict[str, Any]) -> None:
    level = one["harvested"] - one["overflowed"] - one["training"] - one["uploads"]
    assert 0 <= level <= one["capacity"]


def weather(client: int, slot: int) -> int:
    rows = Bernoulli(0.05 if client == POOR else 0.6).weather(CLIENTS, 0).block(slot + 1)
    return int(rows[:, client].sum())


@pytest.mark.parametrize("clock", ["logical", "wall"])
@pytest.mark.parametrize("policy", sorted(REGISTRY.keys() - {"isolated"}))
def test_nothing_stalls_and_energy_is_conserved(
    federation: Federation, ledgers: Ledgers, tmp_path: Path, policy: str, clock: str
) -> None:
    spy, seen, slots = Spy(tmp_path), Counter[str](), SLOTS * 2 // 3 if policy in BUSY else SLOTS
    nodes = [{"partition-id": one, "ledger": str(tmp_path / f"ledger-{one}.json")} for one in range(CLIENTS)]
    nodes[POOR]["harvest"] = "bernoulli:0.05"
    live = federation(run_it=False, app=spy.app, policy=policy, policy_settings=ALL.get(policy, "{}"), clock=clock,
                      clients=CLIENTS, slots=slots, nodes=nodes, session=SESSION,
                      harvest="bernoulli:0.6", initial=3.0, capacity=CAPACITY, slack=2,
                      slot_seconds=5.0, deadline=65.0, margin=5.0)  # fmt: skip
    grid = live.grid

    def fault(client: int, message: Message, now: float) -> str | None:
        order = message.content["pipecycle"]
        if client == 7 and order["slot"] > 40 and 7 in grid.ids and "stopped" not in seen:
            seen["stopped"] += 1
            grid.stop(7)
            return "refuse"
        if order["slot"] > 80 and 7 not in grid.ids:
            seen["back"] += 1
            grid.start(7)
        if order["k"] < 0:
            return None
        seen["messages"] += 1
        turn, rest = divmod(seen["messages"], 3)
        what = FAULTS[turn % len(FAULTS)] if rest == 0 else None
        seen[str(what)] += 1
        befell[order["client"], order["k"]] = what
        return what

    befell: dict[tuple[int, int], str | None] = {}
    grid.fault = fault
    audit(live.driver)
    schedule = live.driver.run()

    assert {*FAULTS, "stopped", "back"} <= set(seen)
    _every_fault_was_told(live, befell)
    assert schedule.slots == slots
    assert live.events[-1]["event"] == "end"
    assert schedule.ancestry.events > 0
    assert min(level.min() for level in live.driver.levels) >= 0
    assert max(level.max() for level in live.driver.levels) <= CAPACITY * UNIT
    _every_session_ends_in_time(live)
    _one_message_at_a_time(live)

    for client, one in ledgers(tmp_path).items():
        audit_ledger(one)
        assert one["open"] == ""
        assert one["broken"] == 0
        assert one["harvested"] == 3 * UNIT + weather(client, one["slot"])
        assert (one["training"], one["uploads"]) == (spy.trained[client], spy.uploads[client])
    assert live.schedule is None
    statuses = Counter(schedule.sessions.status.tolist())
    for status, kinds in ((Status.LOST, ("lost", "refused")), (Status.DECLINED, ("decline",))):
        assert statuses[status] == sum(one["event"] in kinds and "session" in one for one in live.events)
    energy = schedule.energy
    assert energy.level.tolist() == live.driver.levels[-1].tolist()
    assert energy.harvested[-1] == energy.spent[-1] + energy.level.sum() + energy.overflowed[-1]
    assert schedule.sessions.spent.sum() == energy.spent[-1]


def _every_fault_was_told(live: SimpleNamespace, befell: dict[tuple[int, int], str | None]) -> None:
    """Whatever befell a message is what the trace says of its session, each fault at least once; honest nodes are
    never refused, and who was away comes back."""
    sessions, found = live.driver.fleet.sessions, Counter[str]()
    for one in live.events:
        if one["event"] not in DECISIVE or "session" not in one:
            continue
        what = befell.get((one["client"], sessions[one["session"]].number))
        if what in WHY:
            assert one["event"] == "lost"
            assert WHY[what] in one["why"]
            found[what] += 1
        elif what == "slow":
            assert one["event"] in ("reply", "decline")  # either takes its time
            assert one.get("took", 56.0) >= 56.0
            found[what] += 1
        elif one["event"] == "decline":
            assert "battery" in one["why"]
            found["decline"] += 1
    assert {*WHY, "slow", "decline"} - RARE.get(live.run.policy, set()) <= set(found), found
    assert not live.driver.refused
    away = [one["slot"] for one in live.events if one["event"] in ("away", "lost") and one["client"] == 7]
    back = [one["slot"] for one in live.events if one["event"] == "roll-call" and one["client"] == 7]
    assert min(away) < max(back)
    assert any(one["event"] == "reply" and one["client"] == 7 and one["slot"] > 80 for one in live.events)


def _every_session_ends_in_time(live: SimpleNamespace) -> None:
    """No outcome later than the message's time to live, a look and (logical) the slots that it was not yet due."""
    began = {session: one["time"] for one in live.events if one["event"] == "launch" for session in one["sessions"]}
    if live.run.clock == "wall":
        for one in live.events:
            if one["event"] in DECISIVE and "session" in one:
                assert one["time"] - began[one["session"]] <= 70 + 5 + 5 + 1
    ended = [one["session"] for one in live.events if one["event"] in DECISIVE and "session" in one]
    assert len(ended) == len(set(ended))
    open_ones = set(began) - set(ended)
    for session in open_ones:
        assert live.driver.fleet.sessions[session].slot > live.run.slots - 1 - 60


def _one_message_at_a_time(live: SimpleNamespace) -> None:
    flying: dict[int, int] = {}
    for one in live.events:
        if one["event"] == "launch":
            for client, session in zip(one["clients"], one["sessions"], strict=True):
                assert client not in flying
                flying[client] = session
        elif one["event"] in DECISIVE and "session" in one:
            assert flying.pop(one["client"]) == one["session"]


def test_a_group_that_loses_everybody_dissolves(federation: Federation) -> None:
    def fault(client: int, message: Message, now: float) -> str | None:
        return "lose" if message.content["pipecycle"]["k"] == 0 else None

    live = federation(policy="pipecycle", slots=120, fault=fault)
    used = live.schedule.sessions.status == Status.USED
    assert not used[:2].any()
    assert used.any()
    assert live.schedule.ancestry.events > 3


def test_nobody_left_is_no_reason_to_stall(federation: Federation) -> None:
    def fault(client: int, message: Message, now: float) -> str | None:
        return "crash" if message.content["pipecycle"]["k"] >= 0 else None

    live = federation(policy="fedavg", slots=200, fault=fault)
    assert live.schedule.ancestry.events == 0
    assert live.schedule.slots == 200
    launches = [one["slot"] for one in live.events if one["event"] == "launch"]
    gaps = np.diff(sorted(set(launches)))
    assert gaps.max() > 20  # left alone for longer and longer


def test_a_node_that_never_says_who_it_is_is_waited_for_once(federation: Federation) -> None:
    """On the logical clock a slot waits for answers; a hung node that is nobody's must not hold up all of them."""
    nodes = [{"partition-id": client} for client in (0, 1, 2, 2)]
    live = federation(nodes=nodes, clients=3, policy="fedavg", initial=20.0, slots=200, run_it=False, roll_call=30.0)
    live.grid.fault = lambda client, message, now: "late" if client == 3 else None
    live.grid.latency = 10.0
    schedule = live.driver.run()
    asked = [message for client, message in live.grid.messages if client == 3]
    assert len(asked) >= 2
    sessions = len({one["slot"] for one in live.events if one["event"] == "launch"})
    assert sessions > 20
    assert live.events[-1]["time"] < live.driver.roster.ttl + 11.0 * sessions + 60.0
    assert schedule.ancestry.events > 5


def test_declines_are_no_faults(federation: Federation, tmp_path: Path, ledgers: Ledgers) -> None:
    """The server forecasts too much: nodes decline, stay in reach, and training goes on."""
    nodes = [
        {"partition-id": client, "harvest": "bernoulli:0.25", "ledger": str(tmp_path / f"ledger-{client}.json")}
        for client in range(4)
    ]
    live = federation(nodes=nodes, clients=4, policy="pipecycle", harvest="bernoulli:0.6", slots=300)
    counts = live.schedule.status_counts()
    assert counts["declined"] > 5
    assert counts["lost"] == 0
    assert counts["used"] > 10
    declined = live.schedule.sessions.status == Status.DECLINED
    assert (live.schedule.sessions.spent[declined] == 0).all()
    for client, one in ledgers(tmp_path).items():
        assert (
            one["training"]
            == (5 * UNIT)
            * ((live.schedule.sessions.client == client) & (live.schedule.sessions.end >= 0) & ~declined).sum()
            + 5 * UNIT * ((live.schedule.sessions.client == client) & (live.schedule.sessions.end < 0)).sum()
        )


def test_a_node_without_the_energy_to_report_waits_for_it(federation: Federation) -> None:
    """FedAvg lets clients in with a session's energy alone; the report's unit may come later."""
    live = federation(policy="fedavg", clients=3, session=3, harvest="bernoulli:0.2", slots=400)
    plain = live.schedule
    assert plain.status_counts()["used"] > 10
    took = plain.sessions.end - plain.sessions.start + 1
    assert took[plain.sessions.end >= 0].min() == 3
    assert took.max() > 3
