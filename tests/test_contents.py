"""A result belongs to the code and data that it was made with: when they change, it is made again and says why."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest

from pipecycle.errors import InputError
from pipecycle.report import load
from pipecycle.runs.config import Config, read_recorded
from pipecycle.runs.contents import changes, sealed, sources
from pipecycle.runs.run import RunFolder
from pipecycle.runs.workers import work
from tests.commands import Done, end, pipecycle, process, until, working_in

SMALL = ("--clients", "6", "--slots", "120", "--device", "cpu")
POLICY = """from pipecycle.policies import FedAvg
import helper

class Mine(FedAvg):
    name = "mine"
    def decide(self, slot):
        if slot >= helper.WAIT:
            super().decide(slot)
"""
MODEL = """from torch import nn

def model(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, {width}), nn.ReLU(), nn.Linear({width}, classes))
"""


def data(path: Path, shift: float = 0.0) -> None:
    draw = np.random.default_rng(3)
    labels = np.arange(240) % 4
    images = (draw.normal(size=(240, 1, 8, 8)) + labels[:, None, None, None] + shift).astype(np.float32)
    np.savez(path, x_train=images[:200], y_train=labels[:200], x_test=images[200:], y_test=labels[200:])


def table(path: Path, gain: int) -> None:
    rows = "".join(f"{slot},{','.join([str(gain)] * 6)}\n" for slot in range(120))
    path.write_text(f"slot,a,b,c,d,e,f\n{rows}")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(POLICY)
    (tmp_path / "helper.py").write_text("WAIT = 0\n")
    (tmp_path / "nets.py").write_text(MODEL.format(width=8))
    data(tmp_path / "own.npz")
    table(tmp_path / "gains.csv", 1)
    return tmp_path


def run(*arguments: str, cwd: Path) -> Done:
    done = pipecycle("run", *arguments, *SMALL, "--out", "r", cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done


CASES = {
    "helper.py": (["mine:Mine"], lambda home: (home / "helper.py").write_text("WAIT = 70  # of 120\n")),
    "mine.py": (["mine:Mine"], lambda home: (home / "mine.py").write_text(POLICY.replace("slot >=", "slot >= 70 +"))),
    "nets.py": (
        ["fedavg", "--model", "nets:model"],
        lambda home: (home / "nets.py").write_text(MODEL.format(width=16)),
    ),
    "own.npz": (["fedavg", "--data", "own.npz"], lambda home: data(home / "own.npz", 2.0)),
    "gains.csv": (["fedavg", "--harvest", "csv:gains.csv"], lambda home: table(home / "gains.csv", 2)),
}


@pytest.mark.parametrize("name", CASES)
def test_a_finished_run_whose_code_or_data_changed_is_run_again(name: str, home: Path) -> None:
    arguments, change = CASES[name]
    run(*arguments, cwd=home)
    first = (home / "r" / "metrics.csv").read_bytes()
    assert f"r: {name} has changed" not in run(*arguments, cwd=home).stdout
    assert "is already finished" in run(*arguments, cwd=home).stdout
    change(home)
    again = run(*arguments, cwd=home)
    assert f"r: {name} has changed, so the run starts again." in again.stdout
    assert "is already finished" not in again.stdout
    kept = (home / "r" / "metrics.csv").read_bytes()
    assert kept != first
    shutil.rmtree(home / "r")
    run(*arguments, cwd=home)
    assert (home / "r" / "metrics.csv").read_bytes() == kept


def test_a_change_that_cannot_run_keeps_the_old_result(home: Path) -> None:
    run("mine:Mine", cwd=home)
    before = {path.name: path.read_bytes() for path in (home / "r").iterdir() if path.is_file()}
    (home / "mine.py").write_text(POLICY.replace("slot >= helper.WAIT", "slot >= helper.WAITING"))
    for fresh in ([], ["--fresh"]):
        done = pipecycle("run", "mine:Mine", *SMALL, "--out", "r", *fresh, cwd=home)
        assert done.returncode == 2
        assert "no attribute 'WAITING'" in done.stderr
        assert {path.name: path.read_bytes() for path in (home / "r").iterdir() if path.is_file()} == before


@pytest.mark.slow
def test_an_unfinished_run_is_not_resumed_into_another_program(home: Path) -> None:
    options = ("run", "mine:Mine", "--model", "lenet", "--clients", "6", "--slots", "400", "--device", "cpu")
    running = process(*options, "--save-every", "0.05", "--out", "r", cwd=home)
    until(lambda: (home / "r" / "checkpoint" / "state.safetensors").exists(), running)
    end(running, signal.SIGINT)
    assert running.returncode == 130
    shutil.copytree(home / "r", home / "same")
    resumed = pipecycle(*options, "--out", "same", cwd=home)
    assert "Resumes from slot " in resumed.stdout
    (home / "helper.py").write_text("WAIT = 200\n")
    done = pipecycle(*options, "--out", "r", cwd=home)
    assert done.returncode == 0, done.stderr
    assert "r: helper.py has changed, so the run starts again." in done.stdout
    assert "Resumes from" not in done.stdout
    assert np.loadtxt(home / "r" / "metrics.csv", delimiter=",", skiprows=1, usecols=1)[0] == 0  # at slot 150


@pytest.mark.slow
def test_compare_and_sweep_run_again_and_have_fresh(home: Path) -> None:
    small = ("--clients", "6", "--slots", "120", "--budget", "200", "--device", "cpu", "--workers", "1")
    options = ("compare", "mine:Mine", "fedavg", *small, "--trials", "1", "--out", "c", "--json")

    def compared(*more: str) -> tuple[dict[str, float], str]:
        done = pipecycle(*options, *more, cwd=home)
        assert done.returncode == 0, done.stderr
        return {row["label"]: row["accuracy"] for row in json.loads(done.stdout)["rows"]}, done.stderr

    first, _ = compared()
    stamp = {path: path.stat().st_mtime_ns for path in (home / "c").glob("*/result.json")}
    (home / "helper.py").write_text("WAIT = 60\n")
    second, said = compared()
    assert second["mine"] != first["mine"]
    assert second["fedavg"] == first["fedavg"]
    assert "helper.py has changed, so the run starts again" in said
    written = {path.parent.name.split("_")[0] for path, time in stamp.items() if path.stat().st_mtime_ns != time}
    assert written == {"mine:Mine"}
    third, _ = compared("--fresh")
    assert third == second
    assert all(path.stat().st_mtime_ns != time for path, time in stamp.items())

    (home / "s.toml").write_text("[base.world]\nclients = 6\nslots = 120\n[matrix]\npolicy = ['mine:Mine']\n")
    sweep = ("sweep", "s.toml", "--out", "s", "--device", "cpu", "--workers", "1")
    assert pipecycle(*sweep, cwd=home).returncode == 0
    (result,) = (home / "s").glob("*/result.json")
    before = result.stat().st_mtime_ns
    assert pipecycle(*sweep, cwd=home).returncode == 0
    assert result.stat().st_mtime_ns == before
    done = pipecycle(*sweep, "--fresh", cwd=home)
    assert done.returncode == 0, done.stderr
    assert result.stat().st_mtime_ns != before


def test_runs_without_user_code_or_data_keep_their_identity(home: Path) -> None:
    plain = Config("fedavg")
    assert sealed(plain).text() == plain.text()
    assert "contents" not in plain.text()
    with working_in(home):
        mine = sealed(Config("mine:Mine").changed({"data.name": "own.npz"}))
        assert set(mine.contents) == {"mine.py", "helper.py", "own.npz"}
        assert mine.identity() != Config("mine:Mine").changed({"data.name": "own.npz"}).identity()
        (home / "config.toml").write_text(text := mine.text())
    assert read_recorded(home / "config.toml").text() == text


def test_a_finished_run_of_before_is_shown_and_says_what_is_unknown(home: Path) -> None:
    run("mine:Mine", cwd=home)
    config = home / "r" / "config.toml"
    config.write_text(config.read_text().partition("\n[contents]\n")[0])
    done = run("mine:Mine", cwd=home)
    assert "does not record with which helper.py, mine.py it was made (--fresh trains it again)." in done.stdout
    assert "is already finished" in done.stdout
    assert "[contents]" in (run("mine:Mine", "--fresh", cwd=home), config.read_text())[1]


def test_modules_are_followed_within_their_tree_alone(tmp_path: Path) -> None:
    files = {
        "pack/__init__.py": "",
        "pack/policy.py": "import numpy\nfrom . import parts\nfrom .deep.end import thing\nimport pipecycle\n",
        "pack/parts.py": "def late():\n    import beside\n",
        "pack/deep/__init__.py": "",
        "pack/deep/end.py": "thing = 1\n",
        "pack/unused.py": "",
        "beside.py": "import pack.policy\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    with working_in(tmp_path):
        assert set(sources("pack.policy")) == set(files) - {"pack/unused.py"}
        assert sources("numpy") == sources("pipecycle.policies.fedavg") == sources("no_such_module") == {}


def test_a_process_goes_by_the_code_that_it_has_imported(home: Path) -> None:
    """Python does not import a module again, so an edit is for the next process."""
    with working_in(home):
        before = sealed(Config("mine:Mine"))
        (home / "helper.py").write_text("WAIT = 60\n")
        assert sealed(Config("mine:Mine")) == before


def test_a_worker_refuses_code_of_after_the_command(home: Path) -> None:
    told: list[tuple[str, int, object]] = []
    with working_in(home):
        text = sealed(Config("mine:Mine").changed({"clients": 4, "slots": 50})).text()
    (home / "helper.py").write_text("WAIT = 60\n")
    with working_in(home):
        work(0, [(str(home / "r"), text)], "cpu", 60.0, told.append)
    assert told == [("end", 0, "code or data has changed since the command was given; run it again")]
    assert not (home / "r").exists()


def test_runs_of_different_code_are_told_apart(home: Path) -> None:
    run("mine:Mine", cwd=home)
    shutil.move(home / "r", home / "before")
    (home / "helper.py").write_text("WAIT = 60\n")
    run("mine:Mine", cwd=home)
    labels = [group.label for group in load([home / "before", home / "r"])]
    assert len(set(labels)) == 2
    assert all(label.startswith("mine helper.py=") for label in labels)


def test_a_file_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.npz: cannot be read"):
        RunFolder(tmp_path, Config().changed({"data": "none.npz"}))
    assert changes({"a.py": "1", "b.py": "1"}, {"a.py": "2", "c.py": "1"}) == (
        "a.py has changed and c.py has been added and b.py is gone"
    )
