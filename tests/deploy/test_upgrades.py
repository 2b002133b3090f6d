"""A federation that lasts: a renewed certificate, and nodes of other versions, which are upgraded while they run."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")
pytest.importorskip("psutil")
pytestmark = pytest.mark.flower

import pipecycle  # noqa: E402
from pipecycle.commands.live_app import write_app  # noqa: E402
from pipecycle.deploy import RunSettings  # noqa: E402
from pipecycle.deploy.local import certificates  # noqa: E402
from pipecycle.deploy.local.certificates import make_authority  # noqa: E402
from pipecycle.deploy.local.federation import Federation  # noqa: E402
from pipecycle.deploy.local.progress import Tail  # noqa: E402
from pipecycle.deploy.wire.protocol import PROTOCOL  # noqa: E402

from .shared import until  # noqa: E402

PATIENCE = 600
WIRE, SESSION = "deploy/wire/protocol.py", "deploy/node/session.py"


def installed(home: Path, file: str, line: str, instead: str) -> Path:
    """Another version of the package, which differs in one line; the file that has it."""
    shutil.copytree(Path(pipecycle.__file__).parent, home / "pipecycle", ignore=shutil.ignore_patterns("__pycache__"))
    changed = home / "pipecycle" / file
    text = changed.read_text()
    assert text.count(line) == 1
    changed.write_text(text.replace(line, instead))
    return changed


@pytest.fixture(scope="module")
def upgraded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    home = tmp_path_factory.mktemp("years")
    folder, kept = home / "federation" / "keys", home / "authority.key"
    first = make_authority(folder, kept=kept)
    device, before = Path(shutil.copy(first.root, home / "ca.crt")), first.certificate.read_bytes()
    make_authority(folder, kept=kept)
    newer = installed(home / "newer", WIRE, f"\nPROTOCOL = {PROTOCOL}\n", f"\nPROTOCOL = {PROTOCOL + 98}\n")
    older = installed(home / "older", SESSION, "    reply.content[OURS].update(HELLO)", "    reply.content[OURS]")
    write_app(home / "app", RunSettings())
    with Federation(home / "federation", tls=True) as federation, pytest.MonkeyPatch.context() as patch:
        known = os.environ.get("PYTHONPATH", "")
        for node, code in enumerate((home / "newer", home / "older")):
            patch.setenv("PYTHONPATH", os.pathsep.join([str(code), known]))
            federation.start_node(node, {"partition-id": node}, root=device)
        patch.setenv("PYTHONPATH", known)
        federation.submit(home / "app", {"clients": 2, "roll-call": float(PATIENCE), "out": str(home / "run")})
        tail = Tail(home / "run" / "trace.jsonl")

        def words() -> str:
            return f"{tail.progress.warnings} {federation.last_words('superlink')}"

        until(lambda: len(tail.read().warnings) == 2, words)
        noted = sorted(tail.progress.warnings)
        for file in (newer, older):  # in place, as pip does; nodes keep running
            shutil.copy(Path(pipecycle.__file__).parent / file.relative_to(file.parents[3] / "pipecycle"), file)
        until(lambda: {device.last for device in tail.read().devices.values()} <= {"present", "training"}, words)
        yield {"home": home, "before": before, "noted": noted, "progress": tail.progress}


def test_devices_with_the_first_ca_crt_trust_the_renewed_certificate(upgraded: dict[str, Any]) -> None:
    keys = upgraded["home"] / "federation" / "keys"
    assert (keys / "server.crt").read_bytes() != upgraded["before"]
    assert not list(upgraded["home"].glob("federation/**/authority.key"))
    assert "SuperNode ID" in (upgraded["home"] / "federation" / "logs" / "node-0.log").read_text()


def test_each_side_is_told_which_one_to_upgrade(upgraded: dict[str, Any]) -> None:
    """The newer node refuses the server, and the server refuses the node that says nothing."""
    by_server, by_node = upgraded["noted"]
    ours, version = f"(protocol {PROTOCOL})", pipecycle.__version__
    assert f"the server has pipecycle {version} {ours}, the node {version} (protocol {PROTOCOL + 98})" in by_node
    assert by_node.rstrip("'>").endswith(": upgrade the server")
    assert by_server.startswith("an unknown node: protocol: the node's pipecycle is older")
    assert by_server.endswith(": upgrade the node")


def test_a_node_is_let_in_as_soon_as_it_is_upgraded(upgraded: dict[str, Any]) -> None:
    progress = upgraded["progress"]
    assert [device.tally["roll-call"] for device in progress.devices.values()] == [1, 1]
    assert set(progress.strangers) == {"lost", "refused"}


def test_certificates_of_this_machine_alone_are_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The SuperLink counts as started when it answers a client that trusts its certificate."""
    monkeypatch.setattr(certificates, "VALID", timedelta(minutes=-30))
    expired = make_authority(tmp_path / "keys")
    monkeypatch.undo()
    assert not expired.lasts
    with Federation(tmp_path, tls=True) as federation:
        assert federation.authority.lasts
