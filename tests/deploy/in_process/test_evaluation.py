"""Accuracy from clients: a user's own `@app.evaluate` is asked where the run's settings say so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from pipecycle.deploy import with_battery
from pipecycle.deploy.server.model import foreign
from pipecycle.errors import InputError

from ..local_grid import LocalGrid
from ..shared import stop_after

pytestmark = pytest.mark.flower
Federation = Callable[..., SimpleNamespace]
Ledgers = Callable[[Path], dict[int, dict[str, Any]]]
SETTINGS: dict[str, Any] = {"policy": "fedbuff", "clients": 4, "slots": 40, "session": 4, "evaluate_every": 10}


def scored(client: int, metrics: dict[str, Any]) -> dict[str, Any]:
    """Clients with 10, 20, 30 and 40 samples, of which the model gets 10, 20, 30 and 40 % right."""
    return {"eval_acc": (client + 1) / 10, "eval_loss": float(client), "num-examples": 10 * (client + 1)}


def run(
    federation: Federation, folder: Path, score: Callable[[int, dict[str, Any]], dict[str, Any]] = scored, **over: Any
) -> SimpleNamespace:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return Message(RecordDict({"arrays": message.content["arrays"]}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        assert list(message.content["arrays"]) == ["x"]
        assert set(message.content["config"]) == {"batch-size", "server-round"}
        metrics = score(int(context.node_config["partition-id"]), dict(message.content["config"]))
        return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)

    folder.mkdir(exist_ok=True)
    learning = foreign({"x": np.zeros(3, np.float32)}, None)
    over = {**SETTINGS, "out": str(folder / "run"), **over}
    return federation(folder, app=with_battery(app), learning=learning, **over)


def kinds(live: SimpleNamespace, kind: str) -> list[dict[str, Any]]:
    return [event for event in live.events if event["event"] == kind]


def test_the_mean_is_by_samples_and_costs_nothing(federation: Federation, ledgers: Ledgers, tmp_path: Path) -> None:
    asked = run(federation, tmp_path / "asked", evaluate_clients=4)
    plain = run(federation, tmp_path / "plain")
    rows = asked.driver.model.history.rows
    assert [row.slot for row in rows] == [10, 20, 30, 40]
    for row, event in zip(rows, kinds(asked, "evaluation"), strict=True):
        scores = [one for one in kinds(asked, "score") if one["slot"] == event["slot"]]
        assert len(scores) == event["clients"] >= 1
        weights = [10 * (one["client"] + 1) for one in scores]
        assert row.accuracy == pytest.approx(np.average(weights, weights=weights))
        assert row.loss == pytest.approx(np.average([one["client"] for one in scores], weights=weights))
    assert rows[-1].accuracy == pytest.approx(30.0)  # all four: 100 + 400 + 900 + 1,600 of 100 samples
    books = [
        {client: (one["training"], one["uploads"], one["harvested"]) for client, one in ledgers(folder).items()}
        for folder in (tmp_path / "asked", tmp_path / "plain")
    ]
    assert books[0] == books[1]
    assert asked.schedule.summary() == plain.schedule.summary()
    assert all(np.isnan(row.accuracy) for row in plain.driver.model.history.rows)


def test_so_many_clients_are_asked_and_none_that_trains(federation: Federation, tmp_path: Path) -> None:
    """FedAvg's clients all train at once: an evaluation that falls into a session waits for its end."""
    busy: dict[int, int] = {}

    class Careful(LocalGrid):
        def _push(self, message: Message) -> str:
            node = message.metadata.dst_node_id
            if message.metadata.message_type == "evaluate":
                assert not any(pending.node == node for pending in self._pending.values())
                busy[node] = busy.get(node, 0) + 1
            return super()._push(message)

    made = run(federation, tmp_path / "made", out="", run_it=False)
    grid = Careful(made.grid.app, made.grid.nodes, made.grid.run_config)
    options = {"policy": "fedavg", "policy_settings": '{"epoch": 9}', "evaluate_every": 6, "evaluate_clients": 2}
    live = run(federation, tmp_path / "live", grid=grid, **options)
    evaluated = kinds(live, "evaluation")
    slots = [event["slot"] + 1 for event in evaluated]
    assert any(slot % 6 for slot in slots[:-1])
    assert len(slots) >= 5
    assert {event["clients"] for event in evaluated} == {2}
    assert len(busy) > 2  # not always the same two


WRONG: dict[int, dict[str, Any]] = {
    0: {"eval_acc": 93.0, "num-examples": 5},
    1: {"accuracy": 50.0, "loss": float("nan")},
    2: {"f1": 0.5},
    3: {"accuracy": 50.0, "num-examples": 10**12},
    4: {"accuracy": [50.0]},
    6: {"accuracy": 75.0},
}
"""What client 5 does is worse: it raises."""


def test_what_cannot_be_right_is_left_out_and_nobody_is_blamed(federation: Federation, tmp_path: Path) -> None:
    live = run(federation, tmp_path / "wrong", lambda client, config: WRONG[client], clients=7, evaluate_clients=7)
    assert {row.accuracy for row in live.driver.model.history.rows} == {75.0}  # client 6's alone
    why = {event["client"]: event["why"] for event in kinds(live, "score") if "why" in event}
    assert why[0] == "eval_acc: 93.0, needs a number from 0 to 1"
    assert why[1].startswith("loss: nan")
    assert why[2] == "score: its metrics have none of accuracy, eval_acc, loss, eval_loss"
    assert why[3].startswith("num-examples: 1000000000000")
    assert why[4].startswith("accuracy: [50.0]")
    assert "KeyError(5)" in why[5]
    assert not {"lost", "away", "refused"} & live.driver.counts.keys()


def test_an_app_that_does_not_evaluate(
    federation: Federation, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def nothing(client: int, config: dict[str, Any]) -> dict[str, Any]:
        raise ValueError("No evaluate function registered")

    caplog.set_level("INFO", logger="flwr")
    live = run(federation, tmp_path / "none", nothing, evaluate_clients=4)
    (row,) = live.driver.model.history.rows  # the last, which every run has
    assert np.isnan(row.accuracy)
    assert "no client has evaluated version" in caplog.text
    assert "No evaluate function registered" in caplog.text
    assert "slot 40 of 40: version" in caplog.text
    assert "nan" not in caplog.text


def test_on_the_wall_clock_slots_do_not_wait(federation: Federation, tmp_path: Path) -> None:
    """Scores arrive slots later, belong to the slot in which they were asked for, and a resumed server knows them."""
    settings = {"clock": "wall", "slot_seconds": 0.1, "evaluate_clients": 4, "slack": 2}
    made = run(federation, tmp_path / "made", out="", run_it=False, **settings)
    grid = LocalGrid(made.grid.app, made.grid.nodes, made.grid.run_config, latency=0.35)
    live = run(federation, tmp_path / "live", grid=grid, run_it=False, **settings)

    class Killed(BaseException):
        pass

    stop_after(live.driver, 25, Killed)
    with pytest.raises(Killed):
        live.driver.run()
    rows = live.driver.model.history.rows
    assert [row.slot for row in rows] == [10, 20]
    assert [event["of"] for event in kinds(live, "evaluation")] == [9, 19]
    assert all(event["slot"] > event["of"] for event in kinds(live, "evaluation"))
    again = run(federation, tmp_path / "live", grid=grid, resume=True, **settings)
    assert again.driver.model.history.rows[:2] == rows
    assert [row.slot for row in again.driver.model.history.rows] == [10, 20, 30, 40]


def test_our_own_app_does_not_evaluate_on_nodes(federation: Federation) -> None:
    with pytest.raises(InputError, match="evaluate-clients = 2: needs an app of your own"):
        federation(slots=5, evaluate_clients=2)
