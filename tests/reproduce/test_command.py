"""`pipecycle reproduce` as a user runs it: pieces, merging, stopping, choosing."""

from __future__ import annotations

import json
import re
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pandas
import pytest

from pipecycle import InputError
from pipecycle.commands.sweeping import carry_out
from pipecycle.runs.config import read_config
from pipecycle.runs.parquet import load
from pipecycle_paper import selection
from pipecycle_paper.regimes import REGIME
from tests.commands import end, pipecycle, process, until

SMALL = """
[base.world]
clients = 10
slots = 300
session = 5
budget = 500.0
[matrix]
policy = ["fedavg", "pipecycle", "fedbacys"]
groups = [2, 5]
delta = [0.3, 1.0]
alpha = ["iid", 0.1]
[[when]]
alpha = 0.1
set = { slots = 450 }
[[when]]
groups = 2
set = { "look.clients_every" = 150 }
"""


reproduce = partial(pipecycle, "reproduce")


def figures(*arguments: str, cwd: Path) -> dict[str, Any]:
    """One worker, because a second one imports torch once more."""
    done = reproduce(*arguments, "--workers", "1", "--json", cwd=cwd)
    assert done.returncode == 0, done.stderr
    values: dict[str, Any] = json.loads(done.stdout)
    return values


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "small.toml").write_text(SMALL)
    return tmp_path


@pytest.mark.slow
def test_merged_pieces_equal_the_whole(home: Path) -> None:
    whole = figures("--file", "small.toml", "--out", "whole", cwd=home)
    assert whole["runs"] == 20
    (piece,) = whole["pieces"]
    assert piece["steps"] > 0
    assert piece["seconds"] > 0
    for index in (1, 2, 3):
        part = figures("--file", "small.toml", "--out", f"p{index}", "--piece", f"{index}/3", cwd=home)
        assert 6 <= part["runs"] <= 7
    files = [argument for index in (3, 1, 2) for argument in ("--merge", f"p{index}/results.parquet")]
    merged = figures("--out", "merged", *files, cwd=home)
    assert merged["runs"] == 20
    assert len(merged["pieces"]) == 3
    one, other = (load(home / name / "results.parquet").frame for name in ("whole", "merged"))
    pandas.testing.assert_frame_equal(one, other, check_exact=True)
    assert (home / "merged" / "results.parquet").stat().st_size < 200_000
    # What is in the merged results is not trained again, and finished runs are skipped.
    again = figures("--file", "small.toml", "--out", "merged", cwd=home)
    assert again == merged
    assert not (home / "merged" / "runs").exists()


def test_two_commands_on_one_folder_lose_nothing_of_each_other(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second comes and goes while the first is training."""
    common = ("--file", "small.toml", "--only", "policy=fedavg", "--out", "both", "--piece")

    def after_another(*arguments: Any, **options: Any) -> dict[str, str]:
        monkeypatch.undo()
        figures(*common, "2/2", cwd=home)
        return carry_out(*arguments, **options)

    monkeypatch.setattr("pipecycle_paper.command.carry_out", after_another)
    both = figures(*common, "1/2", cwd=home)
    assert both["runs"] == 4
    assert len(both["pieces"]) == 2
    assert load(home / "both" / "results.parquet").runs == 4
    lock = next((home / "both" / "runs").iterdir()) / ".lock"
    lock.write_text("1 elsewhere\n")  # of a process that was killed, whose results the other one had saved
    figures(*common, "1/1", cwd=home)
    assert not lock.exists()


def test_results_that_disagree_are_refused(home: Path) -> None:
    figures("--file", "small.toml", "--only", "policy=fedavg", "--out", "a", cwd=home)
    found = load(home / "a" / "results.parquet")
    found.frame.loc[3, "accuracy"] += 0.1
    found.save(home / "b.parquet")
    refused = reproduce("--out", "a", "--merge", "b.parquet", cwd=home)
    assert refused.returncode == 2
    assert "two of the results disagree about it" in refused.stderr


def test_a_run_that_diverged_at_once_merges_with_itself(home: Path) -> None:
    (home / "wild.toml").write_text(SMALL + "[base.train]\nlr = 1e6\nweight_decay = 1e6\n")
    figures("--file", "wild.toml", "--only", "policy=fedavg", "--out", "a", cwd=home)
    before = load(home / "a" / "results.parquet").frame
    assert set(before["ended"]) == {"diverged"}
    figures("--out", "b", "--merge", "a/results.parquet", "--merge", "a/results.parquet", cwd=home)
    pandas.testing.assert_frame_equal(load(home / "b" / "results.parquet").frame, before, check_exact=True)


@pytest.mark.slow
def test_a_stopped_command_goes_on_and_ends_the_same(home: Path) -> None:
    long = SMALL.replace("slots = 300", "slots = 1000").replace("slots = 450", "slots = 1000").replace("500.0", "1e9")
    (home / "long.toml").write_text(long)
    common = ("--file", "long.toml", "--only", "policy=pipecycle", "--only", "delta=1.0")
    often = ("--save-every", "0.05", "--workers", "1")
    running = process("reproduce", *common, *often, "--out", "stopped", cwd=home)
    until(lambda: list((home / "stopped" / "runs").glob("*/checkpoint/state.safetensors")), running)
    out, _ = end(running, signal.SIGINT)
    assert running.returncode == 130, out
    assert "run the same command again to resume" in out
    figures(*common, "--out", "stopped", cwd=home)
    figures(*common, "--out", "straight", cwd=home)
    stopped, straight = (load(home / name / "results.parquet") for name in ("stopped", "straight"))
    assert len(stopped.pieces) == 2  # both halves say how fast they were
    assert sum(piece["steps"] for piece in stopped.pieces) == straight.pieces[0]["steps"]
    pandas.testing.assert_frame_equal(stopped.frame, straight.frame, check_exact=True)


def test_what_it_would_be(home: Path) -> None:
    (home / "paper").mkdir()
    (home / "paper" / ".lock").write_text("1 elsewhere\n")  # of a command that was killed
    found = figures("--file", "small.toml", "--only", "groups=5", "--dry-run", "--out", "paper", cwd=home)
    assert (found["runs"], found["finished"]) == (8, 0)
    assert found["steps"] > 1000
    assert not list((home / "paper").iterdir())


def test_data_that_is_not_there_is_said_once_and_nothing_begins(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIPECYCLE_CACHE", str(home / "cache"))
    done = reproduce("--out", "paper", cwd=home)
    assert done.returncode == 2
    assert done.stderr == "pipecycle: cifar10 is not in the cache: `pipecycle data fetch cifar10` puts it there\n"
    some = ("--only", "policy=mifa", "--only", "delta=0.1")
    done = reproduce("--out", "paper", "--dry-run", *some, cwd=home)
    assert done.returncode == 0, done.stderr
    assert "client-steps to go; how long that takes can be measured once `pipecycle data fetch cifar10`" in done.stdout
    assert not (home / "paper" / "runs").exists()


def test_the_documentation_foresees_as_many_steps_as_the_command() -> None:
    runs = selection.read(selection.experiment(selection.PAPER), "1").runs.values()
    millions = round(sum(map(selection.expected_steps, runs)) / 1e6)
    root = Path(__file__).parents[2]
    for page in ("docs/reproduce.md", "experiments/src/pipecycle_paper/command.py"):
        assert {*re.findall(r"(\d+) million client-steps[:;]", (root / page).read_text())} == {str(millions)}, page


ODD = """
import multiprocessing
import torch

def model(shape, classes):
    assert multiprocessing.parent_process() is None, "not in a worker"
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, classes))
"""


def test_runs_that_fail_alike_are_told_in_one_line(home: Path) -> None:
    """A model that passes the checks before the first run, and fails where it is trained."""
    (home / "odd.py").write_text(ODD)
    (home / "small.toml").write_text(SMALL + '[base.train]\nmodel = "odd:model"\n')
    done = reproduce("--file", "small.toml", "--out", "paper", "--only", "policy=fedavg", "--workers", "1", cwd=home)
    assert done.returncode == 1
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("failed")]
    assert " and 3 more: " in line


def test_missing_data_is_said_once_before_anything_begins(home: Path) -> None:
    (home / "small.toml").write_text(SMALL + '[base.data]\nname = "nowhere.npz"\n')
    done = reproduce("--file", "small.toml", "--out", "paper", "--only", "policy=fedavg", "--workers", "1", cwd=home)
    assert done.returncode == 2
    assert done.stderr.count("nowhere.npz") == 1
    assert not (home / "paper").exists()


def test_the_papers_grid() -> None:
    whole = selection.read(selection.experiment(selection.PAPER), "2").runs
    assert len(whole) == 2 * 160
    cells = [config for config in whole.values() if config.world.trial == 0]
    assert {config.world.slots for config in cells if config.data.alpha is None} == {15_000}
    assert {config.world.slots for config in cells if config.data.alpha == 0.1} == {30_000}
    thresholds = {(config.policy, config.data.alpha, config.settings.get("queue_threshold")) for config in cells}
    assert {one for one in thresholds if one[2]} == {("pipecycle", 0.1, 2)}
    assert sum(config.look.clients_every in (750, 1500) for config in cells) == 8 * (3 + 5)
    assert sum(map(selection.expected_steps, cells)) == pytest.approx(64.8e6, rel=0.01)
    schemes = {(selection.scheme(config), config.settings.get("groups")) for config in cells}
    assert len(schemes) == 20
    assert {("fedseq lag-stable", 5), ("fedseq lag-stable", 10), ("pipecycle+", 10)} < schemes
    assert ("fedseq lag-stable", 2) not in schemes
    pieces = [selection.piece(whole, f"{index}/4") for index in (1, 2, 3, 4)]
    assert sorted(name for piece in pieces for name in piece) == sorted(whole)
    lengths = [sum(map(selection.expected_steps, piece.values())) for piece in pieces]
    assert max(lengths) < 1.02 * min(lengths)


def test_one_regime_for_all_files_but_the_one_that_looks_for_it() -> None:
    chosen = read_config(selection.experiment("regime.toml"))
    for name in (selection.PAPER, selection.SENSITIVITY, "precision.toml"):
        for config in selection.read(selection.experiment(name), None).runs.values():
            regime = (config.train.model, config.data.scale, config.train.augment)
            assert regime == (chosen.train.model, chosen.data.scale, chosen.train.augment)


def test_readings_of_the_regime_differ_in_it_alone() -> None:
    sweep = selection.read(selection.experiment(selection.REGIMES), None)
    columns = {}
    for name, runs in sweep.parts.items():
        (candidate,) = {tuple(selection.columns(sweep.runs[run])[key] for key in REGIME) for run in runs}
        columns[candidate] = {selection.place(sweep.runs[run]) for run in runs}
        assert "/".join(str(word or "none") for word in candidate) == name
    assert len(columns) == len(sweep.parts)
    (cells,) = set(map(frozenset, columns.values()))
    assert len(cells) == 3 * (3 + 2 + 1 + 1)
    assert {where for where, *_ in cells} == {"iid"}
    one = selection.read(selection.experiment(selection.REGIMES), None, ["part=wide/unit/crop:4+flip", "delta=0.5"])
    assert {(config.train.model, config.world.harvest) for config in one.runs.values()} == {("wide", "bernoulli:0.5")}
    assert list(one.parts) == ["wide/unit/crop:4+flip"]


def test_the_sensitivity_cells_rest_on_the_grid() -> None:
    known = {config.identity() for config in selection.read(selection.experiment(selection.PAPER), None).runs.values()}
    sweep = selection.read(selection.experiment(selection.SENSITIVITY), None)
    shared = {part: sum(sweep.runs[name].identity() in known for name in names) for part, names in sweep.parts.items()}
    assert shared == {
        "queue threshold": 2,
        "relay mix and rotation": 4,
        "FedBacys' references": 12,
        "FLDA's lambda": 4,
        "serving the mean of the chains": 0,
        "serving a mean of the last ten models": 6,
        "kappa": 6,
        "isolated clients": 0,
    }


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--trials", "0"), "--trials 0: needs a count"),
        (("--trials", "5-3"), "--trials 5-3: needs a count"),
        (("--trials", "many"), "--trials many: needs a count"),
        (("--only", "colour=red"), "colour: unknown"),
        (("--only", "delta"), "needs a condition"),
        (("--only", "delta=0.4"), "no run of small.toml matches"),
        (("--only", "part=wide"), "--only part=wide: small.toml: the file has no parts"),
        (("--piece", "3/2"), "--piece 3/2: needs two numbers"),
        (("--merge", "nothing.parquet"), "nothing.parquet: cannot be read (no such file or directory)"),
        (("--merge", "small.toml"), "small.toml: cannot be read (it is not a Parquet file, or is damaged)"),
    ],
)
def test_mistakes_are_one_sentence(arguments: tuple[str, ...], reason: str, home: Path) -> None:
    done = reproduce("--file", "small.toml", *arguments, cwd=home)
    assert done.returncode == 2
    assert reason in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_trials_by_number() -> None:
    assert selection.numbers("3") == [0, 1, 2]
    assert selection.numbers("3-5") == [3, 4, 5]
    with pytest.raises(InputError):
        selection.numbers("-1")
