"""A server that is killed anywhere goes on from its folder to the very same end."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

import torch

from pipecycle import Bernoulli
from pipecycle.deploy.local.progress import Tail
from pipecycle.deploy.node import ledger
from pipecycle.deploy.node.session import Node
from pipecycle.deploy.server import outputs as folder
from pipecycle.deploy.server import tensors as vault
from pipecycle.deploy.server import trace as journal
from pipecycle.errors import InputError
from pipecycle.policies import REGISTRY, FedAvg
from pipecycle.schedule import schedule
from pipecycle.schedule.schedule import Status
from pipecycle.world.energy import UNIT

from ..shared import read_trace, stop_after

pytestmark = pytest.mark.flower
Federation = Callable[..., SimpleNamespace]
Ledgers = Callable[[Path], dict[int, dict[str, Any]]]


class Killed(BaseException):
    """What a kill is within a process: nothing catches it."""


class Reaper:
    """Kills at the n-th moment at which the server touches a file or sends a message."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
        self.left = at
        for place, name in (
            (vault, "write"),
            (journal, "write"),
            (folder, "write"),
            (schedule, "write"),
            (journal.Trace, "write"),
            (journal.Trace, "save"),
        ):
            monkeypatch.setattr(place, name, self.wrapped(getattr(place, name)))

    def wrapped(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            self.strike()
            result = function(*args, **options)
            self.strike()
            return result

        return call

    def strike(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise Killed


CLOCKED = ("cycp", "mifa", "flda", "fedbacys", "fedau", "fedvarp", "f3ast")
SETTINGS: dict[str, Any] = {"clients": 5, "slots": 40, "session": 4, "harvest": "bernoulli:0.7", "initial": 4.0,
                            "evaluate_every": 15}  # fmt: skip


def whole(federation: Federation, folder: Path, policy: str) -> SimpleNamespace:
    folder.mkdir()
    return federation(folder, policy=policy, out=str(folder / "run"), **SETTINGS)


def same(one: SimpleNamespace, other: SimpleNamespace) -> None:
    assert one.schedule.differences(other.schedule) == []
    assert set(one.made) == set(range(len(one.schedule.versions)))
    for version, value in other.made.items():  # those since the restart
        assert torch.equal(one.made[version], value)
    last = one.driver.lineage.published
    assert torch.equal(one.made[last], other.driver.weights.version(last))
    # NaN is unequal to itself, so by text.
    assert repr(one.driver.model.history.rows) == repr(other.driver.model.history.rows)


def test_a_run_that_is_refused_leaves_no_folder(federation: Federation, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="capacity = 3: a session and its report need"):
        federation(tmp_path, capacity=3.0, out=str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_a_run_has_one_server_at_a_time(federation: Federation, tmp_path: Path) -> None:
    """A `flwr run` that resumes while the first server, which somebody believed dead, still works."""
    options: dict[str, Any] = {"slots": 20, "out": str(tmp_path / "run")}
    first = federation(tmp_path, run_it=False, **options)
    slots = first.driver.slots(first.driver._start())
    for _ in range(8):
        next(slots)
    trace = (tmp_path / "run/trace.jsonl").read_bytes()
    with pytest.raises(InputError, match="run: is being trained by process"):
        federation(tmp_path, grid=first.grid, resume=True, **options)
    assert (tmp_path / "run/trace.jsonl").read_bytes() == trace
    assert next(slots) == 8
    first.driver.trace.close()
    again = federation(tmp_path, grid=first.grid, resume=True, **options)
    assert again.schedule is not None
    assert not (tmp_path / "run/.lock").exists()


@pytest.mark.parametrize("policy", [name for name in REGISTRY if name not in ("fedbacys-odd", "isolated")])
def test_a_killed_server_goes_on_to_the_same_end(
    federation: Federation, ledgers: Ledgers, tmp_path: Path, policy: str
) -> None:
    settings = {**SETTINGS, "slots": 70} if policy in CLOCKED else SETTINGS
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SETTINGS, "slots", settings["slots"])
        moments = Reaper(patch, 10**9)
        complete = whole(federation, tmp_path / "whole", policy)
    total, again = 10**9 - moments.left, 0
    for at in (total // 5, total // 2, 4 * total // 5):
        folder = tmp_path / f"killed-{at}"
        folder.mkdir()
        with pytest.MonkeyPatch.context() as patch:
            Reaper(patch, at)
            with pytest.raises(Killed):
                federation(folder, policy=policy, out=str(folder / "run"), **settings)
        resumed = federation(folder, policy=policy, out=str(folder / "run"), resume=True, **settings)
        same(complete, resumed)
        again += len(resumed.made)
        for client, one in ledgers(folder).items():
            mine = ledgers(tmp_path / "whole")[client]
            for name in ("training", "uploads", "broken"):
                assert one[name] == mine[name], (at, client, name)
            # A roll call at the restart may have brought it further up to date.
            rows = Bernoulli(0.7).weather(5, 0).block(one["slot"] + 1)
            assert one["harvested"] == 4 * UNIT + int(rows[:, client].sum())
    assert again > 0  # versions were made after a restart


def test_killed_at_every_single_write(federation: Federation, tmp_path: Path) -> None:
    """From the first file to the last: either there is no checkpoint yet, or resuming brings the very same files."""
    settings = {**SETTINGS, "policy": "fedavg", "clients": 2, "slots": 9, "initial": 9.0, "evaluate_every": 5}
    settings["policy_settings"] = '{"epoch": 5}'
    with pytest.MonkeyPatch.context() as patch:
        moments = Reaper(patch, 10**9)
        whole = federation(tmp_path, out=str(tmp_path / "run"), **settings)
    closing = ("model.safetensors", "schedule.npz", "levels.npz", "metrics.csv", "result.json")
    wanted = {name: (tmp_path / "run" / name).read_bytes() for name in closing}
    assert whole.schedule.ancestry.events > 0
    early, total = 0, 10**9 - moments.left
    for at in [*range(1, total - 20, 2), *range(total - 20, total + 1)]:  # after one file is before the next
        home = tmp_path / str(at)
        home.mkdir()
        with pytest.MonkeyPatch.context() as patch:
            Reaper(patch, at)
            with pytest.raises(Killed):
                federation(home, out=str(home / "run"), **settings)
        over = [one for one in read_trace(home / "run/trace.jsonl") if one["event"] == "end"]
        if over:  # nobody would go on with it
            assert {name: (home / "run" / name).read_bytes() for name in closing} == wanted
        if not (home / "run/checkpoint/state.json").exists():
            early += 1
            continue
        if journal.read_saved(home / "run")[1][-1]["event"] == "end":
            with pytest.raises(InputError, match="that run has ended"):
                federation(home, out=str(home / "run"), resume=True, **settings)
        else:
            resumed = federation(home, out=str(home / "run"), resume=True, **settings)
            assert whole.schedule.differences(resumed.schedule) == []
            assert {name: (home / "run" / name).read_bytes() for name in closing} == wanted, at
            assert read_trace(home / "run/trace.jsonl")[-1]["event"] == "end"
    assert early < 15


@pytest.mark.parametrize(
    "tail", [b'{"event":"reply","slot":', b'{"event":"launch","slot":30,"clients":[0]}\n{"ev', b"\n\0"]
)
def test_a_trace_that_breaks_off(federation: Federation, tmp_path: Path, tail: bytes) -> None:
    complete = whole(federation, tmp_path / "whole", "pipecycle")
    home = tmp_path / "killed"
    home.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        Reaper(patch, 150)
        with pytest.raises(Killed):
            federation(home, policy="pipecycle", out=str(home / "run"), **SETTINGS)
    with (home / "run/trace.jsonl").open("ab") as file:
        file.write(tail)
    resumed = federation(home, policy="pipecycle", out=str(home / "run"), resume=True, **SETTINGS)
    same(complete, resumed)
    lines = (home / "run/trace.jsonl").read_bytes().splitlines()
    assert len(read_trace(home / "run/trace.jsonl")) == len(lines)


def test_it_may_be_killed_again_and_again(federation: Federation, ledgers: Ledgers, tmp_path: Path) -> None:
    complete = whole(federation, tmp_path / "whole", "pipecycle")
    folder = tmp_path / "often"
    folder.mkdir()
    kills, resume = 0, False
    while True:
        try:
            with pytest.MonkeyPatch.context() as patch:
                Reaper(patch, 29 + kills)
                last = federation(folder, policy="pipecycle", out=str(folder / "run"), resume=resume, **SETTINGS)
            break
        except Killed:
            kills += 1
            resume = (folder / "run/checkpoint/state.json").exists()
            assert resume
            assert kills < 100
    assert kills > 5
    same(complete, last)
    for client, one in ledgers(folder).items():
        assert one["training"] == ledgers(tmp_path / "whole")[client]["training"]
    slots = [one["slot"] for one in read_trace(folder / "run/trace.jsonl")]
    assert slots == sorted(slots)


def test_the_trace_and_the_folder_of_a_finished_run(federation: Federation, tmp_path: Path) -> None:
    live = whole(federation, tmp_path / "whole", "pipecycle")
    out = tmp_path / "whole/run"
    events = read_trace(out / "trace.jsonl")
    assert events[0]["event"] == "start"
    assert events[-1]["event"] == "end"
    launched = sum(len(one["sessions"]) for one in events if one["event"] == "launch")
    assert launched == len(live.schedule.sessions)
    assert sum(one["event"] == "publish" for one in events) == len(live.schedule.publications.slot)
    assert json.loads((out / "result.json").read_text())["ended"] == "finished"
    # Updates that were used up are gone, versions stay.
    kept = {path.name.partition("-")[0] for path in (out / "checkpoint").glob("*.safetensors")}
    assert "version" in kept
    # Those of sessions that ended too late are gone, too.
    waiting = live.schedule.sessions.status == Status.UNUSED
    updates = {int(path.stem.partition("-")[2]) for path in (out / "checkpoint").glob("update-*")}
    assert updates <= set(np.flatnonzero(waiting).tolist())


def test_nobody_there_to_go_on_with(federation: Federation, tmp_path: Path) -> None:
    """On the logical clock a run without nodes would be over in a moment, for good."""
    with pytest.MonkeyPatch.context() as patch:
        Reaper(patch, 150)
        with pytest.raises(Killed):
            federation(tmp_path, policy="pipecycle", out=str(tmp_path / "run"), **SETTINGS)
    settings = {**SETTINGS, "policy": "pipecycle", "out": str(tmp_path / "run"), "resume": True}
    live = federation(tmp_path, run_it=False, **settings)
    for client in range(5):
        live.grid.stop(client)
    with pytest.raises(InputError, match="no node has replied within 180 s"):
        live.driver.run()
    assert federation(tmp_path, **settings).schedule.status_counts()["used"] > 5


@pytest.mark.parametrize("policy", ["pipecycle", "fedavg"])
def test_a_finished_run_can_be_extended(federation: Federation, ledgers: Any, tmp_path: Path, policy: str) -> None:
    """Sessions that came too late for the first end count in the extended run, and nothing is paid twice."""
    one = whole(federation, tmp_path / "whole", policy)
    (tmp_path / "short").mkdir()
    settings = {**SETTINGS, "policy": policy, "out": str(tmp_path / "short/run")}
    first = federation(tmp_path / "short", **{**settings, "slots": 22})
    late = [event for event in first.events if event["event"] == "late"]
    assert {event["outcome"] for event in late} == {"reply", "roll-call"}
    spent = sum(ledger["spent"] for ledger in ledgers(tmp_path / "short").values()) / UNIT
    result = json.loads((tmp_path / "short/run/result.json").read_text())
    assert result["final"]["energy"] == spent
    devices = Tail(tmp_path / "short/run/trace.jsonl").read().devices
    for client, book in ledgers(tmp_path / "short").items():
        level = book["harvested"] - book["overflowed"] - book["training"] - book["uploads"]
        assert devices[client].battery == level / UNIT
        assert devices[client].at == book["slot"] >= 21
    extended = federation(tmp_path / "short", resume=True, **settings)
    assert extended.schedule.differences(one.schedule) == []
    last = one.driver.lineage.published
    assert torch.equal(one.made[last], extended.driver.weights.version(last))
    assert extended.driver.model.history.final == one.driver.model.history.final
    with pytest.raises(InputError, match=r"that run has ended; slots = 40: needs at least 41"):
        federation(tmp_path / "short", resume=True, **settings)


def test_what_cannot_be_resumed(federation: Federation, tmp_path: Path) -> None:
    whole(federation, tmp_path / "whole", "fedavg")
    out = tmp_path / "whole/run"
    with pytest.raises(InputError, match="holds a run already"):
        federation(tmp_path, policy="fedavg", out=str(out), **SETTINGS)
    with pytest.raises(
        InputError, match="policy = mifa: the run was started with fedavg; resumed, it may change only slots"
    ):
        federation(tmp_path, policy="mifa", out=str(out), resume=True, **SETTINGS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FedAvg, "revision", 2, raising=False)  # as if the name stood for another algorithm now
        with pytest.raises(InputError, match="an earlier version of the policy"):
            federation(tmp_path, policy="fedavg", out=str(out), resume=True, **SETTINGS)
    with pytest.raises(InputError, match="no checkpoint to resume from"):
        federation(tmp_path, policy="fedavg", out=str(tmp_path / "nothing"), resume=True, **SETTINGS)
    (out / "checkpoint/state.json").write_text("{")
    with pytest.raises(InputError, match="damaged"):
        federation(tmp_path, policy="fedavg", out=str(out), resume=True, **SETTINGS)


@pytest.mark.parametrize("clock", ["logical", "wall"])
def test_a_first_session_that_is_cut_off_again_and_again(
    federation: Federation, ledgers: Ledgers, tmp_path: Path, clock: str
) -> None:
    """A node loses power in mid-session, three times, and the server with it or a little later: every order was
    charged, and the report of the one that comes through in the end is an honest one."""
    settings = {**SETTINGS, "harvest": "always", "initial": 40.0, "clients": 2, "clock": clock}
    settings["out"] = str(tmp_path / "run")
    cuts, burn = [True], Node.burn

    def cut(self: Node, *args: Any) -> None:
        if self.node.partition_id == 1 and cuts:
            cuts.pop()
            raise Killed
        burn(self, *args)

    def silently(client: int, message: Any, now: float) -> str | None:
        if not cuts or client != 1 or message.content["pipecycle"]["k"] < 0:
            return None
        with pytest.raises(Killed):
            live.grid.app(message, live.grid.contexts[1])
        return "lose"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Node, "burn", cut)
        live = federation(tmp_path, run_it=False, **settings)
        with pytest.raises(Killed):  # as the order leaves: no checkpoint knows of it
            live.driver.run()
        for after in (2, -1):  # two slots later, so that it is sent again; and before anything else happens
            cuts.append(True)
            live = federation(tmp_path, run_it=False, fault=silently, resume=True, **settings)
            stop_after(live.driver, after, Killed)
            with pytest.raises(Killed):
                live.driver.run()
            assert not cuts
        live = federation(tmp_path, resume=True, **settings)
    assert ledgers(tmp_path)[1]["broken"] == 3
    assert not live.driver.refused
    mine = [one for one in read_trace(tmp_path / "run/trace.jsonl") if one.get("client") == 1 and "session" in one]
    assert mine[0]["event"] == "reply"
    assert mine[0]["report"][3] == (4 * 4 + 1) * UNIT
    assert live.driver.fleet.most_spent(1) == (3 + live.driver.fleet.asked[1]) * 5 * UNIT


@pytest.mark.parametrize("at", range(1, 9))
def test_a_node_killed_at_any_write_counts_its_energy_once(
    federation: Federation, ledgers: Ledgers, tmp_path: Path, at: int
) -> None:
    """The ledger is whole after every kill: charged once, and asked again it trains and pays again only if it has
    to; what it answered before it does not."""
    from flwr.app import Context, RecordDict

    from pipecycle.deploy.apps import client_app

    live = federation(tmp_path, clients=2, harvest="always", initial=20.0, run_it=False)
    app = client_app()
    context = Context(1, 1, live.grid.nodes[0], RecordDict(), live.run.flat())
    message = order(live, k=0, slot=2)
    with pytest.MonkeyPatch.context() as patch:
        writes = Counted(at)
        patch.setattr(ledger, "write", writes(ledger.write))
        try:
            app(message, context)
            killed = False
        except Killed:
            killed = True
    before = ledgers(tmp_path).get(
        0, dict.fromkeys(("harvested", "overflowed", "training", "uploads"), 0) | {"open": ""}
    )
    level = before["harvested"] - before["overflowed"] - before["training"] - before["uploads"]
    assert level >= 0
    assert before["training"] in (0, 5 * UNIT)
    reply = app(order(live, k=0, slot=2), context)
    after = ledgers(tmp_path)[0]
    assert reply.content["pipecycle"]["outcome"] == "trained"
    lost = after["broken"] * 5 * UNIT
    assert after["training"] == 5 * UNIT + lost
    assert after["uploads"] == UNIT
    assert after["broken"] == int(killed and before["open"] != "")
    assert after["harvested"] == 20 * UNIT + (after["slot"] + 1) * UNIT
    again = app(order(live, k=0, slot=2), context)
    assert ledgers(tmp_path)[0] == after
    assert again.content["arrays"] == reply.content["arrays"]
    assert again.content["energy"] == reply.content["energy"]


class Counted:
    """Dies before or after the n-th write."""

    def __init__(self, at: int) -> None:
        self.left = at

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> None:
            self.left -= 1
            if self.left == 0:
                raise Killed
            function(*args)
            self.left -= 1
            if self.left == 0:
                raise Killed

        return call


def order(live: SimpleNamespace, k: int, slot: int) -> Any:
    from flwr.app import ConfigRecord, Message, RecordDict

    from pipecycle.deploy.wire.arrays import write_arrays
    from pipecycle.deploy.wire.protocol import Order

    asked = Order(live.driver.roster.run, 0, k, slot, 5, 6 * UNIT, UNIT, UNIT, seconds=60.0)
    arrays = write_arrays(live.driver.model.named(live.driver.model.initial))
    content = RecordDict({"pipecycle": asked.record(), "config": ConfigRecord({"classes": 10}), "arrays": arrays})
    message = Message(content, 1000, "train")
    message.metadata.__dict__["_message_id"] = f"{k}-{slot}"
    return message
