"""The folder of a live run opens in the same report as a simulated one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Message

from pipecycle.report.battery import levels
from pipecycle.report.page import page
from pipecycle.report.payload import battery, gantt
from pipecycle.runs.records import load, read
from pipecycle.schedule.schedule import Schedule
from pipecycle.world.energy import UNIT

from ..shared import read_trace

pytestmark = pytest.mark.flower
Federation = Callable[..., SimpleNamespace]


def fault(client: int, message: Message, now: float) -> str | None:
    order = message.content["pipecycle"]
    return ("late", None, "raise", None, None)[order["k"] % 5] if order["k"] >= 0 and client < 3 else None


@pytest.mark.parametrize("policy", ["pipecycle", "fedavg", "flda"])
def test_a_live_run_opens_in_the_report(federation: Federation, tmp_path: Path, policy: str) -> None:
    out = tmp_path / "run"
    live = federation(tmp_path, policy=policy, out=str(out), harvest="bernoulli:0.7", slots=100, initial=5.0,
                      evaluate_every=25, fault=fault)  # fmt: skip
    record = read(out)
    assert record.schedule == live.schedule == Schedule.load(out / "schedule.npz")
    assert record.ended == "finished"
    assert record.metrics is not None
    assert record.metrics.slot.tolist() == [25, 50, 75, 100]
    about = gantt(record)["about"]
    assert len(about) > 0
    assert any("lost" in one for one in about)
    heat = battery(record)
    assert "reason" not in heat
    assert len(heat["z"]) == live.run.clients
    found = levels(record)
    assert np.array_equal(found.level[-1], live.driver.levels[-1])
    text = page(load([out]), None)
    assert policy in text
    assert "levels cannot" not in text


def test_an_unfinished_run_opens_too(federation: Federation, tmp_path: Path) -> None:
    class Stop(BaseException):
        pass

    def stop(client: int, message: Message, now: float) -> str | None:
        if message.content["pipecycle"]["slot"] > 60:
            raise Stop
        return None

    with pytest.raises(Stop):
        federation(tmp_path, policy="fedavg", out=str(tmp_path / "run"), slots=200, evaluate_every=20, fault=stop)
    record = read(tmp_path / "run")
    assert record.ended is None
    assert record.schedule.slots == 60
    assert "unfinished" in record.state
    assert page(load([tmp_path / "run"]), None)


def test_the_heat_map_shows_what_nodes_reported(federation: Federation, tmp_path: Path) -> None:
    """The server expects nothing, the nodes harvest one unit per slot: levels jump at every report."""
    nodes = [{"partition-id": client, "harvest": "always"} for client in range(3)]
    federation(None, nodes=nodes, clients=3, policy="fedavg", harvest="bernoulli:0.0", initial=5.0, slots=40,
                      out=str(tmp_path / "run"))  # fmt: skip
    shown = np.load(tmp_path / "run/levels.npz")["level"]
    replies = [one for one in read_trace(tmp_path / "run/trace.jsonl") if one["event"] == "reply"]
    assert len(replies) > 5
    for one in replies:
        at, harvested, overflowed, spent, _ = one["report"]
        assert shown[one["slot"], one["client"]] == harvested - overflowed - spent
        assert harvested == 5 * UNIT + (at + 1) * UNIT
