from __future__ import annotations

import gc
import json
import signal
from pathlib import Path

import pandas
import pytest

from pipecycle import InputError
from pipecycle.runs.config import Config
from pipecycle.runs.estimate import estimate
from pipecycle.runs.parquet import collect
from pipecycle.runs.run import RunFolder, job_of, train_folders
from pipecycle.runs.sweep import expand, read_sweep
from pipecycle.runs.workers import dealt, share
from pipecycle.train.job import Job
from tests.commands import Done, end, pipecycle, process, until

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
        (
            "[matrix]\nspeed = [1]\n",
            r"setting 'speed' of pipecycle: unknown, needs a setting \(groups, .*\) or a field of the run",
        ),
        ("[matrix]\ngroup = [1]\n", "setting 'group' of pipecycle: unknown, did you mean 'groups'"),
        ("[matrix]\npolicies = ['fedavg']\n", "policies: unknown, did you mean 'policy'"),
        ("[matrix]\ndetla = [0.1]\n", "setting 'detla' of pipecycle: unknown, did you mean 'delta'"),
        ("[matrix]\nlr = [0.1]\n", "setting 'lr' of pipecycle: unknown, did you mean 'train.lr'"),
        ("[martix]\nlr = [0.1]\n", "martix: unknown, did you mean 'matrix'"),
        (
            "[matrix]\npolicy = ['fedavg']\n'train.distillation' = [0.1, 0.5]\n",
            "train.distillation: has no effect, fedavg has no teacher",
        ),
        ("[base.policy]\nname = 'mifa'\n[base.train]\ndistillation = 0.5\n", "has no effect, mifa has no teacher"),
        ("[matrix]\npolicy = 'fedavg'\n", "matrix.policy = fedavg: needs a list"),
        ("[matrix]\npolicy = ['fedavgg']\n", "did you mean 'fedavg'"),
        ("[matrix]\n'train.speed' = [1]\n", "train.speed: unknown"),
        ("[base.world]\nslot = 3\n", "did you mean 'world.slots'"),
        ("trials = 0\n", "trials = 0"),
        ("colour = 3\n", "colour: unknown, needs one of base, extends, matrix, trials, exclude, when"),
        ("[matrix]\npolicy = ['fedavg']\n[[exclude]]\npolicy = 'fedavg'\n", "everything is excluded"),
        ("[matrix]\ndelta = [0.1]\n[[exclude]]\ndelt = 0.1\n", "a rule about delt: unknown, did you mean 'delta'"),
        ("[matrix]\ndelta = [0.1]\n[[when]]\ndelta = 0.1\n", "needs a table called set"),
        ("[matrix\n", "is not TOML"),
        ("extends = 'nowhere.toml'\n", r"nowhere\.toml: cannot be read \(no such file or directory\)"),
        ("extends = 5\n", "extends = 5: needs text"),
        ("trials = '12'\n", "trials = '12': needs 1 to 100,000, or a list"),
        ("[matrix]\nslots = [50]\n'world.slots' = [60]\n", "matrix.slots and matrix.world.slots: are the same"),
        ("[matrix]\ndelta = [0.5]\nharvest = ['always']\n", "matrix.delta and matrix.harvest: are the same"),
        ("[matrix]\ngroups = [2, 5]\n[[exclude]]\ngroups = '2'\n", "groups.*: describes no run"),
        ("[matrix]\ngroups = [2]\n[[when]]\ngroups = 3\nset = { slots = 5 }\n", "groups.*: describes no run"),
        ("[[parts]]\nbase = {}\n", "part 1: base: unknown, needs one of matrix, trials, exclude, when"),
        ("[base.world]\nslots = 0\n", r"s\.toml: slots = 0"),
        ("trials = true\n", "trials = True"),
        ("trials = 2.5\n", "trials = 2.5"),
        ("trials = []\n", "trials = "),
        ("trials = [0, 0]\n", "different trials"),
        ("trials = [0, '1']\n", "different trials"),
        ("trials = [-1]\n", "different trials"),
        ("[[parts]]\ntrials = '3'\n", "part 1: trials = '3'"),
        ("trials = 2\n[matrix]\ntrial = [0, 5]\n", "trial and trials = 2: give one of them"),
        ("trials = 2\n[matrix]\n'world.trial' = [0, 5]\n", "world.trial and trials = 2: give one of them"),
        ("trials = 2\n[base.world]\ntrial = 5\n", "world.trial = 5 and trials = 2: give one of them"),
        ("trials = 2\n[matrix]\ndelta = [0.1]\n[[when]]\ndelta = 0.1\nset = { trial = 3 }\n", "trial and trials = 2"),
        ("base = 3\n", "base = 3: needs"),
        ("matrix = [1]\n", "matrix = .*: needs"),
        ("exclude = 'x'\n", "exclude = .*: needs"),
        ("parts = [1]\n", "parts = .*: needs"),
        ("[matrix]\ndelta = [0.1]\n[[when]]\ndelta = 0.1\nset = 4\n", "set = 4"),
        ("[[parts]]\nname = 'a'\n[[parts]]\nname = 'a'\n", "same name"),
        ("trials = 5000\n[matrix]\nslots = [1, 2, 3]\ndelta = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]\n", "combinations"),
    ],
)
def test_mistakes_are_named(text: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(text)
    with pytest.raises(InputError, match=reason):
        read_sweep(tmp_path / "s.toml")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[matrix]\ntrial = [0, 5]\n", [0, 5]),
        ("[matrix]\n'world.trial' = [3]\n", [3]),
        ("[base.world]\ntrial = 5\n", [5]),
        ("trials = [2, 7]\n", [2, 7]),
        ("trials = 2\n", [0, 1]),
        ("", [0]),
        ("trials = 2\n[[parts]]\n[[parts]]\nname = 'more'\ntrials = [1, 4]\n", [0, 1, 4]),
        ("[matrix]\ndelta = [0.1, 0.2]\n[[when]]\ndelta = 0.2\nset = { trial = 3 }\n", [0, 3]),
    ],
)
def test_a_folder_holds_the_trial_that_its_name_says(text: str, expected: list[int], tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(text)
    runs = read_sweep(tmp_path / "s.toml").runs
    assert sorted(config.world.trial for config in runs.values()) == expected
    for name, config in runs.items():
        assert f"_trial-{config.world.trial}_" in name
        assert name.count("trial") == 1


def test_the_weight_of_a_teacher_multiplies_those_who_have_one() -> None:
    matrix = {"policy": ["flda", "fedavg"], "train.distillation": [0.5, 1.0]}
    configs = list(expand(Config(), matrix).runs.values())
    weights = [(config.policy, config.train.distillation) for config in configs]
    assert weights == [("flda", 0.5), ("flda", 1.0), ("fedavg", 0.1)]
    assert configs[2].identity() == Config("fedavg").identity()


def test_iid_and_skewed_in_one_matrix() -> None:
    sweep = expand(Config("fedavg"), {"alpha": ["iid", 0.1]})
    assert [config.data.alpha for config in sweep.runs.values()] == [None, 0.1]


def sweep(folder: Path, *arguments: str) -> Done:
    """`s.toml` beside the folder; one worker, because a second one imports torch once more."""
    options = ("--out", str(folder), "--device", "cpu", "--workers", "1")
    return pipecycle("sweep", "s.toml", *options, *arguments, cwd=folder.parent)


def test_scales_and_augmentations_in_one_matrix() -> None:
    matrix = {"policy": ["fedavg"], "scale": ["none", "unit"], "augment": ["none", "flip", "crop:2+flip"]}
    configs = list(expand(Config(), matrix).runs.values())
    assert [(one.data.scale, one.train.augment) for one in configs] == [
        (scale, augment) for scale in (None, "unit") for augment in (None, "flip", "crop:2+flip")
    ]
    assert configs[0].identity() == Config("fedavg").identity()
    with pytest.raises(InputError, match="augment = blur: needs none, flip"):
        expand(Config(), {"augment": ["blur"]})


def test_a_sweep_runs_skips_and_reports(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(FILE + "\n")
    dry = sweep(tmp_path / "a", "--dry-run", "--json")
    assert json.loads(dry.stdout)["runs"] == 10
    assert json.loads(dry.stdout)["steps"] > 1000
    assert not (tmp_path / "a").exists()
    first = sweep(tmp_path / "a", "--json")
    assert json.loads(first.stdout) == {
        "runs": 10, "finished": 10, "failed": {}, "rows": 20, "folder": str(tmp_path / "a"),
    }  # fmt: skip
    frame = pandas.read_parquet(tmp_path / "a" / "results.parquet")
    assert len(frame) == 20
    assert set(frame["policy"]) == {"pipecycle", "fedavg"}
    assert {"world.harvest", "policy.groups", "slot", "energy", "accuracy"} <= set(frame.columns)
    again = sweep(tmp_path / "a")
    assert "10 of 10 runs finished" in again.stdout
    assert f"`pipecycle tables {tmp_path / 'a'}` and `pipecycle report {tmp_path / 'a'}` show" in again.stdout
    folders = read_sweep(tmp_path / "s.toml").folders(tmp_path / "a")
    assert len(collect(folders)) == 20


def test_an_estimate_keeps_few_plans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipecycle.runs.estimate.SAMPLE", 2)
    kept: list[int] = []

    def tell(done: int, total: int) -> None:
        kept.append(sum(type(one) is Job for one in gc.get_objects()))

    base = Config("fedavg").changed({"world.clients": 5, "world.slots": 100, "world.session": 5})
    folders = expand(base, {}, 8).folders(tmp_path)
    before = sum(type(one) is Job for one in gc.get_objects())
    whole = estimate(folders, device="cpu", workers=1, tell=tell)
    assert max(kept) <= before + 3  # the sample, and the one at hand
    assert len(kept) == whole.runs == 8
    assert whole.steps == sum(job_of(folder.config).steps_total for folder in folders)
    assert whole.seconds > 0
    idle = expand(base.changed({"world.harvest": "bernoulli:0.0001"}), {}).folders(tmp_path)
    assert estimate(idle, device="cpu").seconds == 0.0


SMALL = "[base.world]\nclients = 5\nslots = 100\nsession = 5\n[matrix]\npolicy = ['fedavg']\n"


def test_one_bad_run_does_not_stop_the_rest(tmp_path: Path) -> None:
    (tmp_path / "worn.py").write_text(
        "from torch import nn\nclass Net(nn.Module):\n"
        "  def __init__(self, shape, classes):\n"
        "    super().__init__()\n    self.line, self.left = nn.Linear(64, classes), 50\n"
        "  def forward(self, x):\n"
        "    self.left -= 1\n    assert self.left >= 0, 'worn out'\n    return self.line(x.flatten(1))\n"
    )
    (tmp_path / "s.toml").write_text(SMALL + "model = ['worn:Net', 'mlp']\n")
    done = sweep(tmp_path / "a")
    assert done.returncode == 1
    text = " ".join(done.stdout.split())
    assert "1 of 2 runs finished" in text
    assert "worn.py, line 8, in forward: AssertionError: worn out" in text


def test_a_run_that_cannot_begin_refuses_the_whole_file(tmp_path: Path) -> None:
    (tmp_path / "unfit.py").write_text("import torch\ndef model(shape, classes): return torch.nn.Linear(3, classes)\n")
    for line, name, reason in (
        ("capacity = [50.0, 3.0]", "capacity-3.0", "capacity = 3: a session needs 5 units"),
        ("model = ['mlp', 'unfit:model']", "model-unfit:model", "model 'unfit:model' on inputs of shape (1, 8, 8)"),
        ("model = ['mlp', 'json:net']", "model-json:net", "model 'json:net': module 'json' has no 'net'"),
    ):
        (tmp_path / "s.toml").write_text(f"{SMALL}{line}\n")
        done = sweep(tmp_path / "a")
        assert done.returncode == 2
        assert name in done.stderr
        assert reason in done.stderr
        assert not (tmp_path / "a").exists()


@pytest.mark.slow
def test_an_interrupted_sweep_says_from_where_it_resumes_and_ends_the_same(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(
        "[base.world]\nclients = 10\nslots = 450\n[base.train]\nmodel = 'lenet'\n[base.look]\nevery = 30\n"
    )
    running = process("sweep", "s.toml", "--out", "cut", "--device", "cpu", "--save-every", "0.05", cwd=tmp_path)
    until(lambda: list((tmp_path / "cut").glob("*/checkpoint/state.safetensors")), running)
    output, _ = end(running, signal.SIGINT)
    assert running.returncode == 130
    assert "run the same command again to resume" in output
    (metrics,) = (tmp_path / "cut").glob("*/metrics.csv")
    reached = [line.partition(",")[0] for line in metrics.read_text().splitlines()[1:]]
    resumed = sweep(tmp_path / "cut")
    assert resumed.returncode == 0
    assert f"Worker 1: 1 run resumes from slot {[0, *reached][-1]}." in resumed.stdout + resumed.stderr
    quiet = read_sweep(tmp_path / "s.toml").folders(tmp_path / "whole")
    train_folders(quiet, device="cpu")
    results = pandas.read_parquet(tmp_path / "cut" / "results.parquet")
    pandas.testing.assert_frame_equal(results, collect(quiet), check_exact=True)


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


def test_a_file_builds_on_another_and_wins_over_it(tmp_path: Path) -> None:
    (tmp_path / "below.toml").write_text("[world]\nslots = 200\nclients = 7\n[train]\nlr = 0.1\n")
    (tmp_path / "s.toml").write_text("extends = 'below.toml'\n[base.world]\nslots = 300\n[matrix]\ndelta = [0.1]\n")
    (config,) = read_sweep(tmp_path / "s.toml").runs.values()
    assert (config.world.slots, config.world.clients, config.train.lr) == (300, 7, 0.1)


def test_steps_in_a_sweep_are_numbers_and_words(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(
        "[base.world]\nclients = 10\nslots = 60\nsession = 5\n"
        '[matrix]\npolicy = ["fedseq", "fedavg"]\nstep = [1, 0.5, "lag-stable"]\n'
    )
    sweep = read_sweep(tmp_path / "s.toml")
    assert [config.settings.get("step") for config in sweep.runs.values()] == [1.0, 0.5, "lag-stable", None]
    folders = sweep.folders(tmp_path / "out")
    train_folders(folders, device="cpu")
    frame = collect(folders)
    frame.to_parquet(tmp_path / "results.parquet")  # one type in a column, or it cannot be written
    again = pandas.read_parquet(tmp_path / "results.parquet")
    steps = again.groupby("run", sort=False)["policy.step"].first().fillna("unsaid").tolist()
    assert steps == ["unsaid", "0.5", "lag-stable", "unsaid"]


def test_runs_are_dealt_out_by_what_is_left_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Places stand in for GPUs: each gets a process and a stack of its own."""
    base = Config().changed({"world.clients": 10, "world.session": 5})
    slots = (200, 1000, 400, 600, 400)
    folders = [
        RunFolder(tmp_path / f"run-{index}", base.changed({"world.slots": count, "world.harvest": "bernoulli:0.5"}))
        for index, count in enumerate(slots)
    ]

    def lengths(places: int) -> list[list[int]]:
        return [[slots[int(Path(path).name[4:])] for path, _ in shard] for shard in dealt(folders, places)]

    assert lengths(1) == [[1000, 600, 400, 400, 200]]
    assert lengths(2) == [[1000, 400], [600, 400, 200]]
    assert lengths(3) == [[1000], [600, 200], [400, 400]]
    # Half of the longest run is done: it is no longer the longest.
    folders[1].path.mkdir()
    (folders[1].path / "metrics.csv").write_text("slot,energy\n500,2500.0\n")
    assert lengths(2) == [[600, 400], [1000, 400, 200]]
    monkeypatch.setattr("pipecycle.runs.workers._gpus", lambda: 2)
    assert [place for place, _ in share(folders, "auto", None)] == ["cuda:0", "cuda:1"]
    assert [place for place, _ in share(folders, "cpu", 3)] == ["cpu"] * 3
