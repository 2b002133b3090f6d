"""Families of real processes: found, ended, and ended even if nobody is left to do it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr")
psutil = pytest.importorskip("psutil")
pytestmark = pytest.mark.flower

from pipecycle.deploy.local.processes import Descendants, family, kill_family  # noqa: E402

from .shared import until  # noqa: E402

# A parent whose child has a session of its own and starts a grandchild: nobody hears a signal to the group.
PARENT = """
import subprocess, sys, time
child = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', sys.argv[1]]); time.sleep(100)"
grandchild = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(100)"
subprocess.Popen([sys.executable, "-c", child, grandchild], start_new_session=True)
time.sleep(100)
"""


def start() -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout:
        process.stdout.readline()  # the grandchild ignores signals by now
    return process


def living(members: list[psutil.Process]) -> list[psutil.Process]:
    return [process for process in members if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


def test_the_whole_family_ends_also_after_its_parent() -> None:
    process = start()
    members = family(process.pid)
    kin = Descendants(os.getpid(), awaited={process.pid})
    assert set(members) <= kin.look()
    process.kill()
    process.wait()
    assert len(living(members)) == 2
    kin.end(grace=0.5)
    assert living(members) == []


def test_a_suspended_process_ends_too() -> None:
    process = start()
    members = family(process.pid)
    for one in members:
        one.suspend()
    kin = Descendants(os.getpid(), awaited={process.pid})
    kin.end(grace=1.0)
    assert living(members) == []
    process.wait()


def test_power_off() -> None:
    process = start()
    members = family(process.pid)
    kill_family(process.pid)
    process.wait()
    until(lambda: living(members) == [])


def test_the_keeper_acts_when_its_master_is_killed(tmp_path: Path) -> None:
    master = f"""
import os, subprocess, sys, time
from pipecycle.deploy.local.processes import start_guard
start_guard(os.getpid())
subprocess.Popen([sys.executable, "-c", {PARENT!r}])
time.sleep(100)
"""
    process = subprocess.Popen([sys.executable, "-c", master])
    until(lambda: len(family(process.pid)) == 5)
    time.sleep(1.5)  # the keeper looks twice a second
    members = family(process.pid)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    until(lambda: living(members) == [])


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
