"""The commands as a user gives them, in this process or in one of their own."""

from __future__ import annotations

import contextlib
import io
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from socketserver import BaseServer

import pytest

from pipecycle.commands import cli
from pipecycle.stopping import listening

Done = subprocess.CompletedProcess[str]
Running = subprocess.Popen[str]

PATIENCE = 600.0
"""Seconds after which a test gives up on an event: long, because a machine under load is no failure."""


@contextlib.contextmanager
def working_in(folder: Path | None) -> Iterator[pytest.MonkeyPatch]:
    """Code and commands that run here find a user's modules in `folder`, and leave no trace in this process."""
    known = set(sys.modules)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", ["", *sys.path])
        if folder is not None:
            patch.chdir(folder)
        try:
            yield patch
        finally:
            for name in sys.modules.keys() - known:  # the next folder may have another of the same name
                if folder is not None and str(getattr(sys.modules[name], "__file__", "")).startswith(str(folder)):
                    del sys.modules[name]


@contextlib.contextmanager
def serving(server: BaseServer) -> Iterator[None]:
    """A server in this process, which answers until the block ends."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield
    server.shutdown()
    server.server_close()
    thread.join()


def pipecycle(*arguments: str, cwd: Path | None = None, columns: int = 80) -> Done:
    """The command in this process: nothing heavy is imported again, and a warning is an error."""
    out, error = io.StringIO(), io.StringIO()
    with working_in(cwd) as patch, listening(signal.default_int_handler):
        patch.setattr(sys, "argv", ["pipecycle", *arguments])
        patch.setenv("COLUMNS", str(columns))
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error), pytest.raises(SystemExit) as ended:
            cli.main()
    code = ended.value.code
    assert isinstance(code, int)
    return Done(["pipecycle", *arguments], code, out.getvalue(), error.getvalue())


def process(*arguments: str, cwd: Path, stderr: int = subprocess.PIPE) -> Running:
    """The command as a process that leads a group of its own."""
    command = [sys.executable, "-m", "pipecycle", *arguments]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    running = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=stderr, text=True, cwd=cwd, env=environment, start_new_session=True
    )
    leaders.append(running)
    return running


leaders: list[Running] = []
"""Processes of the present test; conftest.py ends those that a failed test has left, with their groups."""


def until(event: Callable[[], object], running: Running) -> None:
    """Wait for an event that a process brings about before it ends."""
    end = time.monotonic() + PATIENCE
    while not event():
        assert running.poll() is None, running.communicate()
        assert time.monotonic() < end
        time.sleep(0.01)


def end(running: Running, how: signal.Signals) -> tuple[str, str]:
    """Signal the whole group, as a terminal does; what the command has printed."""
    os.killpg(running.pid, how)
    return running.communicate(timeout=PATIENCE)


def ctrl_c(*arguments: str, cwd: Path, at: str) -> Done:
    """The command in a terminal, interrupted as soon as its progress bar says `at`."""
    terminal, stderr = os.openpty()
    running = process(*arguments, cwd=cwd, stderr=stderr)
    os.close(stderr)
    shown = ""
    while select.select([terminal], [], [], PATIENCE)[0]:
        try:
            shown += os.read(terminal, 65536).decode(errors="replace")
        except OSError:  # nobody has the terminal open any more
            break
        if at in shown:
            os.killpg(running.pid, signal.SIGINT)
            at = "\0"  # once
    assert at == "\0", shown
    out, _ = running.communicate(timeout=PATIENCE)
    os.close(terminal)
    return Done(["pipecycle", *arguments], running.returncode, out, re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown))
