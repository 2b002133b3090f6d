"""Flower's own simulation engine: the same bits, and a user's ClientApp under a policy."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr")
pytest.importorskip("ray")
pytest.importorskip("psutil")

import psutil

from pipecycle.deploy.local.loopback import environment

from ..shared import until

pytestmark = pytest.mark.flower
Federation = Callable[..., SimpleNamespace]
Watch = Callable[[Any, float], set[str]]

OURS = """
import json, sys
from flwr.simulation import run_simulation
from pipecycle.deploy import client_app, server_app

settings = json.loads(sys.argv[1])
run_simulation(
    server_app(settings), client_app(settings), settings["clients"],
    backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0}, "init_args": {"num_cpus": 2}},
)
"""


def simulate(script: str, tmp_path: Path, on_loopback: Watch, settings: dict[str, Any] | None = None) -> None:
    """Run it to its end, which it leaves nobody behind at."""
    (tmp_path / "script.py").write_text(script)
    with (tmp_path / "log").open("w") as log:
        process = psutil.Popen(
            [sys.executable, "script.py", json.dumps(settings or {})],
            cwd=tmp_path,
            env=environment(tmp_path / "flwr"),
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    named = on_loopback(process, 150)
    assert process.returncode == 0, (tmp_path / "log").read_text()[-3000:]
    assert {"gcs_server", "raylet"} <= named  # the watch has seen something
    until(lambda: not left(tmp_path), lambda: f"left behind: {left(tmp_path)}", every=0.2)


def left(tmp_path: Path) -> list[str]:
    """Processes of this simulation, whoever is their parent by now."""
    found = []
    for one in psutil.process_iter():
        try:
            if one.environ().get("FLWR_HOME") == str(tmp_path / "flwr") and one.status() != psutil.STATUS_ZOMBIE:
                found.append(one.name())
        except psutil.Error:
            continue
    return found


def test_the_simulation_ends_with_the_same_bits(federation: Federation, tmp_path: Path, on_loopback: Watch) -> None:
    settings = {"policy": "pipecycle", "clients": 4, "slots": 40, "session": 4, "harvest": "bernoulli:0.8",
                "initial": 4.0, "evaluate-every": 20}  # fmt: skip
    simulate(OURS, tmp_path, on_loopback, {**settings, "out": str(tmp_path / "simulated")})
    local = federation(None, **settings, out=str(tmp_path / "local"))
    assert local.schedule.ancestry.events > 3
    for name in ("model.safetensors", "schedule.npz", "metrics.csv"):
        assert (tmp_path / "simulated" / name).read_bytes() == (tmp_path / "local" / name).read_bytes(), name


def test_anybodys_client_app_is_scheduled_by_our_policies(tmp_path: Path, on_loopback: Watch) -> None:
    """The page's own example, which knows nothing of batteries, slots or policies, and with its clients' evaluation."""
    from pipecycle.world.energy import UNIT

    from ..shared import read_trace

    page = (Path(__file__).parents[3] / "docs/clientapp.md").read_text()
    whole, evaluate = re.findall(r"^```py\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    script = whole.replace("settings = {", f'{evaluate}\n\nsettings = {{\n    "evaluate-clients": 2,')
    simulate(script, tmp_path, on_loopback)
    events = read_trace(tmp_path / "middle/trace.jsonl")
    replies = [event for event in events if event["event"] == "reply"]
    losses = [event["loss"] for event in events if event["event"] == "evaluation"]
    assert len(replies) > 10
    assert losses[-1] < losses[0] / 5
    assert {event["clients"] for event in events if event["event"] == "evaluation"} <= {1, 2}
    assert not [event for event in events if event["event"] == "score" and "why" in event]
    last: dict[int, list[int]] = {}
    for one in replies:
        at, harvested, overflowed, spent, capacity = one["report"]
        assert 0 <= harvested - overflowed - spent <= capacity
        last[one["client"]] = [at, spent]
    for client, (_, spent) in last.items():
        sessions = sum(one["client"] == client for one in replies)
        assert spent == sessions * 6 * UNIT
