"""Replies that must not be believed: refused by name, counted, and without any trace in the model."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from pipecycle.deploy import with_battery
from pipecycle.deploy.server.model import foreign
from pipecycle.deploy.wire.arrays import Refused, read_arrays, write_arrays
from pipecycle.schedule.schedule import Status
from pipecycle.world.energy import UNIT

pytestmark = pytest.mark.flower
Federation = Callable[..., SimpleNamespace]
HOSTILE = 2


def weights(change: Callable[[dict[str, np.ndarray[Any, Any]]], object]) -> Callable[[RecordDict], None]:
    def alter(content: RecordDict) -> None:
        arrays = {key: array.numpy().copy() for key, array in content["arrays"].items()}
        changed = change(arrays)
        content["arrays"] = ArrayRecord(
            {key: Array(np.asarray(value)) for key, value in (changed or arrays).items()}  # type: ignore[attr-defined]
        )

    return alter


def poison(value: float) -> Callable[[dict[str, np.ndarray[Any, Any]]], None]:
    def change(arrays: dict[str, np.ndarray[Any, Any]]) -> None:
        next(iter(arrays.values())).flat[3] = value

    return change


def energy(**figures: Any) -> Callable[[RecordDict], None]:
    def alter(content: RecordDict) -> None:
        content["energy"] = MetricRecord({**content["energy"], **figures})

    return alter


def level(units: float) -> Callable[[RecordDict], None]:
    """A report that adds up, for another level."""

    def alter(content: RecordDict) -> None:
        old = content["energy"]
        wanted = int(units * UNIT)
        content["energy"] = MetricRecord(
            {**old, "battery": wanted, "harvested": wanted + old["overflowed"] + old["spent"]}
        )

    return alter


def words(**changes: str) -> Callable[[RecordDict], None]:
    def alter(content: RecordDict) -> None:
        content["pipecycle"] = ConfigRecord({**content["pipecycle"], **changes})

    return alter


def without(name: str) -> Callable[[RecordDict], None]:
    def alter(content: RecordDict) -> None:
        del content[name]

    return alter


def raw(change: Callable[[bytes], bytes], stype: str = "numpy.ndarray") -> Callable[[RecordDict], None]:
    """The first array with other bytes, or said to be of another kind."""

    def alter(content: RecordDict) -> None:
        (key, first), *rest = content["arrays"].items()
        broken = Array(dtype=first.dtype, shape=first.shape, stype=stype, data=change(first.data))
        content["arrays"] = ArrayRecord({key: broken, **dict(rest)})

    return alter


def enormous(data: bytes) -> bytes:
    """A header that promises terabytes before the same values."""
    start = data.index(b"'shape': (") + len(b"'shape': (")
    end = data.index(b")", start)
    told = b"10000000000000,"
    return data[:start] + told + data[end : -(len(told) - (end - start)) or None]


def overspent(more: int = 1000 * UNIT) -> Callable[[RecordDict], None]:
    """A report that adds up, with more spent."""

    def alter(content: RecordDict) -> None:
        old = content["energy"]
        content["energy"] = MetricRecord({**old, "spent": old["spent"] + more, "harvested": old["harvested"] + more})

    return alter


def delayed(content: RecordDict) -> None:
    content["energy"] = MetricRecord({**content["energy"], "at": content["energy"]["at"] + 3})


CASES: dict[str, tuple[str, Callable[[RecordDict], None]]] = {
    "not a number": ("arrays", weights(poison(float("nan")))),
    "infinite": ("arrays", weights(poison(float("inf")))),
    "overflowing": ("arrays", weights(poison(-float("inf")))),
    "another shape": ("arrays", weights(lambda arrays: {key: value[..., :1] for key, value in arrays.items()})),
    "transposed": ("arrays", weights(lambda arrays: {key: value.T for key, value in arrays.items()})),
    "one array too few": ("arrays", weights(lambda arrays: dict(list(arrays.items())[1:]))),
    "another name": ("arrays", weights(lambda arrays: {f"{key}x": value for key, value in arrays.items()})),
    "another order": ("arrays", weights(lambda arrays: dict(reversed(arrays.items())))),
    "doubles": ("arrays", weights(lambda arrays: {key: value.astype(np.float64) for key, value in arrays.items()})),
    "whole numbers": ("arrays", weights(lambda arrays: {key: value.astype(np.int32) for key, value in arrays.items()})),
    "bytes that are no array": ("arrays", raw(lambda data: b"\x93NUMPY, almost")),
    "a header that breaks off": ("arrays", raw(lambda data: data.replace(b"}", b"{", 1))),
    "a header of ten trillion values": ("arrays", raw(enormous)),
    "values that break off": ("arrays", raw(lambda data: data[:-1])),
    "another kind of array": ("arrays", raw(lambda data: data, stype="evil")),
    "a smaller battery all at once": ("capacity", energy(capacity=500_000 * UNIT)),
    "no weights": ("arrays", without("arrays")),
    "no energy": ("form", without("energy")),
    "no word of ours": ("form", without("pipecycle")),
    "a battery of 1e9": ("battery", level(1e9)),
    "a battery of -5": ("battery", level(-5)),
    "a battery that does not add up": ("battery", energy(battery=7 * UNIT)),
    "a battery in fractions": ("battery", energy(battery=7.5)),
    "spent less than before": ("ledger", energy(spent=-1, battery=0, harvested=-1, overflowed=0)),
    "spent more than it was asked for": ("spent", overspent()),
    "spent a quantum more than it was asked for": ("spent", overspent(1)),
    "spent less than its session took": ("spent", overspent(-1)),
    "beyond all bounds": (
        "ledger",
        energy(harvested=1 << 60, overflowed=(1 << 60) - UNIT, spent=0, battery=UNIT),
    ),
    "a report from the past": ("at", energy(at=-(10**15))),
    "a report from the far future": ("at", energy(at=10**15)),
    "a wait that was not needed": ("at", lambda content: delayed(content)),
    "enormous": ("arrays", weights(poison(3e38))),
    "no samples": ("samples", energy(samples=0)),
    "negative samples": ("samples", energy(samples=-75)),
    "a trillion samples": ("samples", energy(samples=10**12)),
    "more samples than steps": ("samples", energy(samples=5 * 15 + 1)),
    "fewer steps": ("steps", energy(steps=1)),
    "another client": ("client", energy(client=1)),
    "no such client": ("client", energy(client=77)),
    "a client in fractions": ("client", energy(client=1.5)),
    "another key": ("key", words(key="somebody//2/0")),
    "present, not trained": ("outcome", words(outcome="present")),
    "an unheard-of outcome": ("outcome", words(outcome="excellent")),
    "an endless outcome": ("outcome", words(outcome="more " * 10**6)),
    "an endless list": ("samples", energy(samples=[1.5] * 10**5)),
}


def run(federation: Federation, fault: Callable[[int, Message, float], Any], **over: Any) -> SimpleNamespace:
    return federation(policy="pipecycle", clients=5, slots=50, fault=fault, **over)


@pytest.fixture(scope="module")
def absent(federation: Federation) -> SimpleNamespace:
    """The same run where the node only fails."""

    def absence(client: int, message: Message, now: float) -> Any:
        return "raise" if client == HOSTILE and message.content["pipecycle"]["k"] >= 0 else None

    return run(federation, absence)


@pytest.mark.parametrize("case", CASES)
def test_a_hostile_reply_is_refused_by_name_and_leaves_no_trace(
    federation: Federation, absent: SimpleNamespace, case: str
) -> None:
    name, alter = CASES[case]

    def attack(client: int, message: Message, now: float) -> Any:
        if client != HOSTILE or message.content["pipecycle"]["k"] < 0:
            return None

        def change(reply: Message) -> Message:
            alter(reply.content)
            return reply

        return change

    attacked = run(federation, attack)
    assert set(attacked.driver.refused) == {name}
    assert attacked.driver.refused[name] >= 2
    refused = [event for event in attacked.events if event["event"] == "refused"]
    assert {one["client"] for one in refused} == {HOSTILE}
    assert all(0 < len(one["why"]) <= 500 for one in refused)
    mine = attacked.schedule.sessions.client == HOSTILE
    assert set(attacked.schedule.sessions.status[mine].tolist()) <= {int(Status.LOST), int(Status.IN_FLIGHT)}
    # The model is bit for bit what it is where the node only fails.
    last = attacked.driver.lineage.published
    assert last == absent.driver.lineage.published
    assert last > 0
    assert torch.equal(attacked.made[last], absent.made[last])


def test_a_hostile_roll_call_does_not_enter_the_record(federation: Federation) -> None:
    """A client that has failed is asked for its presence, and tells of energy that nobody asked it to spend."""

    def fault(answer: Any) -> Callable[[int, Message, float], Any]:
        def fall(client: int, message: Message, now: float) -> Any:
            order = message.content["pipecycle"]
            if client != HOSTILE or order["slot"] < 0:
                return None
            return "raise" if order["k"] >= 0 else answer

        return fall

    def lie(reply: Message) -> Message:
        overspent(10**9 * UNIT)(reply.content)
        return reply

    attacked, silent = run(federation, fault(lie)), run(federation, fault("raise"))
    assert set(attacked.driver.refused) == {"spent"}
    assert attacked.schedule.energy.spent.tolist() == silent.schedule.energy.spent.tolist()
    last = attacked.driver.lineage.published
    assert torch.equal(attacked.made[last], silent.made[last])
    assert attacked.schedule.sessions.client.tolist() == silent.schedule.sessions.client.tolist()


def test_a_lost_ledger_is_no_lie(federation: Federation, tmp_path: Path) -> None:
    """A roll call from a new ledger, whose totals are lower, is taken, whatever the old one had spent."""
    asked: list[int] = []

    def fault(client: int, message: Message, now: float) -> Any:
        order = message.content["pipecycle"]
        if client == HOSTILE and order["k"] == 1:
            (tmp_path / f"ledger-{HOSTILE}.json").unlink()
            return "raise"
        if client == HOSTILE and order["k"] > 1:
            asked.append(order["k"])
        return None

    live = federation(tmp_path, policy="pipecycle", clients=5, slots=70, initial=20.0, fault=fault)
    assert not live.driver.refused
    assert asked


def test_what_comes_after_the_last_slot_is_checked_too(federation: Federation) -> None:
    """Sessions that end too late bring only their ledgers, for the record's last line."""

    def fault(client: int, message: Message, now: float) -> Any:
        if message.content["pipecycle"]["k"] < 0 or message.content["pipecycle"]["slot"] < 46:
            return None
        late.add(client)

        def lie(reply: Message) -> Message:
            overspent(10**9 * UNIT)(reply.content)
            return reply

        return lie

    late: set[int] = set()
    live = run(federation, fault)
    assert late
    assert live.events[-1]["event"] == "end"
    assert all(spent < 1000 * UNIT for _, _, _, spent, _ in live.events[-1]["ledgers"].values())


def test_an_old_reply_played_again_is_refused(federation: Federation) -> None:
    old: list[RecordDict] = []

    def fault(client: int, message: Message, now: float) -> Any:
        if client != HOSTILE or message.content["pipecycle"]["k"] < 0:
            return None

        def replay(reply: Message) -> Message:
            old.append(reply.content)
            return Message(old[0], reply_to=message)

        return replay

    live = run(federation, fault)
    assert live.driver.refused["key"] >= 1
    assert set(live.driver.refused) == {"key"}
    used = live.schedule.sessions.status[live.schedule.sessions.client == HOSTILE] == Status.USED
    assert used[0]
    assert not used[1:].any()


def test_a_node_that_claims_a_taken_number_is_refused(federation: Federation, tmp_path: Path) -> None:
    """The second of two nodes that call themselves client 1 never trains; everybody else does."""
    nodes = [{"partition-id": client} for client in (0, 1, 2, 3, 1)]
    live = federation(policy="fedavg", clients=5, nodes=nodes, slots=60, roll_call=1.0)
    sent = {client for client, message in live.grid.messages if message.content["pipecycle"]["k"] >= 0}
    assert sent == {0, 1, 2, 3}
    assert live.schedule.participation()[4] == 0
    claims = [event for event in live.events if event["event"] == "refused"]
    assert claims
    assert {event["name"] for event in claims} == {"client"}


def counts(change: Callable[[np.ndarray[Any, Any]], object]) -> Callable[[RecordDict], None]:
    """A logit table with other counts."""

    def alter(content: RecordDict) -> None:
        arrays = {key: array.numpy().copy() for key, array in content["logits"].items()}
        change(arrays["counts"])
        content["logits"] = ArrayRecord({key: Array(value) for key, value in arrays.items()})

    return alter


def put(value: float) -> Callable[[np.ndarray[Any, Any]], None]:
    def change(found: np.ndarray[Any, Any]) -> None:
        found[:] = value

    return change


def add(first: float, second: float) -> Callable[[np.ndarray[Any, Any]], None]:
    def change(found: np.ndarray[Any, Any]) -> None:
        found[:2] += first, second

    return change


LOGITS: dict[str, tuple[str, Callable[[RecordDict], None]]] = {
    "negative counts": ("logits", counts(add(-1000, 1000))),
    "counts in fractions": ("logits", counts(add(0.5, -0.5))),
    "no counts": ("logits", counts(put(0.0))),
    "one sample more than there were": ("logits", counts(add(1, 0))),
    "far more samples than there were": ("logits", counts(put(1e9))),
    "counts of a smaller session, which it says it was not": ("logits", energy(samples=5 * 15 - 1)),
    "no table": ("logits", without("logits")),
}


@pytest.mark.parametrize("case", LOGITS)
def test_hostile_logits_are_refused(federation: Federation, case: str) -> None:
    name, alter = LOGITS[case]

    def fault(client: int, message: Message, now: float) -> Any:
        if client != HOSTILE or message.content["pipecycle"]["payload"] != "logits":
            return None

        def change(reply: Message) -> Message:
            if reply.content["pipecycle"]["outcome"] == "trained":
                alter(reply.content)
            return reply

        return change

    live = federation(policy="flda", clients=4, slots=130, fault=fault)
    assert set(live.driver.refused) == {name}
    tabulated = live.schedule.sessions.client[live.schedule.tables.session]
    assert len(tabulated)
    assert HOSTILE not in tabulated


def test_a_hostile_roll_call_keeps_a_node_out(federation: Federation) -> None:
    def fault(client: int, message: Message, now: float) -> Any:
        if client != HOSTILE:
            return None

        def change(reply: Message) -> Message:
            level(1e9)(reply.content)
            return reply

        return change

    live = federation(policy="fedavg", clients=4, slots=40, fault=fault, roll_call=5.0)
    assert live.schedule.participation()[HOSTILE] == 0
    assert live.schedule.participation().sum() > 0


@pytest.mark.parametrize("bound", [20.0, 0.0])
def test_an_update_that_would_outweigh_all_others(federation: Federation, bound: float) -> None:
    """Its weights have the form of a model, and are finite; only their size gives it away."""

    def attack(client: int, message: Message, now: float) -> Any:
        order = message.content["pipecycle"]
        if client != HOSTILE or order["k"] < 0 or order["slot"] < 25:
            return None

        def change(reply: Message) -> Message:
            weights(lambda arrays: {name: value + 5 for name, value in arrays.items()})(reply.content)
            return reply

        return change

    attacked = run(federation, attack, norm_bound=bound)
    assert set(attacked.driver.refused) == ({"norm"} if bound else set())
    last = attacked.made[attacked.driver.lineage.published]
    assert (float(last.abs().max()) < 3) == bool(bound)


@pytest.mark.parametrize(("usual", "outweighs"), [(1e-3, True), (0.0, False)])
def test_the_size_of_an_update_is_that_of_its_weights(federation: Federation, usual: float, outweighs: bool) -> None:
    """A counter among them, such as a batch normalisation's, does not hide how far they go; and where most clients find
    nothing to learn, one that does is no attacker."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        arrays = {name: array.numpy().copy() for name, array in message.content["arrays"].items()}
        config = message.content["config"]
        odd = context.node_config["partition-id"] == HOSTILE and config["server-round"] > 2
        arrays["w"] += np.float32(1.0 if odd else usual)
        arrays["seen"] += config["local-steps"]
        return Message(RecordDict({"arrays": write_arrays(arrays)}), reply_to=message)

    learning = foreign({"w": np.zeros(3, np.float32), "seen": np.zeros((), np.int64)}, None)
    live = run(federation, lambda client, message, now: None, app=with_battery(app), learning=learning)
    assert live.driver.fleet.asked[HOSTILE] > 2
    assert set(live.driver.refused) == ({"norm"} if outweighs else set())


@pytest.mark.parametrize(
    ("names", "sentence"),
    [("ab+", "holds + in the place of nothing"), ("a", "holds nothing in the place of b"), ("ba", "holds b in")],
)
def test_of_many_names_the_first_that_differs_is_said(names: str, sentence: str) -> None:
    arrays = {name: np.zeros(1, np.float32) for name in names}
    with pytest.raises(Refused, match=re.escape(sentence)):
        read_arrays(write_arrays(arrays), {name: ((1,), np.dtype(np.float32)) for name in "ab"}, "arrays")


def test_an_array_that_is_longer_than_it_says_is_not_read(federation: Federation) -> None:
    def attack(client: int, message: Message, now: float) -> Any:
        def change(reply: Message) -> Message:
            array = next(iter(reply.content["arrays"].values()))
            array.data += bytes(10**5)
            return reply

        return change if client == HOSTILE and message.content["pipecycle"]["k"] >= 0 else None

    attacked = run(federation, attack)
    assert set(attacked.driver.refused) == {"arrays"}
    assert "more than float32" in next(event["why"] for event in attacked.events if event["event"] == "refused")


def test_more_samples_than_a_node_registered(federation: Federation) -> None:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        count = 900 if context.node_config["partition-id"] == HOSTILE else 30
        content = {"arrays": message.content["arrays"], "metrics": MetricRecord({"num-examples": count})}
        return Message(RecordDict(content), reply_to=message)

    nodes = [{"partition-id": client, "samples": 30} for client in range(5)]
    learning = foreign({"x": np.zeros(3, np.float32)}, None)
    live = run(federation, lambda client, message, now: None, app=with_battery(app), nodes=nodes, learning=learning)
    refused = [event for event in live.events if event["event"] == "refused"]
    assert {(event["client"], event["name"]) for event in refused} == {(HOSTILE, "samples")}
    assert live.schedule.status_counts()["used"] > 0
