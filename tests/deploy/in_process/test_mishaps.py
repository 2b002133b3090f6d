"""What goes wrong on a node after the energy was spent: gauges in mid-write, and answers that cannot be sent."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.task_identity import TaskIdentity

from pipecycle.deploy import RunSettings, with_battery
from pipecycle.deploy.node.battery import PATIENCE, Gauge
from pipecycle.deploy.node.session import attend
from pipecycle.deploy.wire.protocol import Order
from pipecycle.errors import InputError
from pipecycle.world.energy import UNIT

from ..local_grid import VirtualTime

pytestmark = pytest.mark.flower
RUN = RunSettings(clients=3, session=4, harvest="always", clock="wall")
Handler = Callable[[Message, Context], Message]


@pytest.fixture(autouse=True)
def _identity() -> None:
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1


def context(**node: Any) -> Context:
    return Context(1, 1, {"partition-id": 0, **node}, RecordDict(), RUN.flat())


def ask(k: int = 0, slot: int = 5, **changes: Any) -> Message:
    values = {"client": 0, "steps": 4, "need": 5 * UNIT, "step": UNIT, "fee": UNIT, "seconds": 60.0, **changes}
    arrays = ArrayRecord({"w": Array(np.zeros(3, np.float32))})
    message = Message(
        RecordDict({"pipecycle": Order("r", k=k, slot=slot, **values).record(), "arrays": arrays}), 1, "train"
    )
    message.metadata.__dict__["_message_id"] = "m"
    return message


def told(reply: Message) -> tuple[str, float, float, int]:
    energy = reply.content["energy"]
    return reply.content["pipecycle"]["outcome"], energy["battery"] / UNIT, energy["spent"] / UNIT, energy["at"]


def answering(**records: Any) -> Handler:
    """An app that answers these records beside the weights."""

    def train(message: Message, context: Context) -> Message:
        content = {"arrays": message.content["arrays"], "metrics": MetricRecord({"num-examples": 3}), **records}
        return Message(RecordDict(content), reply_to=message)

    return train


# Gauges.


class Writer(VirtualTime):
    """Time in which a gauge file is written at some moment."""

    def __init__(self, path: Path, at: float, text: str) -> None:
        super().__init__()
        self.path, self.at, self.text = path, at, text

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        if self.time >= self.at:
            self.path.write_text(self.text)


@pytest.mark.parametrize("half", ["", "1.", "1e", "-", "\n", None])
def test_a_gauge_in_mid_write_is_read_again(tmp_path: Path, half: str | None) -> None:
    gauge = tmp_path / "gauge"
    if half is not None:
        gauge.write_text(half)
    if half == "1.":  # which is a number already; nobody can know
        assert Gauge(gauge, VirtualTime()).read() == 1.0
        return
    assert Gauge(gauge, Writer(gauge, 0.5, "12.5\n")).read() == 12.5
    (gauge.write_text if half is not None else lambda _: gauge.unlink())(half or "")
    timer = Writer(gauge, 10.0, "12.5")
    with pytest.raises(InputError, match="gauge: "):
        Gauge(gauge, timer).read()
    assert PATIENCE <= timer.monotonic() < PATIENCE + 0.5
    gauge.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="needs the battery's level"):
        Gauge(gauge, VirtualTime()).read()


@pytest.mark.parametrize("slot_seconds", [0.0, 2.0])
@pytest.mark.parametrize("lost", ["empty", "gone"])
def test_a_gauge_that_cannot_be_read_after_training_loses_no_session(
    tmp_path: Path, slot_seconds: float, lost: str
) -> None:
    """The books say what is left; the next reading puts them right."""
    gauge, timer = tmp_path / "gauge", VirtualTime()
    gauge.write_text("50")

    def train(message: Message, context: Context) -> Message:
        gauge.write_text("") if lost == "empty" else gauge.unlink()
        timer.sleep(6.0)
        return answering()(message, context)

    node = context(battery=f"gauge:{gauge}", ledger=str(tmp_path / "ledger.json"))
    asked = {"slot_seconds": slot_seconds}
    reply = attend(ask(**asked), node, train, RUN, timer)
    assert told(reply) == ("trained", 50 - 4 - 1, 5, 5 + 3)
    assert "arrays" in reply.content
    books = json.loads((tmp_path / "ledger.json").read_text())
    assert (books["training"], books["uploads"], books["open"], books["broken"]) == (4 * UNIT, UNIT, "", 0)
    with pytest.raises(InputError, match="gauge: "):
        attend(ask(k=1, slot=20), node, train, RUN, timer)
    gauge.write_text("47")
    assert told(attend(ask(k=-1, slot=21), node, train, RUN, timer)) == ("present", 47, 5, 21)


def test_a_gauge_that_is_gone_while_the_report_waits_for_energy(tmp_path: Path) -> None:
    gauge, timer = tmp_path / "gauge", VirtualTime()
    gauge.write_text("4")

    def train(message: Message, context: Context) -> Message:
        gauge.write_text("0.5")
        return answering()(message, context)

    node = context(battery=f"gauge:{gauge}")
    sleep = timer.sleep

    def flicker(seconds: float) -> None:
        sleep(seconds)
        gauge.write_text("" if timer.monotonic() < 20.0 else "3")

    timer.sleep = flicker  # type: ignore[method-assign]
    reply = attend(ask(need=4 * UNIT, slot_seconds=2.0), node, train, RUN, timer)
    assert told(reply)[:3] == ("trained", 2, 5)
    assert 20.0 <= timer.monotonic() < 24.0


# Answers.


def broken_array() -> ArrayRecord:
    record = ArrayRecord({"w": Array(np.zeros(3))})
    record["w"].data = None  # type: ignore[assignment]
    return record


ODD: dict[str, dict[str, Any]] = {
    "not a number of samples": {"metrics": MetricRecord({"num-examples": float("nan")})},
    "endless samples": {"metrics": MetricRecord({"num-examples": float("inf")})},
    "samples beyond all bounds": {"metrics": MetricRecord({"num-examples": 1e300})},
    "an array without data": {"arrays": broken_array()},
    "a number of 70 bits": {"more": MetricRecord({"n": 1 << 70})},
    "a list with a number of 70 bits": {"more": MetricRecord({"n": [1, -(1 << 70)]})},
    "text that no encoding has": {"more": ConfigRecord({"word": "\ud800"})},
}


@pytest.mark.parametrize("where", ["memory", "file"])
@pytest.mark.parametrize("payload", ["update", "logits"])
@pytest.mark.parametrize("case", ODD)
def test_an_answer_that_cannot_be_sent_is_a_failed_session(tmp_path: Path, case: str, payload: str, where: str) -> None:
    app = ClientApp()
    app.train()(answering(**ODD[case]))
    node = context(**({} if where == "memory" else {"ledger": str(tmp_path / "ledger.json")}))
    wrapped = with_battery(app)
    reply = wrapped(ask(payload=payload), node)
    assert told(reply) == ("failed", 6 + 3 - 4, 4, 8)
    assert reply.content["pipecycle"]["reason"]
    assert set(reply.content) == {"pipecycle", "energy"}
    assert reply.content["energy"]["steps"] == 4
    assert told(wrapped(ask(payload=payload), node)) == told(reply)
    assert told(wrapped(ask(k=-1, slot=8), node)) == ("present", 5, 4, 8)


def test_an_app_may_fail_in_words_that_cannot_be_sent() -> None:
    def train(message: Message, context: Context) -> Message:
        raise OSError(f"cannot open photo-{chr(0xDC80)}.png")

    assert told(attend(ask(), context(), train, RUN))[0] == "failed"


def test_an_app_that_answers_no_message_has_failed() -> None:
    for answer in (None, "done", RecordDict()):
        reply = attend(ask(), context(), lambda *_, answer=answer: answer, RUN)
        assert told(reply)[:3] == ("failed", 5, 4)


def test_apps_that_do_not_count_their_samples_count_alike() -> None:
    reply = attend(ask(), context(), answering(metrics=MetricRecord({"loss": 0.5})), RUN)
    assert told(reply)[0] == "trained"
    assert reply.content["energy"]["samples"] == 1


@pytest.mark.parametrize("where", ["memory", "file"])
def test_bytes_in_lists_come_back_as_they_were(tmp_path: Path, where: str) -> None:
    mine = ConfigRecord({"x": [b"a", b"\x00\xff"], "none": [], "one": b"", "words": ["é", "ab"], "hex": "6162"})
    node = context(**({} if where == "memory" else {"ledger": str(tmp_path / "ledger.json")}))
    first = attend(ask(), node, answering(mine=mine), RUN)
    again = attend(ask(), node, answering(), RUN)
    assert told(first)[0] == "trained"
    assert first.content["mine"] == again.content["mine"] == mine
