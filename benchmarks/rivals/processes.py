"""Runs contenders as quiet processes, in turns or alone, and leaves none behind.  Linux only (/proc)."""

from __future__ import annotations

import os
import resource
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rivals.work import FOLDER

PATIENCE = 300.0
BIN = Path(sys.executable).parent
QUIET = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.05",
    "RAY_USAGE_STATS_ENABLED": "0",
}
"""One thread, nothing sent anywhere, nothing installed, and Flower polls more often than it does by default."""


class Process:
    """A running contender; `turns` makes the pipes through which it waits for its turn."""

    def __init__(self, name: str, command: tuple[str, ...], folder: Path, *, turns: bool) -> None:
        self.name, self.folder = name, folder
        self.log = folder / f"{name}.log"
        self.pipes = [folder / f"{name}.{end}" for end in ("done", "go")]
        self.ends: list[int] = []
        if turns:
            for pipe in self.pipes:
                os.mkfifo(pipe)
                self.ends.append(os.open(pipe, os.O_RDWR))
        with self.log.open("wb") as output:
            self.started = time.time()
            self.process = subprocess.Popen(
                [str(BIN / command[0]), *command[1:]],
                env=environment(folder),
                cwd=folder,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def go(self) -> None:
        os.write(self.ends[1], b".")

    def wait_round(self) -> None:
        """Wait until the contender reports that its round is done."""
        end = time.monotonic() + PATIENCE
        while not select.select([self.ends[0]], [], [], 1.0)[0]:
            if self.process.poll() is not None or time.monotonic() > end:
                self.fail("does not train")
        os.read(self.ends[0], 1)

    def wait(self) -> tuple[float, float]:
        """Wait until it exits; returns when that was, and the CPU seconds of all children that ended meanwhile."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        try:
            code = self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.fail(f"does not end within {PATIENCE:.0f} s")
        ended = time.time()
        if code:
            self.fail(f"ended with code {code}")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return ended, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime

    def close(self) -> None:
        for end, pipe in zip(self.ends, self.pipes, strict=False):
            os.close(end)
            pipe.unlink()

    def fail(self, why: str) -> None:
        raise SystemExit(f"{self.name} {why}:\n{self.log.read_text(errors='replace')[-3000:]}")


def environment(folder: Path) -> dict[str, str]:
    home = folder / "flower-home"
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text('[superlink.local]\naddress = ":local-in-memory:"\n')
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    http, control = (str(one.getsockname()[1]) for one in sockets)
    for one in sockets:
        one.close()
    return {
        **os.environ,
        **QUIET,
        FOLDER: str(folder),
        "FLWR_HOME": str(home),
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": http,
        "FLWR_LOCAL_CONTROL_API_PORT": control,
        "RAY_TMPDIR": str(folder),
        "PYTHONPATH": str(Path(__file__).resolve().parents[1]),
        "PATH": os.pathsep.join([str(BIN), os.environ.get("PATH", os.defpath)]),
    }


@contextmanager
def swept(folder: Path) -> Iterator[None]:
    """Ends all processes that the contenders left running: `flwr run` detaches a server."""
    try:
        yield
    finally:
        for kind in (signal.SIGTERM, signal.SIGKILL):
            for process in marked(folder):
                try:
                    os.kill(process, kind)
                except ProcessLookupError:
                    continue
            end = time.monotonic() + 10.0
            while marked(folder) and time.monotonic() < end:
                time.sleep(0.05)


def marked(folder: Path) -> list[int]:
    """Processes that have the folder in their environment."""
    mark = f"{FOLDER}={folder}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue
    return found
