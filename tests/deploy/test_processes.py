"""Real SuperLinks and SuperNodes on loopback: the same bits, nobody admitted who should not be, nobody left behind."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")
psutil = pytest.importorskip("psutil")
pytestmark = pytest.mark.flower

from safetensors.numpy import load_file  # noqa: E402

from pipecycle.commands.live_app import write_app  # noqa: E402
from pipecycle.deploy import RunSettings  # noqa: E402
from pipecycle.deploy.local.certificates import make_authority, make_node_key  # noqa: E402
from pipecycle.deploy.local.federation import Federation  # noqa: E402
from pipecycle.deploy.local.loopback import SWITCHES  # noqa: E402
from pipecycle.deploy.local.processes import Descendants  # noqa: E402
from pipecycle.deploy.local.progress import Tail  # noqa: E402

from .shared import (  # noqa: E402
    BITS,
    in_process,
    read_trace,
    same,
    until,
)


class Watched:
    """Who descends from this test, what they were told, and whom they talk to."""

    def __init__(self, kin: Descendants) -> None:
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
    settings = {**BITS, "clients": 3, "pin-nodes": True, "out": str(home / "run")}
    write_app(home / "app", RunSettings())
    stranger = make_node_key(home / "stranger", 0)
    other = make_authority(home / "other")
    with Federation(home / "federation", tls=True) as federation:
        watched = Watched(federation.descendants)
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

        until(over, lambda: federation.last_words("superlink"))
        verdict = ("", "")
        while not verdict[0].startswith("finished"):  # each question takes a second of a core
            verdict = federation.verdict()
        yield {
            "home": home,
            "settings": settings,
            "verdict": verdict,
            "dead": federation.dead(),
            "logs": {node: federation.log(f"node-{node}").read_text() for node in (7, 8, 9)},
            "nodes": federation.flwr("supernode", "list", "pipecycle")["nodes"],
            "trace": tail.progress,
            "watched": watched,
        }
    assert federation.descendants.look() == set()


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
    pins = [event for event in read_trace(finished["home"] / "run" / "trace.jsonl") if event["event"] == "pin"]
    assert {node for pin in pins for node in pin["nodes"]} == {node["node-id"] for node in online}


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


def test_energy_is_conserved_in_every_ledger(finished: dict[str, Any]) -> None:
    accounts = [json.loads((finished["home"] / "nodes" / f"{node}.json").read_text()) for node in range(3)]
    for account in accounts:
        level = account["harvested"] - account["overflowed"] - account["training"] - account["uploads"]
        assert 0 <= level <= account["capacity"]
        assert account["broken"] == 0
        assert account["training"] == 4 * account["uploads"]
    sessions = sum(account["uploads"] for account in accounts) / 2**20
    assert sessions == 4  # launched in slots 0, 2, 4 and 6
