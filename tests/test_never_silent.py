"""Whoever waits for a command is told what it does, with a terminal and without; Ctrl-C is never a traceback."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipecycle import screen
from tests.commands import PATIENCE, ctrl_c, pipecycle

SMALL = ("--clients", "6", "--slots", "200", "--budget", "300", "--trials", "1", "--device", "cpu", "--workers", "1")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_while_the_command_is_imported(number: signal.Signals, tmp_path: Path) -> None:
    """Python says what it imports: attrs is among the first of what the package needs."""
    command = [sys.executable, "-X", "importtime", "-m", "pipecycle", "plan", "fedavg"]
    running = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tmp_path)
    assert running.stderr is not None
    for line in running.stderr:
        if line.rstrip().endswith("| attr._config") or "attr._" in line:
            running.send_signal(number)
            break
    _, rest = running.communicate(timeout=PATIENCE)
    assert running.returncode == 128 + number
    assert rest.splitlines()[-1] == "pipecycle: stopped; no file is half-written. Run the same command to start again"
    assert "Traceback" not in rest


def test_stopped_when_everything_is_done_but_python_is_still_there() -> None:
    code = (
        "import atexit, os, sys; from pipecycle.commands.cli import main; sys.argv = ['pipecycle', '--version'];"
        "atexit.register(lambda: os.kill(os.getpid(), 2)); main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "")
    assert done.stdout.startswith("pipecycle ")


def test_ctrl_c_is_heard_before_anything_that_takes_time_is_imported() -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", "import pipecycle"], capture_output=True, text=True
    )
    order = [line.rpartition("|")[2].strip() for line in done.stderr.splitlines()]
    assert order.index("pipecycle.starting") < order.index("pathlib") < order.index("numpy")


def test_a_program_that_uses_the_library_keeps_its_own_ctrl_c() -> None:
    code = "import signal, pipecycle; assert signal.getsignal(signal.SIGINT) is signal.default_int_handler"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
def test_the_bar_says_what_it_does_and_lines_and_report_have_one(tmp_path: Path) -> None:
    done = ctrl_c("compare", "fedavg", *SMALL, "--out", "c", cwd=tmp_path, at="writing the report")
    assert done.stdout.startswith("Comparing 1 scheduler in 1 trial: 6 clients, 200 slots, bernoulli:0.5, 300 units, ")
    order = [done.stderr.index(words) for words in ("starting 1 run", "training 1 run", "training the reference lines")]
    assert order == sorted(order)


def test_lines_now_and_then_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(screen, "FIRST", 0.01)
    monkeypatch.setattr(screen, "NEXT", 0.01)
    with screen.progress() as bar:
        task = bar.add_task("counting", total=4)
        bar.update(task, completed=1)
        said = ""
        limit = time.monotonic() + PATIENCE
        while said.count("counting 25 %\n") < 2:
            said += capsys.readouterr().err
            assert time.monotonic() < limit
    after = capsys.readouterr().err
    assert set((said + after).splitlines()) <= {"counting 0 %", "counting 25 %"}


def test_a_run_without_a_policy_asks_for_one(tmp_path: Path) -> None:
    done = pipecycle("run", cwd=tmp_path)
    assert done.returncode == 2
    assert "POLICY: name a scheduler (see `pipecycle policies`), or a --config that does" in done.stderr
