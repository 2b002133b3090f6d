"""`pipecycle deploy up` as a user runs it: interrupted, killed, failed, resumed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")
pytest.importorskip("psutil")
pytestmark = pytest.mark.flower

from safetensors.numpy import load_file  # noqa: E402

from pipecycle.commands.live_up import Site, StartOptions, _watch  # noqa: E402
from pipecycle.deploy.local.federation import Federation  # noqa: E402
from pipecycle.deploy.local.loopback import Failed  # noqa: E402
from pipecycle.deploy.local.processes import members  # noqa: E402
from pipecycle.deploy.local.progress import Tail  # noqa: E402
from pipecycle.errors import InputError  # noqa: E402
from pipecycle.world.energy import UNIT  # noqa: E402

from .shared import (  # noqa: E402
    BITS,
    PATIENCE,
    in_process,
    read_trace,
    same,
    until,
)

Command = Callable[..., subprocess.CompletedProcess[str]]
Up = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    """The command in the test's folder; whatever becomes of the test, it does not stay."""
    started = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "pipecycle", "deploy", "up", *arguments]
        process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def options(settings: dict[str, Any]) -> list[str]:
    return [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]


@pytest.mark.chaos
def test_interrupted_twice_and_resumed_to_the_same_bits(tmp_path: Path, up: Up, command: Command) -> None:
    settings = {**BITS, "clock": "logical", "slack": 0, "slots": 8, "initial": 40.0}  # sessions may be paid twice
    process = up("app", "--nodes", "2", "--tls", "--node", "capacity=60", "--json", *options(settings))
    folder = tmp_path / "app" / "federation"
    tail = Tail(tmp_path / "app" / "run" / "trace.jsonl")

    def first_update() -> bool:
        return tail.read().aggregations > 0 or process.poll() is not None

    until(lambda: any(0 in group for group in tail.read().groups) or process.poll() is not None)
    told = json.loads(command("deploy", "status", "app", "--json", cwd=tmp_path).stdout)
    assert told["running"]["pid"] == process.pid
    assert told["nodes"]["0"]["doing"] == "training"
    until(first_update)
    assert process.poll() is None
    assert tail.progress.ended is None
    process.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, said
    assert "--resume` continues" in said
    assert members(folder) == set()
    assert not (tmp_path / "app" / "federation" / "running.json").exists()

    # Who goes on need not say again how the nodes were started, and cannot say something else.
    sentence = "--node capacity=50.0: the run was started with 60.0"
    other = up("app", "--resume", "--node", "capacity=50")
    _, said = other.communicate(timeout=PATIENCE)
    assert (other.returncode, said.strip()) == (2, f"pipecycle: {sentence}")
    for node in range(2):
        (tmp_path / "app" / "federation" / "nodes" / str(node) / "node.toml").unlink()
    again = up("app", "--resume", "--json")
    answer, said = again.communicate(timeout=PATIENCE)
    assert again.returncode == 0, said
    assert "with TLS" in said
    assert "with registered keys" in said
    for node in range(2):
        told = (tmp_path / "app" / "federation" / "nodes" / str(node) / "node.toml").read_text()
        assert "capacity = 60.0" in told
        ledger = json.loads((tmp_path / "app" / "federation" / "nodes" / str(node) / "ledger.json").read_text())
        assert ledger["capacity"] == 60 * UNIT
    assert json.loads(answer)["verdict"] == "finished:completed"
    live = load_file(tmp_path / "app" / "run" / "model.safetensors")
    assert same(live, in_process(tmp_path / "local", {**settings, "clients": 2}))
    # Another SuperLink has given the nodes other ids, so clients are pinned to them anew.
    trace = read_trace(tmp_path / "app" / "run" / "trace.jsonl")
    pins = [event for event in trace if event["event"] == "pin"]
    assert any("anew" in event for event in pins)
    assert len({node for event in pins for node in event["nodes"]}) == 4
    assert not [event for event in trace if event["event"] == "refused"]
    assert command("report", "app/run", "--out", "report.html", cwd=tmp_path).returncode == 0
    assert (tmp_path / "report.html").stat().st_size > 100_000


def test_nobody_outlives_the_command(tmp_path: Path, up: Up) -> None:
    process = up("app", "--nodes", "1")
    folder = tmp_path / "app" / "federation"
    noted = tmp_path / "app" / "federation" / "running.json"
    until(lambda: noted.exists() and json.loads(noted.read_text())["nodes"])
    until(lambda: len(members(folder)) >= 4)  # SuperLink, node and their SuperExecs
    process.kill()
    process.communicate(timeout=PATIENCE)
    assert process.returncode == -signal.SIGKILL
    until(lambda: members(folder) == set(), lambda: str(members(folder)))  # by the guard, a moment later


def test_a_failed_run_says_why(tmp_path: Path, up: Up) -> None:
    np.savez(tmp_path / "odd.npz", x_train=np.zeros((4, 4), np.float32), y_train=np.arange(3))
    process = up("app", "--nodes", "1", "--data", "odd.npz")
    folder = tmp_path / "app" / "federation"
    answer, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1, said
    assert "finished:failed" in answer
    assert "odd.npz" in answer
    assert (tmp_path / "app" / "federation" / "logs" / "serverapp.log").exists()
    assert members(folder) == set()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--node", "battery=fleet:none.toml"], "fleet none.toml: there is no such file"),
        (["--set", "clock=logical", "--node", "battery=machine"], "needs a run with clock = wall"),
        (["--harvest", "csv:none.csv"], "none.csv: cannot be read"),
        (["--set", "out=/tmp/elsewhere"], "--set out=/tmp/elsewhere: is set for you"),
        (["--resume"], "live/run: holds no run to resume"),
    ],
)
def test_a_mistake_writes_nothing(tmp_path: Path, command: Command, arguments: list[str], sentence: str) -> None:
    done = command("deploy", "up", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert [*tmp_path.iterdir()] == []


def test_how_nodes_were_started_is_kept(tmp_path: Path) -> None:
    site, begun = Site(tmp_path), StartOptions(True, {"battery": 'gauge:/run/a "b"', "capacity": 60.0})
    site.federation.mkdir()
    site.options_file.write_text(begun.text())
    assert site.start_options(StartOptions(), resume=True) == begun
    assert site.start_options(StartOptions(True, {"capacity": 60.0}), resume=True) == begun
    with pytest.raises(InputError, match=r"--node pace=0.5: the run was started with no pace"):
        site.start_options(StartOptions(node={"pace": 0.5}), resume=True)
    assert site.start_options(StartOptions(), resume=False) == StartOptions()
    site.options_file.write_text(StartOptions().text())
    assert site.start_options(StartOptions(), resume=True) == StartOptions()
    with pytest.raises(InputError, match=r"--tls: the run was started without it"):
        site.start_options(StartOptions(tls=True), resume=True)


def test_a_question_without_an_answer_ends_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asking the SuperLink may fail while it is busy; only when it fails again and again something is wrong."""
    monkeypatch.setattr("pipecycle.commands.live_up.ASK", 0.0)
    monkeypatch.setattr("pipecycle.commands.live_up.time.sleep", lambda seconds: None)
    federation, said = Federation(tmp_path), [True, False, True, True, True, True, False]

    def verdict(run: str | None = None) -> tuple[str, str]:
        if said.pop(0):
            raise Failed("busy")
        return ("running", "") if said else ("finished:completed", "")

    monkeypatch.setattr(Federation, "verdict", lambda self: verdict())
    monkeypatch.setattr(Federation, "keep_server_log", lambda self: tmp_path)
    tail = Tail(tmp_path / "trace.jsonl")
    assert _watch(federation, tail, lambda progress, one: None).completed
    said += [True] * 9
    with pytest.raises(Failed, match="busy"):
        _watch(federation, tail, lambda progress, one: None)
    assert len(said) == 4
