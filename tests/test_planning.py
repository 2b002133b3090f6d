"""A run is planned before it is trained, from its configuration alone: `plan` and `run` give the same schedule."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pipecycle.data import CATALOGUE, load
from pipecycle.runs.config import Config
from pipecycle.runs.planning import model_of, plan_of
from pipecycle.runs.run import job_of
from tests.commands import pipecycle

SMALL = {"world.clients": 10, "world.slots": 100}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's own data, model and split, in which clients hold 5, 10 and 20 samples."""
    home = tmp_path_factory.mktemp("own")
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(60, 5)), np.arange(60) % 3
    np.savez(home / "own.npz", x_train=x[:50], y_train=y[:50], x_test=x[50:], y_test=y[50:])
    (home / "split.json").write_text(json.dumps([[*range(5)], [*range(5, 15)], [*range(15, 35)]]))
    (home / "nets.py").write_text(
        "from torch import nn\ndef linear(shape, classes): return nn.Linear(*shape, classes)\n"
    )
    return home


@pytest.mark.parametrize(
    "options",
    [
        "--clients 6",
        "--clients 6 --model lenet",
        "--clients 6 --data own.npz --model nets:linear",
        "--data own.npz --set data.split=split.json",
    ],
)
def test_plan_and_run_give_the_same_schedule(home: Path, options: str) -> None:
    common = ("flda", "--slots", "80", "--session", "5", *options.split(), "--json")
    planned, run = (pipecycle(command, *common, cwd=home) for command in ("plan", "run"))
    assert planned.returncode == run.returncode == 0, planned.stderr + run.stderr
    assert json.loads(planned.stdout) == json.loads(run.stdout)["plan"]


def test_the_upload_ratio_of_flda_follows_the_model() -> None:
    job = job_of(Config("flda").changed(SMALL))
    schedule, learnt = job.schedule, job.problem
    assert schedule.meta["settings"]["upload_ratio"] == 100 / learnt.size
    schedule = plan_of(Config("flda").changed({**SMALL, "upload_ratio": 0.5}))
    assert schedule.meta["settings"]["upload_ratio"] == 0.5


def test_plan_says_what_a_table_costs() -> None:
    done = pipecycle("plan", "flda", "--slots", "50", "--data", "cifar10", "--model", "cnn64")
    assert "a logit table costs 100 / 307,842 of an update, for cnn64 on cifar10" in " ".join(done.stdout.split())
    assert "logit table" not in pipecycle("plan", "fedavg", "--slots", "50").stdout


def test_the_catalogue_tells_what_a_set_looks_like() -> None:
    task, entry = load("digits"), CATALOGUE["digits"]
    assert (task.shape, task.classes) == (entry.shape, entry.classes)
    assert model_of(Config().changed({"data.name": "cifar10", "train.model": "lenet"})) == (10, 62_006)
    assert model_of(Config().changed({"data.name": "fashion-mnist"})) == (10, 28 * 28 * 64 + 64 + 64 * 10 + 10)


def test_no_data_is_read_for_a_policy_that_needs_no_size() -> None:
    assert plan_of(Config("fedavg").changed({**SMALL, "data.name": "nowhere.npz"})).clients == 10


def test_planning_does_not_import_torch(home: Path) -> None:
    """Neither do the mistakes that a run is refused for before it is trained."""
    code = (
        "import sys; from pipecycle.commands.cli import main; sys.argv[0] = 'pipecycle'\n"
        "try: main()\n"
        "except SystemExit as end: print(end.code, 'torch' in sys.modules)"
    )
    for command, said in (
        ("plan flda --slots 50 --data own.npz --set data.split=split.json --json", "0 False"),
        ("run flda --slots 50 --clients 40 --data other.npz", "2 False"),
        ("run flda --slots 50 --session 10 --set capacity=3", "2 False"),
    ):
        done = subprocess.run([sys.executable, "-c", code, *command.split()], cwd=home, capture_output=True, text=True)
        assert done.stdout.splitlines()[-1] in (said, said.replace("0 ", "None ")), done.stderr
