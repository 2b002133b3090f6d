"""Real SuperLinks and SuperNodes on loopback: the same bits, nobody admitted who should not be, nobody left behind.

The federation has lasted for years: its certificate was renewed, and two nodes have other versions of the package."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

pytest.importorskip("flwr")
psutil = pytest.importorskip("psutil")
pytestmark = pytest.mark.flower

from safetensors.numpy import load_file  # noqa: E402

import pipecycle  # noqa: E402
from pipecycle.commands.live_app import write_app  # noqa: E402
from pipecycle.deploy import RunSettings  # noqa: E402
from pipecycle.deploy.local.certificates import make_authority, make_node_key  # noqa: E402
from pipecycle.deploy.local.federation import LOOKS, Federation  # noqa: E402
from pipecycle.deploy.local.loopback import SWITCHES  # noqa: E402
from pipecycle.deploy.local.processes import members  # noqa: E402
from pipecycle.deploy.local.progress import Tail  # noqa: E402
from pipecycle.deploy.wire.protocol import PROTOCOL  # noqa: E402

from .shared import (  # noqa: E402
    BITS,
    PATIENCE,
    in_process,
    read_trace,
    same,
    until,
)

Command = Callable[..., CompletedProcess[str]]
WIRE, SESSION = "deploy/wire/protocol.py", "deploy/node/session.py"


class Watched:
    """The processes of a federation, what they were told, and whom they talk to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.told: dict[Any, dict[str, str]] = {}
        self.names: set[str] = set()
        self.strangers: set[tuple[str, str]] = set()
        self.listening: set[str] = set()

    def look(self) -> None:
        for one in members(self.folder):
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


def installed(home: Path, file: str, line: str, instead: str) -> Path:
    """Another version of the package, which differs in one line; the file that has it."""
    shutil.copytree(Path(pipecycle.__file__).parent, home / "pipecycle", ignore=shutil.ignore_patterns("__pycache__"))
    changed = home / "pipecycle" / file
    text = changed.read_text()
    assert text.count(line) == 1
    changed.write_text(text.replace(line, instead))
    return changed


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """A run with TLS and keys, three nodes and three intruders that claim to be node 0.  Node 1 has a newer version of
    the package and node 2 an older one, until both are upgraded while they run."""
    home = tmp_path_factory.mktemp("live")
    settings = {**BITS, "clients": 3, "pin-nodes": True, "roll-call": PATIENCE, "out": str(home / "run")}
    write_app(home / "app", RunSettings())
    stranger = make_node_key(home / "stranger", 0)
    other = make_authority(home / "other")
    kept = home / "authority.key"
    first = make_authority(home / "federation" / "keys", kept=kept)
    device, before = Path(shutil.copy(first.root, home / "ca.crt")), first.certificate.read_bytes()
    renewed = make_authority(first.folder, kept=kept).certificate.read_bytes()
    newer = installed(home / "newer", WIRE, f"\nPROTOCOL = {PROTOCOL}\n", f"\nPROTOCOL = {PROTOCOL + 98}\n")
    older = installed(home / "older", SESSION, "    reply.content[OURS].update(HELLO)", "    reply.content[OURS]")
    with Federation(home / "federation", tls=True, expected=LOOKS) as federation, pytest.MonkeyPatch.context() as patch:
        watched = Watched(federation.folder)
        federation.start_node(7, {"partition-id": 0}, key=stranger)
        federation.start_node(8, {"partition-id": 0}, root=other.root)
        federation.tls = False
        federation.start_node(9, {"partition-id": 0})
        federation.tls = True
        known = os.environ.get("PYTHONPATH", "")
        for node, versions in enumerate(([], [str(home / "newer")], [str(home / "older")])):
            patch.setenv("PYTHONPATH", os.pathsep.join([*versions, known]))
            ledger = home / "nodes" / f"{node}.json"
            federation.start_node(node, {"partition-id": node, "ledger": str(ledger)}, root=device)
        patch.setenv("PYTHONPATH", known)
        federation.submit(home / "app", settings)
        tail = Tail(home / "run" / "trace.jsonl")

        def words() -> str:
            return f"{tail.progress.warnings} {federation.last_words('superlink')}"

        until(lambda: len(tail.read().warnings) == 2, words)
        noted = sorted(tail.progress.warnings)
        for file in (newer, older):  # in place, as pip does; nodes keep running
            shutil.copy(Path(pipecycle.__file__).parent / file.relative_to(file.parents[3] / "pipecycle"), file)

        def over() -> bool:
            watched.look()
            ended = tail.read().ended is not None and not federation.serving
            return ended or "superlink" in federation.dead()

        until(over, words, every=1.5)  # a look takes a tenth of a second of a core
        verdict = ("", "")
        while not verdict[0].startswith("finished"):  # each question takes a second of a core
            verdict = federation.verdict()
        yield {
            "home": home,
            "settings": settings,
            "verdict": verdict,
            "dead": federation.dead(),
            "logs": {node: federation.log(f"node-{node}").read_text() for node in (0, 7, 8, 9)},
            "nodes": federation.flwr("supernode", "list", "pipecycle")["nodes"],
            "trace": tail.progress,
            "watched": watched,
            "noted": noted,
            "certificates": [before, renewed, first.certificate.read_bytes()],
        }
    assert members(federation.folder) == set()


def test_the_same_bits_as_in_process_and_as_planned_and_trained(
    finished: dict[str, Any], tmp_path: Path, command: Command
) -> None:
    assert finished["verdict"][0] == "finished:completed", finished["verdict"]
    run = finished["home"] / "run"
    live = load_file(run / "model.safetensors")
    assert same(live, in_process(tmp_path / "local", finished["settings"]))
    planned = command("run", "--config", str(run / "config.toml"), "--out", "planned", "--device", "cpu", cwd=tmp_path)
    assert planned.returncode == 0, planned.stderr
    assert same(live, load_file(tmp_path / "planned" / "model.safetensors"))
    assert finished["trace"].version == 2
    initial = in_process(tmp_path / "short", {**finished["settings"], "slots": 1})
    assert not same(live, initial)


def test_who_has_no_key_or_trusts_another_is_refused(finished: dict[str, Any]) -> None:
    logs = finished["logs"]
    assert {name: finished["dead"].get(name) for name in ("node-7", "node-8")} == {"node-7": 1, "node-8": 1}
    assert "Exit Code: 305" in logs[7]
    assert "Failed to activate SuperNode" in logs[7]
    assert "CERTIFICATE_VERIFY_FAILED" in logs[8]
    assert "Connection attempt failed" in logs[9]
    assert "SuperNode ID" in logs[0]
    assert "SuperNode ID" not in logs[7] + logs[8] + logs[9]
    online = [node for node in finished["nodes"] if node["status"] == "online"]
    assert len(online) == 3
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


def test_devices_with_the_first_ca_crt_trust_the_renewed_certificate(finished: dict[str, Any]) -> None:
    before, renewed, served = finished["certificates"]
    assert before != renewed == served
    assert not list(finished["home"].glob("federation/**/authority.key"))


def test_each_side_is_told_which_one_to_upgrade(finished: dict[str, Any]) -> None:
    """The newer node refuses the server, and the server refuses the node that says nothing."""
    by_server, by_node = finished["noted"]
    ours, version = f"(protocol {PROTOCOL})", pipecycle.__version__
    assert f"the server has pipecycle {version} {ours}, the node {version} (protocol {PROTOCOL + 98})" in by_node
    assert by_node.rstrip("'>").endswith(": upgrade the server")
    assert by_server.startswith("an unknown node: protocol: the node's pipecycle is older")
    assert by_server.endswith(": upgrade the node")


def test_a_node_is_let_in_as_soon_as_it_is_upgraded(finished: dict[str, Any]) -> None:
    progress = finished["trace"]
    assert [device.tally["roll-call"] for device in progress.devices.values()] == [1, 1, 1]
    assert set(progress.strangers) == {"lost", "refused"}
    assert {kind for device in progress.devices.values() for kind in device.tally} == {"roll-call", "reply"}
