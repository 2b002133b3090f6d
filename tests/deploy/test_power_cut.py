"""A device loses power and comes back, started as the systemd unit starts it; `make flower-chaos`."""

from __future__ import annotations

import configparser
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")
pytest.importorskip("psutil")
pytestmark = [pytest.mark.flower, pytest.mark.chaos]

from pipecycle.commands.live_machines import STATE, write_machines  # noqa: E402
from pipecycle.deploy.local import certificates  # noqa: E402
from pipecycle.deploy.local.certificates import make_node_key  # noqa: E402
from pipecycle.deploy.local.federation import Federation  # noqa: E402
from pipecycle.deploy.local.processes import kill_family  # noqa: E402

from .shared import PATIENCE, until  # noqa: E402

CLOCK = """
import datetime
from pathlib import Path

import flwr.supercore.date

late = datetime.timedelta(seconds=float(Path({path!r}).read_text()))
flwr.supercore.date.now = lambda: datetime.datetime.now(tz=datetime.UTC) + late
"""


class Device:
    """A folder with what a device is given, and the command of its unit."""

    def __init__(self, home: Path, federation: Federation, node: int) -> None:
        self.home, self.log = home, home / "log"
        files = write_machines(home, "systemd", f"127.0.0.1:{federation.port}", node + 1)
        unit = configparser.ConfigParser(interpolation=None)
        unit.read(next(path for path in files if path.name == "pipecycle-node@.service"))
        assert unit["Service"]["Restart"] == "always"
        program, *arguments = shlex.split(unit["Service"]["ExecStart"].replace("%i", str(node)))
        assert program.endswith("/bin/pipecycle")
        self.command = [sys.executable, "-m", "pipecycle", *arguments]
        settings = (home / "machines" / f"node-{node}.toml").read_text().replace(STATE, str(home))
        (home / f"node-{node}.toml").write_text(settings)
        key = make_node_key(home, node)
        federation.flwr("supernode", "register", f"{key}.pub", "pipecycle")
        shutil.copy(federation.authority.root, home / "ca.crt")
        (home / "sitecustomize.py").write_text(CLOCK.format(path=str(home / "clock")))
        self.set_clock(0)

    def set_clock(self, seconds: float) -> None:
        """From its next start on, Flower's clock there is so much fast."""
        (self.home / "clock").write_text(str(seconds))

    def start(self) -> subprocess.Popen[bytes]:
        """The process; those of the device that are left at the end of the test are the federation's to end."""
        with self.log.open("ab") as log:
            path = os.pathsep.join([str(self.home), os.environ.get("PYTHONPATH", "")])
            options: Any = {"cwd": self.home, "env": {**os.environ, "PYTHONPATH": path}}
            return subprocess.Popen(self.command, stdout=log, stderr=subprocess.STDOUT, **options)

    def printed(self, words: str) -> int:
        return self.log.read_text(errors="replace").count(words)


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """With certificates of this machine alone, which have expired."""
    folder = tmp_path_factory.mktemp("live") / "federation"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(certificates, "VALID", timedelta(minutes=-30))
        assert not certificates.make_authority(folder / "keys").lasts
    with Federation(folder, tls=True) as federation:
        yield federation


def test_certificates_of_this_machine_alone_are_made_again(federation: Federation) -> None:
    """The SuperLink counts as started when it answers a client that trusts its certificate."""
    assert federation.authority.lasts


def test_a_device_that_lost_power_is_let_in_again(tmp_path: Path, federation: Federation) -> None:
    device = Device(tmp_path, federation, 0)
    process = device.start()
    until(lambda: device.printed("SuperNode ID") == 1, device.log.read_text)
    kill_family(process.pid)
    process.wait()
    device.set_clock(60)  # it was wrong after the power cut, until the network is there
    process = device.start()
    until(lambda: device.printed("Is this device's clock right?"), device.log.read_text)
    device.set_clock(0)
    until(lambda: device.printed("does not let this node in (code 2004)"), device.log.read_text)
    until(lambda: device.printed("SuperNode ID") == 2, device.log.read_text)
    nodes = federation.flwr("supernode", "list", "pipecycle")["nodes"]
    assert [node["status"] for node in nodes] == ["online"]
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 130
    nodes = federation.flwr("supernode", "list", "pipecycle")["nodes"]
    assert [node["status"] for node in nodes] != ["online"]  # it has signed off, so it can start at once
