"""A user's own Flower app, with keys of its own, a counter among its weights, a count of its steps and an evaluation:
`deploy up`, watched while it runs."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("flwr")
pytest.importorskip("psutil")
pytestmark = pytest.mark.flower

from safetensors.numpy import load_file  # noqa: E402

from pipecycle.world.energy import UNIT  # noqa: E402

from .in_process.test_monitoring import one, parse, read_model  # noqa: E402
from .shared import PATIENCE, read_trace  # noqa: E402

Deploy = Callable[..., subprocess.CompletedProcess[str]]
PROJECT = """
[project]
name = "mine"
version = "0.1.0"
dependencies = []

[tool.flwr.app]
publisher = "me"
fab-include = ["mine.py"]

[tool.flwr.app.components]
serverapp = "mine:server"
clientapp = "mine:client"

[tool.flwr.app.config]
device = "cuda:7"
partition = "by-street"
data = "/nowhere"
"""

APP = """
import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from pipecycle.deploy import server_app, with_battery

app = ClientApp()


@app.train()
def train(message, context):
    assert context.run_config["device"] == "cuda:7"
    config = message.content["config"]
    arrays = {name: array.numpy().copy() for name, array in message.content["arrays"].items()}
    config["steps-done"] = 0
    if context.node_config["partition-id"] == 1:
        raise OSError("the camera is unplugged")
    for _ in range(2):
        arrays["x"] -= np.float32(config["lr"]) * (arrays["x"] - 1)
        arrays["seen"] += 1
        config["steps-done"] += 1
    answer = {"arrays": ArrayRecord({name: Array(value) for name, value in arrays.items()})}
    answer["metrics"] = MetricRecord({"num-examples": 8})
    return Message(RecordDict(answer), reply_to=message)


@app.evaluate()
def evaluate(message, context):
    loss = float(((message.content["arrays"]["x"].numpy() - 1) ** 2).sum())
    metrics = {"eval_loss": loss, "eval_acc": 0.25, "num-examples": 8}
    return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)


client = with_battery(app)
server = server_app(initial=lambda: {"x": np.zeros(3, np.float32), "seen": np.zeros((), np.int64)})
"""


def watched(home: Path, *arguments: str) -> tuple[int, str, list[dict[str, str]]]:
    """`deploy up`, with the exit code, the log and what the served model's file said of itself while it ran."""
    command = [sys.executable, "-m", "pipecycle", "deploy", "up", home.name, *arguments]
    seen: list[dict[str, str]] = []
    with (home.parent / "up.log").open("w") as log:
        process = subprocess.Popen(command, cwd=home.parent, stdout=log, stderr=subprocess.STDOUT)
    end = time.monotonic() + PATIENCE
    try:
        while process.poll() is None:
            assert time.monotonic() < end, (home.parent / "up.log").read_text()
            if (home / "run" / "metrics.prom").exists():  # the model is written first
                parse((home / "run" / "metrics.prom").read_text())
                arrays, metadata = read_model((home / "run" / "model.safetensors").read_bytes())
                assert {name: value.shape for name, value in arrays.items()} == {"x": (3,), "seen": ()}
                seen.append(metadata)
            time.sleep(0.1)
    finally:
        process.terminate()
        process.wait()
    return process.returncode, (home.parent / "up.log").read_text(), seen


def test_it_is_scheduled_as_it_is(tmp_path: Path, deploy: Deploy) -> None:
    home = tmp_path / "my app"
    home.mkdir()
    (home / "pyproject.toml").write_text(PROJECT)
    (home / "mine.py").write_text(APP)
    lacking = deploy("up", "my app", cwd=tmp_path)
    assert lacking.returncode == 2
    assert "`pipecycle deploy init 'my app'` adds them" in lacking.stderr
    settings = {"clock": "logical", "slack": 0, "session": 4, "slots": 5, "lr": 0.5, "harvest": "always"}
    options = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    options += ["--nodes", "2", "--policy", "fedavg", "--set", "epoch=5"]
    made = deploy("init", "my app", *options, cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    assert "schedules 2 nodes; its settings are in" in made.stdout  # what it learns is its own affair
    assert 'partition = "by-street"' in (home / "pyproject.toml").read_text()
    code, said, seen = watched(home, "--json", "--set", "evaluate-every=5", "--set", "evaluate-clients=1")
    assert code == 0, said
    model = load_file(home / "run" / "model.safetensors")
    sessions = int(model["seen"]) // 2
    assert sessions >= 1
    assert model["seen"].dtype == "int64"
    books = [json.loads((home / "federation" / "nodes" / str(node) / "ledger.json").read_text()) for node in range(2)]
    uploads = books[0]["uploads"] // UNIT
    assert books[0]["training"] == 2 * UNIT * uploads > 0  # two steps of four, as it counted
    assert books[1]["training"] == books[1]["uploads"] == 0  # it failed before its first step
    assert "evaluate-every = 5" in (home / "federation" / "run.toml").read_text()
    log = "".join(path.read_text() for path in (home / "federation" / "logs").iterdir())
    assert "slot 5 of 5: version" in log
    evaluations = [event for event in read_trace(home / "run" / "trace.jsonl") if event["event"] == "evaluation"]
    assert [event["accuracy"] for event in evaluations] == [25.0] * len(evaluations)
    assert evaluations[-1]["loss"] == pytest.approx(float(((model["x"] - 1) ** 2).sum()))
    versions = [int(metadata["version"]) for metadata in seen]
    assert versions[0] == 0
    assert versions == sorted(versions)
    samples = parse((home / "run" / "metrics.prom").read_text())
    assert one(samples, "run_ended") == 1
    assert one(samples, "model_accuracy_ratio") == 0.25
    assert one(samples, "nodes_known") == 2
    spent = sum(samples["pipecycle_energy_spent_units"].values())
    assert spent == sum(book["training"] + book["uploads"] for book in books) / UNIT
