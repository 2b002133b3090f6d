"""`pipecycle run` as a user runs it."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from safetensors.numpy import load_file

from pipecycle import Schedule
from tests.commands import pipecycle

run = partial(pipecycle, "run")


def figures(*arguments: str, cwd: Path) -> dict[str, Any]:
    done = run(*arguments, "--json", cwd=cwd)
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    values: dict[str, Any] = json.loads(line)
    return values


def test_a_run_leaves_everything_in_its_folder(tmp_path: Path) -> None:
    got = figures("pipecycle", "--clients", "20", "--slots", "600", "--budget", "4000", cwd=tmp_path)
    folder = tmp_path / got["folder"]
    names = sorted(path.name for path in folder.iterdir() if path.is_file())
    assert names == ["config.toml", "metrics.csv", "model.safetensors", "result.json", "schedule.npz"]
    frame = pandas.read_csv(folder / "metrics.csv")
    assert list(frame.columns[:8]) == ["slot", "energy", "accuracy", "loss", "version", "best", "budget", "diverged"]
    assert frame["budget"].sum() == 1
    assert got["at_budget"]["energy"] <= 4000
    assert got["final"]["accuracy"] == frame["accuracy"].iloc[-1]
    schedule = Schedule.load(folder / "schedule.npz")
    assert schedule.slots == got["final"]["slot"]
    weights = load_file(folder / "model.safetensors")
    assert sum(value.size for value in weights.values()) == got["parameters"] == 4810
    again = run("pipecycle", "--clients", "20", "--slots", "600", "--budget", "4000", cwd=tmp_path)
    assert "is finished already" in again.stdout


def test_a_users_data_model_and_split(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(200, 5)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    np.savez(tmp_path / "mine.npz", x_train=x[:150], y_train=y[:150], x_test=x[150:], y_test=y[150:])
    (tmp_path / "net.py").write_text(
        "from torch import nn\n"
        "def small(shape, classes):\n"
        "    return nn.Sequential(nn.Linear(shape[0], 8), nn.Tanh(), nn.Linear(8, classes))\n"
        "def normed(shape, classes):\n"
        "    return nn.Sequential(nn.Linear(shape[0], 8), nn.BatchNorm1d(8), nn.Linear(8, classes))\n"
    )
    (tmp_path / "split.json").write_text(json.dumps([list(range(first, first + 30)) for first in range(0, 150, 30)]))
    common = ("fedavg", "--data", "mine.npz", "--slots", "900", "--set", "train.lr=0.2")
    got = figures(*common, "--model", "net:small", "--set", "data.split=split.json", "--out", "a", cwd=tmp_path)
    assert got["final"]["accuracy"] > 80
    refused = run(*common, "--model", "net:normed", "--clients", "5", cwd=tmp_path)
    assert refused.returncode == 2
    assert "mixes the samples of a batch" in refused.stderr


def test_a_run_trains_on_one_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Convolution gradients differ in bits between one thread and two, so a run has one, whatever torch has."""
    (tmp_path / "net.py").write_text(
        "import torch\n"
        "class Counted(torch.nn.Linear):\n"
        "    def forward(self, x):\n"
        "        if self.weight.requires_grad:\n"
        "            with open('threads', 'a') as file: print(torch.get_num_threads(), file=file)\n"
        "        return super().forward(x.flatten(1))\n"
        "def counted(shape, classes): return Counted(64, classes)\n"
    )
    torch.set_num_threads(2)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    got = figures("fedavg", "--clients", "3", "--slots", "60", "--model", "net:counted", cwd=tmp_path)
    assert got["steps"] > 0
    assert set((tmp_path / "threads").read_text().split()[-got["steps"] :]) == {"1"}


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("fedavg --data nothing", "nothing"),
        ("fedavg --data cifar10", "pipecycle data fetch cifar10"),
        ("fedavg --model resnet", "model 'resnet'"),
        ("fedavg --device tpu", "device = tpu"),
        ("fedavg --groups 3", "fedavg has no groups"),
        ("fedavg --delta 2", "rate = 2"),
        ("fedavg --set train.lr=-1", "lr = -1"),
        ("fedavg --set train.speed=1", "train.speed: unknown"),
        ("fedavg --alpha 0", "alpha"),
        ("fedavg --config none.toml", "none.toml: cannot be read"),
        ("fedavg --out blocked/run", "cannot be written"),
    ],
)
def test_mistakes_are_one_sentence(
    arguments: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIPECYCLE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "blocked").write_text("a file, not a folder")
    done = run(*arguments.split(), "--slots", "50", cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert reason in line
    assert not (tmp_path / "runs").exists()
