"""Families of real processes: found, ended, and ended even if nobody is left to do it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr")
psutil = pytest.importorskip("psutil")
pytestmark = pytest.mark.flower

from pipecycle.deploy.local.processes import MARK, end, family, kill_family, members  # noqa: E402

from .shared import until  # noqa: E402

# A parent whose child has a session of its own and starts a grandchild: nobody hears a signal to the group.
PARENT = """
import subprocess, sys, time
child = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', sys.argv[1]]); time.sleep(100)"
grandchild = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(100)"
subprocess.Popen([sys.executable, "-c", child, grandchild], start_new_session=True)
time.sleep(100)
"""


def start(folder: Path | None = None) -> subprocess.Popen[bytes]:
    environment = os.environ if folder is None else {**os.environ, MARK: str(folder)}
    process = subprocess.Popen([sys.executable, "-c", PARENT], env=environment, stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout:
        process.stdout.readline()  # the grandchild ignores signals by now
    return process


def living(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [process for process in processes if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


def test_the_whole_family_ends_also_after_its_parent(tmp_path: Path) -> None:
    process, stranger = start(tmp_path), start(tmp_path / "another")
    relatives = family(process.pid)
    assert len(relatives) == 3
    assert members(tmp_path) == set(relatives)
    process.kill()
    process.wait()
    assert len(living(relatives)) == 2
    assert members(tmp_path) == set(living(relatives))
    end(tmp_path, grace=0.5)
    assert living(relatives) == []
    assert len(living(family(stranger.pid))) == 3
    kill_family(stranger.pid)
    stranger.wait()


def test_a_suspended_process_ends_too(tmp_path: Path) -> None:
    process = start(tmp_path)
    relatives = family(process.pid)
    for one in relatives:
        one.suspend()
    end(tmp_path, grace=1.0)
    assert living(relatives) == []
    process.wait()


def test_a_process_that_hides_its_environment_ends_too(tmp_path: Path) -> None:
    """As Flower's SuperExecs do on Linux, from all but root."""
    hidden = [sys.executable, "-c", "import time; time.sleep(100)"]
    parent = f"import os, subprocess, time; subprocess.Popen({hidden!r}, env={{}}); time.sleep(100)"
    process = subprocess.Popen([sys.executable, "-c", parent], env={**os.environ, MARK: str(tmp_path)})
    until(lambda: len(family(process.pid)) == 2)
    relatives = family(process.pid)
    end(tmp_path, grace=1.0)
    process.wait()
    assert living(relatives) == []


def test_power_off() -> None:
    process = start()
    relatives = family(process.pid)
    kill_family(process.pid)
    process.wait()
    until(lambda: living(relatives) == [])


def test_the_guard_acts_when_its_master_is_killed(tmp_path: Path) -> None:
    master = f"""
import os, subprocess, sys, time
from pathlib import Path
from pipecycle.deploy.local.processes import MARK, start_guard
start_guard(Path({str(tmp_path)!r}))
subprocess.Popen([sys.executable, "-c", {PARENT!r}], env={{**os.environ, MARK: {str(tmp_path)!r}}})
time.sleep(100)
"""
    process = subprocess.Popen([sys.executable, "-c", master])
    until(lambda: len(family(process.pid)) == 5)
    relatives = family(process.pid)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    until(lambda: living(relatives) == [])


# `pipecycle deploy node`, with another program than Flower's.
DEVICE = """
import os, sys
from pipecycle.commands.live_node import _run
node = "import os, time; print(os.getpid(), flush=True); time.sleep(100)"
_run([sys.executable, "-c", node], dict(os.environ))
"""


def test_a_node_ends_with_the_command_that_started_it() -> None:
    """Also if that is killed: a SuperNode that went on would keep the device from being let in again."""
    process = subprocess.Popen([sys.executable, "-c", DEVICE], stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout:
        node = psutil.Process(int(process.stdout.readline()))
    process.kill()
    process.wait()
    until(lambda: living([node]) == [])
