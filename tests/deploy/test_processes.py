"""Real SuperLinks and SuperNodes on loopback: the same bits, nobody admitted who should not be, nobody left behind."""

from __future__ import annotations

import json
import os
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
psutil = pytest.importorskip("psutil")
pytestmark = pytest.mark.flower

from flwr.app import Context, RecordDict  # noqa: E402
from safetensors.numpy import load_file  # noqa: E402

from pipecycle.deploy import RunSettings, client_app, server_app  # noqa: E402
from pipecycle.deploy.certificates import make_authority, make_node_key  # noqa: E402
from pipecycle.deploy.federation import Federation  # noqa: E402
from pipecycle.deploy.init import write_app  # noqa: E402
from pipecycle.deploy.keeper import Kin  # noqa: E402
from pipecycle.deploy.local_grid import LocalGrid  # noqa: E402
from pipecycle.deploy.loopback import SWITCHES  # noqa: E402
from pipecycle.deploy.table import Tail  # noqa: E402

TOGETHER = pytest.mark.xdist_group("one-federation")
BITS = {"model": "lenet", "harvest": "always", "session": 4, "slots": 7, "initial": 5.0, "evaluate-every": 7}
"""Clients that charge in every slot, on a logical clock; lenet is trained alike wherever there is no GPU."""


def in_process(out: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """The weights of the same run within this process."""
    flat = RunSettings.of({**settings, "out": str(out), "resume": False}).flat()
    grid = LocalGrid(client_app(), [{"partition-id": client} for client in range(int(flat["clients"]))], flat)
    server_app()(grid=grid, context=Context(1, 1, {}, RecordDict(), flat))
    return load_file(out / "model.safetensors")


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return a.keys() == b.keys() and all(a[key].tobytes() == b[key].tobytes() for key in a)


def until(condition: Callable[[], object], seconds: float, said: Callable[[], str] = str) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, said()
        time.sleep(0.3)


class Watched:
    """Who descends from this test, what they were told, and whom they talk to."""

    def __init__(self, kin: Kin) -> None:
        self.kin = kin
        self.told: dict[Any, dict[str, str]] = {}
        self.names: set[str] = set()
        self.strangers: set[tuple[str, str]] = set()
        self.listening: set[str] = set()

    def look(self) -> None:
        for one in list(self.kin.look()):
            try:
                name = Path((one.cmdline() or ["?", "?"])[1]).name
                if not name.startswith(("flower-", "flwr")):
                    continue
                self.names.add(name)
                for link in one.net_connections(kind="inet"):
                    ends = [link.laddr, *([link.raddr] if link.raddr else [])]
                    self.listening |= {end.ip for end in ends[:1] if link.status == psutil.CONN_LISTEN}
                    self.strangers |= {(name, end.ip) for end in ends if end.ip not in ("127.0.0.1", "::1")}
                self.told[one] = one.environ()
            except psutil.Error:  # gone meanwhile; or a SuperExec, which hides its memory from all but root
                continue


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """A run with TLS and keys, three nodes and three intruders that claim to be node 0."""
    home = tmp_path_factory.mktemp("live")
    settings = {**BITS, "clients": 3, "out": str(home / "run")}
    write_app(home / "app", RunSettings())
    stranger = make_node_key(home / "stranger", 0)
    other = make_authority(home / "other")
    with Federation(home / "federation", tls=True) as federation:
        watched = Watched(federation.kin)
        federation.start_node(7, {"partition-id": 0}, key=stranger)
        federation.start_node(8, {"partition-id": 0}, root=other.root)
        federation.tls = False
        federation.start_node(9, {"partition-id": 0})
        federation.tls = True
        for node in range(3):
            ledger = home / "nodes" / f"{node}.json"
            federation.start_node(node, {"partition-id": node, "ledger": str(ledger)})
        federation.submit(home / "app", settings)
        tail = Tail(home / "run" / "trace.jsonl")

        def over() -> bool:
            watched.look()
            return tail.read().ended is not None or "superlink" in federation.dead()

        until(over, 120, lambda: federation.last_words("superlink"))
        until(lambda: federation.verdict()[0].startswith("finished"), 30)
        yield {
            "home": home,
            "settings": settings,
            "verdict": federation.verdict(),
            "dead": federation.dead(),
            "logs": {node: federation.log(f"node-{node}").read_text() for node in (7, 8, 9)},
            "nodes": federation.flwr("supernode", "list", "pipecycle")["nodes"],
            "trace": tail.view,
            "watched": watched,
        }
    assert federation.kin.look() == set()


@TOGETHER
def test_the_same_bits_as_in_process_and_as_planned_and_trained(finished: dict[str, Any], tmp_path: Path) -> None:
    assert finished["verdict"][0] == "finished:completed", finished["verdict"]
    run = finished["home"] / "run"
    live = load_file(run / "model.safetensors")
    assert same(live, in_process(tmp_path / "local", finished["settings"]))
    command = ["run", "--config", str(run / "config.toml"), "--out", str(tmp_path / "planned"), "--device", "cpu"]
    subprocess.run([sys.executable, "-m", "pipecycle", *command], check=True, capture_output=True)
    assert same(live, load_file(tmp_path / "planned" / "model.safetensors"))
    assert finished["trace"].version == 2
    initial = in_process(tmp_path / "short", {**finished["settings"], "slots": 1})
    assert not same(live, initial)


@TOGETHER
def test_who_has_no_key_or_trusts_another_is_refused(finished: dict[str, Any]) -> None:
    assert {name: finished["dead"].get(name) for name in ("node-7", "node-8")} == {"node-7": 1, "node-8": 1}
    assert "Exit Code: 305" in finished["logs"][7]
    assert "Failed to activate SuperNode" in finished["logs"][7]
    assert "CERTIFICATE_VERIFY_FAILED" in finished["logs"][8]
    assert "Connection attempt failed" in finished["logs"][9]
    assert "SuperNode ID" not in "".join(finished["logs"].values())
    online = [node for node in finished["nodes"] if node["status"] == "online"]
    assert len(online) == 3
    assert finished["trace"].total["refused"] == finished["trace"].total["lost"] == 0


@TOGETHER
def test_nothing_leaves_the_machine(finished: dict[str, Any]) -> None:
    watched = finished["watched"]
    assert {"flower-superlink", "flower-supernode", "flower-superexec", "flwr-serverapp"} <= watched.names
    assert "flwr-clientapp" in watched.names
    assert watched.listening == {"127.0.0.1"}
    assert watched.strangers == set()
    assert len(watched.told) >= 8
    for told in watched.told.values():
        assert told.items() >= SWITCHES.items()
        assert told["FLWR_HOME"] == str(finished["home"] / "federation" / "home")
        assert not [key for key in told if key.lower() in ("http_proxy", "https_proxy", "all_proxy")]


@TOGETHER
def test_energy_is_conserved_in_every_ledger(finished: dict[str, Any]) -> None:
    accounts = [json.loads((finished["home"] / "nodes" / f"{node}.json").read_text()) for node in range(3)]
    for account in accounts:
        level = account["harvested"] - account["overflowed"] - account["training"] - account["uploads"]
        assert 0 <= level <= account["capacity"]
        assert account["broken"] == 0
        assert account["training"] == 4 * account["uploads"]
    sessions = sum(account["uploads"] for account in accounts) / 2**20
    assert sessions == 4  # launched in slots 0, 2, 4 and 6


def up(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "pipecycle", "deploy", "up", *arguments]
    return subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def options(settings: dict[str, Any]) -> list[str]:
    return [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]


def test_interrupted_twice_and_resumed_to_the_same_bits(tmp_path: Path) -> None:
    settings = {**BITS, "clock": "logical", "slack": 0, "slots": 9}
    process = up("app", "--nodes", "2", "--json", *options(settings), cwd=tmp_path)
    kin = Kin(process.pid)
    tail = Tail(tmp_path / "app" / "run" / "trace.jsonl")

    def first_update() -> bool:
        kin.look()
        return tail.read().aggregations > 0 or process.poll() is not None

    until(lambda: tail.read().groups or process.poll() is not None, 90)
    status = [sys.executable, "-m", "pipecycle", "deploy", "status", "app", "--json"]
    told = json.loads(subprocess.run(status, cwd=tmp_path, check=True, capture_output=True, text=True).stdout)
    assert told["running"]["pid"] == process.pid
    assert told["nodes"]["0"]["doing"] == "training"
    until(first_update, 90)
    assert process.poll() is None
    assert tail.view.ended is None
    process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130, said
    assert "--resume` goes on" in said
    assert kin.look() == set()
    assert not (tmp_path / "app" / "federation" / "running.json").exists()

    again = up("app", "--resume", "--json", cwd=tmp_path)
    answer, said = again.communicate(timeout=120)
    assert again.returncode == 0, said
    assert json.loads(answer)["verdict"] == "finished:completed"
    live = load_file(tmp_path / "app" / "run" / "model.safetensors")
    assert same(live, in_process(tmp_path / "local", {**settings, "clients": 2}))
    report = ["report", "app/run", "--out", "report.html"]
    subprocess.run([sys.executable, "-m", "pipecycle", *report], cwd=tmp_path, check=True, capture_output=True)
    assert (tmp_path / "report.html").stat().st_size > 100_000


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_nobody_outlives_the_command(tmp_path: Path, how: signal.Signals) -> None:
    process = up("app", "--nodes", "2", cwd=tmp_path)
    kin = Kin(process.pid)
    noted = tmp_path / "app" / "federation" / "running.json"
    until(lambda: noted.exists() and len(json.loads(noted.read_text())["nodes"]) == 2, 60)
    time.sleep(2)  # SuperExecs come up, and the keeper sees them
    assert len(kin.look()) >= 6
    os.kill(process.pid, how)
    process.communicate(timeout=30)
    if how == signal.SIGKILL:  # then it is for the keeper to do, a moment later
        until(lambda: kin.look() == set(), 30, lambda: str(kin.known))
    assert process.returncode == (-9 if how == signal.SIGKILL else 130)
    assert kin.look() == set()


def test_a_failed_run_says_why(tmp_path: Path) -> None:
    np.savez(tmp_path / "odd.npz", x_train=np.zeros((4, 4), np.float32), y_train=np.arange(3))
    process = up("app", "--nodes", "1", "--data", "odd.npz", cwd=tmp_path)
    kin = Kin(process.pid)
    answer, said = process.communicate(timeout=90)
    assert process.returncode == 1, said
    assert "finished:failed" in answer
    assert "odd.npz" in answer
    assert (tmp_path / "app" / "federation" / "logs" / "serverapp.log").exists()
    assert kin.look() == set()
