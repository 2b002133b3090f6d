from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

Watch = Callable[[Any, float], set[str]]

# Tests run side by side, one on each core: a second thread in each would only be in the way of the others.
os.environ["OMP_NUM_THREADS"] = "1"

# A shell's background job ignores Ctrl-C, and so would the commands that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m slow` and the like, modules without such a test are not imported: that would take longer than some."""
    mark = config.getoption("markexpr")
    if mark in ("slow", "chaos", "browser") and collection_path.suffix == ".py":
        return f"mark.{mark}" not in collection_path.read_text() or None
    return None


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """A test that gives torch more threads does not leave them to those that follow."""
    yield
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


@pytest.fixture(autouse=True)
def _nobody_lives_on() -> Iterator[None]:
    """Processes that a failed test has not ended."""
    yield
    leaders = sys.modules["tests.commands"].leaders if "tests.commands" in sys.modules else []
    while leaders:
        leader = leaders.pop()
        if leader.poll() is None:
            os.killpg(leader.pid, signal.SIGKILL)
            leader.communicate()


@pytest.fixture
def on_loopback() -> Watch:
    """Waits for a process to end; meanwhile neither it nor its children may listen, or speak to anybody, outside this
    machine.  Tells who has had a socket at all."""
    psutil = pytest.importorskip("psutil")

    def watch(process: Any, seconds: float) -> set[str]:
        found = set[tuple[str, str]]()
        end = time.monotonic() + max(seconds, 600.0)  # a machine under load is no failure
        try:
            while process.poll() is None:
                assert time.monotonic() < end
                found |= sockets(process)
                time.sleep(0.4)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(30)
        assert [one for one in found if not ip_address(one[1].removeprefix("::ffff:")).is_loopback] == []
        return {name for name, _ in found}

    def sockets(process: Any) -> set[tuple[str, str]]:
        found = set()
        for one in [process, *process.children(recursive=True)]:
            try:
                name = one.name()
                for socket in one.net_connections("inet"):
                    found |= {(name, end.ip) for end in (socket.laddr, socket.raddr) if end}
            except psutil.Error:  # it has just ended
                continue
        return found

    return watch
