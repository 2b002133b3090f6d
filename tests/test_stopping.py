"""How the program is stopped by a signal."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pipecycle.stopping import Stop, Terminated
from tests.commands import PATIENCE

SWALLOWS = """
import os, signal, time
try:
    os.kill(os.getpid(), signal.{name})
    time.sleep(0.2)
except BaseException:
    pass
"""
PROGRAM = """
import time
from pipecycle.stopping import Terminated, obey_signals
obey_signals()
try:
    import swallows
    time.sleep(30)
except (KeyboardInterrupt, Terminated) as error:
    print(type(error).__name__)
"""


@pytest.mark.parametrize(("name", "expected"), [("SIGINT", "KeyboardInterrupt"), ("SIGTERM", "Terminated")])
def test_an_import_that_swallows_exceptions_does_not_swallow_a_signal(tmp_path: Path, name: str, expected: str) -> None:
    (tmp_path / "swallows.py").write_text(SWALLOWS.format(name=name))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE
    )
    assert (done.stdout, done.stderr) == (f"{expected}\n", "")


LISTENS = """
import signal, time
from pipecycle.stopping import listening, obey_signals
obey_signals()
heard = []
import swallows
with listening(lambda number, frame: heard.append(number)):
    end = time.monotonic() + 30
    while not heard and time.monotonic() < end:
        time.sleep(0.01)
print(*heard)
"""


def test_a_signal_during_an_import_goes_to_whoever_listens_after_it(tmp_path: Path) -> None:
    """Not through a process that is just being started, which would then be nobody's."""
    (tmp_path / "swallows.py").write_text(SWALLOWS.format(name="SIGINT").replace("time.sleep(0.2)", ""))
    done = subprocess.run(
        [sys.executable, "-c", LISTENS], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE
    )
    assert (done.stdout, done.stderr) == (f"{signal.SIGINT:d}\n", "")


@pytest.mark.parametrize(("number", "expected"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)])
def test_a_second_signal_does_not_wait_and_says_which_it_was(number: int, expected: type[BaseException]) -> None:
    with Stop.watched() as stop:
        signal.raise_signal(number)
        assert stop.asked == number
        with pytest.raises(expected):
            signal.raise_signal(number)


TWICE = """
import signal, sys
from pipecycle.commands import cli

def stopped(*_):
    signal.raise_signal(signal.SIGTERM)  # the second comes while the command finds words for the first
    return 130

cli._command = lambda: lambda *_, **__: signal.raise_signal(signal.SIGINT)
cli._exit_code = stopped
cli.main(["policies"])
"""


def test_two_signals_at_once_end_with_one_sentence() -> None:
    done = subprocess.run([sys.executable, "-c", TWICE], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 143
    assert done.stderr.count("pipecycle: stopped;") == 1
    assert done.stderr.count("\n") == 1
