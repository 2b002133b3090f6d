"""Sweeps, comparisons and reproductions that are killed: nobody lives on, and the results are those of a quiet run."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pandas
import pytest

from pipecycle.runs.parquet import collect
from pipecycle.runs.run import train_folders
from pipecycle.runs.sweep import read_sweep
from tests.commands import PATIENCE, leaders, pipecycle

psutil = pytest.importorskip("psutil")

FILE = """
[base.world]
clients = 10
slots = 200
session = 5
[base.train]
model = "lenet"
[base.look]
every = 50
[matrix]
policy = ["fedavg", "pipecycle"]
"""
PLACE = ("--device", "cpu")
COMMANDS = {
    "sweep": ("sweep", "sweep.toml", "--save-every", "0.1", *PLACE),
    "reproduce": ("reproduce", "--file", "paper.toml", "--trials", "2", "--save-every", "0.1", *PLACE),
    "compare": (
        *("compare", "fedavg", "pipecycle", "--trials", "2", "--clients", "10", "--slots", "120", "--budget", "1e6"),
        *("--model", "lenet", *PLACE),
    ),
}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "sweep.toml").write_text(f"trials = 2\n{FILE}")
    (tmp_path / "paper.toml").write_text(FILE)
    return tmp_path


def start(command: str, home: Path, out: str, *more: str) -> subprocess.Popen[str]:
    line = [sys.executable, "-m", "pipecycle", *COMMANDS[command], "--workers", "2", "--out", out, *more]
    running = subprocess.Popen(
        line, cwd=home, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    leaders.append(running)
    return running


def undisturbed(command: str, home: Path, out: str) -> None:
    """To its end, in this process; one worker, because a second one imports torch once more."""
    done = pipecycle(*COMMANDS[command], "--workers", "1", "--out", out, cwd=home)
    assert done.returncode == 0, done.stderr


def until(there: Callable[[], Any], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + PATIENCE
    while process.poll() is None and not there():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def family(process: subprocess.Popen[str]) -> list[Any]:
    """The process and all its descendants, who stay in its session when it is gone."""
    found = []
    for one in psutil.process_iter():
        try:
            if os.getsid(one.pid) == process.pid and one.status() != psutil.STATUS_ZOMBIE:
                found.append(one)
        except (ProcessLookupError, psutil.Error):
            continue
    return found


def nobody_left(process: subprocess.Popen[str]) -> bool:
    deadline = time.monotonic() + PATIENCE
    while family(process):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def checkpoints(folder: Path) -> dict[Path, int]:
    try:
        return {path: path.stat().st_mtime_ns for path in folder.rglob("state.safetensors")}
    except FileNotFoundError:  # a run has just finished
        return {}


def results(folder: Path) -> pandas.DataFrame:
    litter = [path for path in folder.rglob(".*") if path.name.endswith((".lock", ".partial"))]
    assert litter == []
    return pandas.read_parquet(folder / "results.parquet")


@pytest.mark.slow
def test_killed_terminated_and_shared_a_sweep_ends_the_same(home: Path) -> None:
    (home / "sweep.toml").write_text(f"trials = 2\n{FILE}".replace("200", "280"))  # long enough to be stopped twice
    killed = start("sweep", home, "cut")
    until(lambda: checkpoints(home / "cut"), killed)
    killed.kill()
    killed.communicate(timeout=PATIENCE)
    assert nobody_left(killed)
    assert not (home / "cut" / "results.parquet").exists()

    before = checkpoints(home / "cut")
    terminated = start("sweep", home, "cut")
    until(lambda: set(checkpoints(home / "cut").items()) - set(before.items()), terminated)
    terminated.terminate()  # the parent alone, as `docker stop` does it
    said, _ = terminated.communicate(timeout=PATIENCE)
    assert terminated.returncode == 143
    assert said.splitlines()[-1] == "Stopped; run the same command again to resume."
    assert nobody_left(terminated)

    twins = [start("sweep", home, "cut", "--workers", "1") for _ in range(2)]
    for twin in twins:
        said, _ = twin.communicate(timeout=PATIENCE)
        assert twin.returncode == 0, said
        assert "4 of 4 runs finished" in said
    quiet = read_sweep(home / "sweep.toml").folders(home / "quiet")
    train_folders(quiet, device="cpu")
    pandas.testing.assert_frame_equal(results(home / "cut"), collect(quiet), check_exact=True)


BAD = """
import os, sys
from torch import nn
from pipecycle.policies import FedAvg

class Leaves(FedAvg):
    def decide(self, slot):
        sys.exit(7)

class Recurses(FedAvg):
    def decide(self, slot):
        self.decide(slot)

class Dies(FedAvg):
    def decide(self, slot):
        os._exit(3)

class Spoils(Dies):
    def decide(self, slot):
        with open("own.npz", "ab") as file:
            file.write(b"!")
        super().decide(slot)

class Net(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.line, self.left = nn.Linear(64, classes), 50
    def forward(self, x):
        self.left -= 1
        if self.left < 0:
            raise MemoryError("no room")
        return self.line(x.flatten(1))
"""


@pytest.mark.slow
def test_a_failing_run_takes_no_other_down(home: Path) -> None:
    (home / "bad.py").write_text(BAD)
    images, labels = numpy.zeros((100, 64), "u1"), numpy.arange(100) % 10
    numpy.savez(home / "own.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    (home / "sweep.toml").write_text(
        "[base.world]\nclients = 5\nslots = 100\nsession = 5\n"
        "[matrix]\npolicy = ['bad:Leaves', 'mifa', 'bad:Recurses', 'fedavg', 'bad:Dies', 'bad:Spoils']\n"
        "[[when]]\npolicy = 'bad:Spoils'\nset = { 'data.name' = 'own.npz' }\n"
        "[[when]]\npolicy = 'fedavg'\nset = { 'train.model' = 'bad:Net' }\n"
    )
    line = [sys.executable, "-m", "pipecycle", "sweep", "sweep.toml", "--device", "cpu", "--workers", "1", "--json"]
    done = subprocess.run(line, cwd=home, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    said = json.loads(done.stdout)
    assert (said["runs"], said["finished"]) == (6, 1)
    reasons = {Path(path).name.split("_")[0].split(":")[-1]: reason for path, reason in said["failed"].items()}
    assert sorted(reasons) == ["Dies", "Leaves", "Recurses", "Spoils", "fedavg"]
    for name, reason in (("Leaves", "7"), ("Recurses", "RecursionError"), ("fedavg", "no room")):
        assert reason in reasons[name]
        assert "bad.py" in reasons[name]
    assert reasons["Dies"] == reasons["Spoils"] == "its process ended with code 3"
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("seed", range(int(os.environ.get("PIPECYCLE_KILLS", "1"))))
def test_killed_at_random_moments(command: str, seed: int, home: Path) -> None:
    rng = random.Random(f"{command} {seed}")
    began = time.monotonic()
    undisturbed(command, home, "quiet")
    took = time.monotonic() - began
    for how in rng.sample(["parent KILL", "group KILL", "worker KILL", "group INT", "group TERM", "parent INT"], 4):
        whom, name = how.split()
        number = getattr(signal, f"SIG{name}")
        process = start(command, home, "cut")
        moment = time.monotonic() + rng.uniform(0.2, 0.9) * took
        until(lambda moment=moment: time.monotonic() > moment, process)
        if whom == "worker":
            for one in family(process):
                if "spawn_main" in " ".join(one.cmdline()):
                    one.kill()
                    break
        elif process.poll() is None:
            (os.killpg if whom == "group" else os.kill)(process.pid, number)
        said, _ = process.communicate(timeout=PATIENCE)
        assert nobody_left(process)
        assert "Traceback" not in said
        ends = {"KILL": (-9,), "INT": (130, -2), "TERM": (143, -15)}  # the latter when Python itself no longer listens
        assert process.returncode in (0, *ends[name]), said
    undisturbed(command, home, "cut")
    pandas.testing.assert_frame_equal(results(home / "cut"), results(home / "quiet"), check_exact=True)
    lines = list((home / "quiet").glob("lines-*.json"))
    assert len(lines) == (command == "compare")
    for file in lines:
        assert (home / "cut" / file.name).read_bytes() == file.read_bytes()
