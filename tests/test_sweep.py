from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas
import pytest

from pipecycle import InputError
from pipecycle.config import Config
from pipecycle.sweep import collect, expand, read_sweep

FILE = """
trials = 2
[base.world]
clients = 10
slots = 200
session = 5
[matrix]
policy = ["pipecycle", "fedavg"]
groups = [2, 3]
delta = [0.3, 0.6]
[[exclude]]
policy = "pipecycle"
groups = [3]
delta = 0.6
"""


def test_a_matrix_multiplies_what_a_policy_has(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(FILE)
    sweep = read_sweep(tmp_path / "s.toml")
    cells = [(config.policy, config.settings.get("groups"), config.world.harvest) for config in sweep.runs.values()]
    assert sorted(set(cells), key=str) == [
        ("fedavg", None, "bernoulli:0.3"),
        ("fedavg", None, "bernoulli:0.6"),
        ("pipecycle", 2, "bernoulli:0.3"),
        ("pipecycle", 2, "bernoulli:0.6"),
        ("pipecycle", 3, "bernoulli:0.3"),
    ]
    assert len(sweep) == 10  # two trials each
    assert all(config.world.clients == 10 for config in sweep.runs.values())


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[matrix]\nspeed = [1]\n", "matrix.speed: is neither a field nor a setting"),
        ("[matrix]\npolicy = 'fedavg'\n", "matrix.policy = fedavg: needs a list"),
        ("[matrix]\npolicy = ['fedavgg']\n", "did you mean 'fedavg'"),
        ("[matrix]\n'train.speed' = [1]\n", "train.speed: unknown"),
        ("[base.world]\nslot = 3\n", "did you mean 'slots'"),
        ("trials = 0\n", "trials = 0"),
        ("colour = 3\n", "colour: needs one of base, matrix, trials, exclude, when, parts"),
        ("[matrix]\npolicy = ['fedavg']\n[[exclude]]\npolicy = 'fedavg'\n", "everything is excluded"),
        ("[matrix]\ndelta = [0.1]\n[[exclude]]\ndelt = 0.1\n", "a rule about delt: unknown, did you mean 'delta'"),
        ("[matrix]\ndelta = [0.1]\n[[when]]\ndelta = 0.1\n", "needs a table called set"),
        ("[matrix\n", "is not TOML"),
    ],
)
def test_mistakes_are_named(text: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(text)
    with pytest.raises(InputError, match=reason):
        read_sweep(tmp_path / "s.toml")


def test_iid_and_skewed_in_one_matrix() -> None:
    sweep = expand(Config("fedavg"), {"alpha": ["iid", 0.1]})
    assert [config.data.alpha for config in sweep.runs.values()] == [None, 0.1]


def command(folder: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "pipecycle", "sweep", "s.toml", "--out", str(folder), "--device", "cpu", *arguments]


def test_a_sweep_runs_skips_and_reports(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(FILE + "\n")
    dry = subprocess.run(
        command(tmp_path / "a", "--dry-run", "--json"), check=True, capture_output=True, text=True, cwd=tmp_path
    )
    assert json.loads(dry.stdout)["runs"] == 10
    assert json.loads(dry.stdout)["steps"] > 1000
    assert not (tmp_path / "a").exists()
    first = subprocess.run(command(tmp_path / "a", "--json"), check=True, capture_output=True, text=True, cwd=tmp_path)
    assert json.loads(first.stdout) == {
        "runs": 10, "finished": 10, "failed": {}, "rows": 20, "folder": str(tmp_path / "a"),
    }  # fmt: skip
    frame = pandas.read_parquet(tmp_path / "a" / "results.parquet")
    assert len(frame) == 20
    assert set(frame["policy"]) == {"pipecycle", "fedavg"}
    assert {"world.harvest", "policy.groups", "slot", "energy", "accuracy"} <= set(frame.columns)
    again = subprocess.run(command(tmp_path / "a"), check=True, capture_output=True, text=True, cwd=tmp_path)
    assert "10 of 10 runs finished" in again.stdout
    folders = read_sweep(tmp_path / "s.toml").folders(tmp_path / "a")
    assert len(collect(folders)) == 20


SMALL = "[base.world]\nclients = 5\nslots = 100\nsession = 5\n[matrix]\npolicy = ['fedavg']\n"


def test_one_bad_run_does_not_stop_the_rest(tmp_path: Path) -> None:
    """Whether a model fits its data is known only once the data are there."""
    (tmp_path / "odd.py").write_text("import torch\ndef model(shape, classes): return torch.nn.Linear(3, classes)\n")
    (tmp_path / "s.toml").write_text(SMALL + "model = ['odd:model', 'mlp']\n")
    done = subprocess.run(command(tmp_path / "a"), check=False, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 1
    text = " ".join(done.stdout.split())
    assert "1 of 2 runs finished" in text
    assert "model 'odd:model' on inputs of shape (1, 8, 8)" in text


def test_a_run_that_cannot_begin_refuses_the_whole_file(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(SMALL + "capacity = [50.0, 3.0]\n")
    done = subprocess.run(command(tmp_path / "a"), check=False, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2
    assert "capacity-3.0" in done.stderr
    assert "capacity = 3: a session needs 5 units" in done.stderr
    assert not (tmp_path / "a").exists()


def test_a_killed_sweep_goes_on_to_the_same_results(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(
        "trials = 2\n[base.world]\nclients = 10\nslots = 300\n[base.train]\nmodel = 'lenet'\n"
        "[matrix]\npolicy = ['fedavg', 'pipecycle']\n"
    )
    subprocess.run(command(tmp_path / "whole"), check=True, capture_output=True, cwd=tmp_path)
    process = subprocess.Popen(
        command(tmp_path / "cut", "--save-every", "0.2"), stdout=subprocess.PIPE, cwd=tmp_path, start_new_session=True
    )
    deadline = time.monotonic() + 60
    while not list((tmp_path / "cut").glob("*/checkpoint/state.safetensors")):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"the same command goes on" in output
    subprocess.run(command(tmp_path / "cut"), check=True, capture_output=True, cwd=tmp_path)
    one, two = ((tmp_path / name / "results.csv").read_bytes() for name in ("whole", "cut"))
    assert one == two


PARTS = """
[base.world]
clients = 10
slots = 200
session = 5
[matrix]
delta = [0.3, 0.6]
[[when]]
delta = 0.6
set = { slots = 400, "look.every" = 50 }
[[parts]]
name = "groups"
[parts.matrix]
policy = ["pipecycle"]
groups = [2, 3]
[[parts]]
name = "mixing"
[parts.matrix]
policy = ["pipecycle"]
relay_mix = [0.5, 1.0]
delta = [0.6]
[[parts.when]]
relay_mix = 0.5
set = { groups = 4 }
"""


def test_conditions_and_parts(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(PARTS)
    sweep = read_sweep(tmp_path / "s.toml", [3])
    assert {config.world.trial for config in sweep.runs.values()} == {3}
    for config in sweep.runs.values():
        rich = config.world.harvest == "bernoulli:0.6"
        assert (config.world.slots, config.look.every) == ((400, 50) if rich else (200, 150))
    groups, mixing = sweep.parts["groups"], sweep.parts["mixing"]
    assert len(groups) == 4
    assert len(mixing) == 2
    # What is the default anyway is the same run: relay_mix = 1 with two groups is in both parts and there once.
    assert len(set(groups) & set(mixing)) == 1
    assert len(sweep) == 5
    (mixed,) = set(mixing) - set(groups)
    assert sweep.runs[mixed].settings == {"relay_mix": 0.5, "groups": 4}
