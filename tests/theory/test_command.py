"""`pipecycle theory` as a user runs it."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pipecycle.runs.config import Config
from pipecycle.runs.run import RunFolder, train_folders
from pipecycle.theory.bounds import UNLEARNT
from tests.commands import ctrl_c, pipecycle, working_in

run = partial(pipecycle, "theory", columns=120)


def studies(*arguments: str) -> list[dict[str, Any]]:
    done = run(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    found: list[dict[str, Any]] = json.loads(line, parse_constant=pytest.fail)["studies"]  # no NaN, no Infinity
    return found


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two finished runs on real data that differ in their groups."""
    home = tmp_path_factory.mktemp("sweep")
    base = Config().changed({"world.clients": 20, "world.slots": 400})
    folders = [RunFolder(home / str(groups), base.changed({"groups": groups})) for groups in (1, 4)]
    train_folders(folders, device="cpu")
    return home


def test_the_table_reads(tmp_path: Path) -> None:
    done = run("--slots", "3000", "--figure", str(tmp_path / "theory.png"))
    assert done.returncode == 0, done.stderr
    assert all(line.startswith("planning") for line in done.stderr.splitlines())  # a slow machine says how far it is
    text = " ".join(done.stdout.split())
    assert "d_max = 150" in text
    assert "says nothing at any of these G" in text
    assert "Recommended: G = 1." in text
    assert "a chain meets 20 of 100" in text
    assert (tmp_path / "theory.png").read_bytes().startswith(b"\x89PNG")


def test_the_numbers_of_the_paper() -> None:
    """Those of test_bounds, through the command."""
    (study,) = studies("--groups", "1,2,5,10", "--delta", "0.1", "--L", "1")
    rows = {row["groups"]: row for row in study["bounds"]}
    assert study["system"]["d_max"] == 750
    assert study["optimal_groups"]["value"] == pytest.approx(0.999999, abs=1e-6)
    assert study["optimal_groups"]["whole"] == 1
    assert rows[2]["zeta"] == pytest.approx(-1.125e6, rel=1e-3)
    assert rows[2]["as_printed"]["value"] is None
    assert "not positive" in rows[2]["as_printed"]["vacuous"]
    assert rows[10]["step_limit"] == pytest.approx(2.743e-10, rel=3e-4)
    plans = {row["groups"]: row for row in study["plans"]}
    assert [round(plans[G]["expected"]["printed"]) for G in (2, 5, 10)] == [395, 987, 1974]
    assert [plans[G]["aggregations"] for G in (2, 5, 10)] == pytest.approx(
        [1484, 3382, 4933], rel=0.02
    )  # another trial
    assert study["constants"]["assumed"] is True


def test_where_the_bound_does_say_something() -> None:
    """One chain, small steps, a long horizon: the theorem is below what smoothness alone gives."""
    options = [
        "--groups",
        "1,2",
        "--lr",
        "0.0005",
        "--L",
        "0.5",
        "--sigma2",
        "0.1",
        "--omega2",
        "0.025",
        "--gap",
        "2.3",
    ]
    (study,) = studies(*options)
    one, two = study["bounds"]
    assert one["as_printed"]["value"] < study["smoothness_alone"] == 2.3
    assert two["as_printed"]["vacuous"] is not None
    assert "says something at G = 1." in " ".join(run(*options).stdout.split())


def test_coverage_rule_and_other_policies() -> None:
    (study,) = studies("--groups", "4,10", "--delta", "1", "--slots", "2000")
    assert [(row["rule"], row["coverage"]) for row in study["plans"]] == [(50, 50), (20, 20)]
    (study,) = studies("--policy", "cycp", "--groups", "1-3,5", "--slots", "1000", "--harvest", "always")
    assert [row["groups"] for row in study["plans"]] == [1, 2, 3, 5]
    assert "bounds" not in study
    assert study["recommendation"]["groups"] == 2


def test_measuring_a_sweep(sweep: Path, tmp_path: Path) -> None:
    drawn = tmp_path / "theory.svg"
    (study,) = studies("--measure", str(sweep), "--models", "2", "--figure", str(drawn))
    assert [one["label"] for one in study["measured"]] == ["G = 1", "G = 4"]
    assert study["constants"]["assumed"] is False
    assert study["constants"]["L"] == max(one["constants"]["L"]["value"] for one in study["measured"])
    for one in study["measured"]:
        assert one["constants"]["L"]["which"] == "largest seen"
        assert one["constants"]["f0_gap"]["which"].startswith("smallest: f* = ")
    assert [row["groups"] for row in study["plans"]] == [1, 2, 4, 5, 10]
    assert study["recommendation"]["source"] == "measured"
    assert study["measured"][0]["points"][-1]["perturbation2"] < 1e-6  # one chain has no others
    assert study["measured"][1]["points"][-1]["perturbation2"] > 0.1
    assert drawn.read_text().rstrip().endswith("</svg>")
    text = run("--measure", str(sweep / "4"), "--models", "2", "--groups", "4").stdout
    constants = ("error of the mean is", "largest seen", "standard error over 2 models", "the lowest loss seen")
    for words in ("Measured on digits with mlp, IID", *constants, "half the way to f* = 0", "Lemma 2"):
        assert words in " ".join(text.split())


@pytest.mark.slow
@pytest.mark.parametrize(("lr", "groups", "seen"), [(20.0, 2, "several"), (1e6, 1, "one")])
def test_a_run_that_did_not_learn(lr: float, groups: int, seen: str, tmp_path: Path) -> None:
    """No model is better than x_0, or there is none but x_0: no bound and no lemma, but everything else."""
    config = Config().changed({"world.clients": 20, "world.slots": 600, "train.lr": lr, "groups": groups})
    train_folders([RunFolder(tmp_path / "run", config)], device="cpu")
    drawn = tmp_path / "theory.svg"
    (study,) = studies("--measure", str(tmp_path / "run"), "--models", "3", "--figure", str(drawn))
    (one,) = study["measured"]
    assert (len(one["points"]) == 1) == (seen == "one")
    assert one["blew_up"] is True
    assert study["constants"]["f0_gap"] == 0
    for row in study["bounds"]:
        assert (row["best_step"], row["at_best_step"]) == (None, None)
        assert row["as_printed"] == {
            "value": None,
            "vacuous": UNLEARNT,
        }
    assert one["theorem"]["vacuous"] == UNLEARNT
    assert drawn.read_text().rstrip().endswith("</svg>")
    done = run("--measure", str(tmp_path / "run"), "--models", "3")
    assert done.returncode == 0, done.stderr
    text = " ".join(done.stdout.split())
    assert f"There is no bound: {UNLEARNT}." in text
    assert ("Lemma 1" in text) == (seen == "several")
    if seen == "one":
        assert one["constants"]["L"]["error"] is None  # one model has no spread
        assert "by 1 model " in text
        assert " diverged " in text


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("--groups two", "--groups two: needs whole numbers or ranges"),
        ("--groups 0,2", "at least 1 concurrent group"),
        ("--groups 5-2", "--groups 5-2: the range 5-2 is empty"),
        ("--groups 1,5-2", "the range 5-2 is empty"),
        ("--delta 0", "delta = 0"),
        ("--delta 0.1 --harvest always", "not both"),
        ("--lr -1", "lr = -1.0: needs a number above 0"),
        ("--lr 1e200", "lr = 1e+200: needs a number above 0 and at most 1,000,000"),
        ("--L 0", "L = 0.0: needs a number above 0"),
        ("--L 1e200", "L = 1e+200: needs a number above 0 and below 1e+100"),
        ("--gap -1", "gap = -1.0: needs a number above 0"),
        ("--sigma2 inf", "sigma2 = inf: needs a number of at least 0"),
        ("--policy fedavg", "fedavg has no groups"),
        ("--policy pipecycel", "did you mean"),
        ("--measure nothing", "nothing"),
        ("--measure nothing --delta 0.5", "--measure and --delta: a run has its own"),
        ("--measure nothing --L 3", "--measure and --L: a run has its own"),
        ("--figure theory.gif", "needs a name that ends in .png, .pdf, .svg"),
    ],
)
def test_mistakes_are_one_sentence(arguments: str, reason: str) -> None:
    short = [] if "--measure" in arguments else ["--slots", "300"]
    done = run(*short, *arguments.split())
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert reason.lower() in line.lower()


HELD = """
import time
from pathlib import Path
from torch import nn

class Net(nn.Module):
    calls = 0
    def __init__(self, shape, classes):
        super().__init__()
        self.line = nn.Linear(64, classes)
    def forward(self, x):
        Net.calls += 1
        while Net.calls > 20 and Path("hold").exists():
            time.sleep(0.01)
        return self.line(x.flatten(1))
"""


def test_ctrl_c_while_measuring_leaves_everything_as_it_was(tmp_path: Path) -> None:
    """A model that waits, so that the command is still measuring when it is interrupted, however late that is."""
    (tmp_path / "held.py").write_text(HELD)
    config = Config().changed({"world.clients": 10, "world.slots": 150, "train.model": "held:Net", "groups": 1})
    with working_in(tmp_path):
        train_folders([RunFolder(tmp_path / "run", config)], device="cpu")
    (tmp_path / "hold").touch()
    before = _files(tmp_path)
    done = ctrl_c("theory", "--measure", "run", "--figure", "f.png", cwd=tmp_path, at="G = 1")
    assert done.returncode == 130
    assert done.stderr.splitlines()[-1] == (
        "pipecycle: stopped; no file is half-written. Run the same command to start again"
    )
    assert _files(tmp_path) == before


def _files(folder: Path) -> dict[Path, bytes]:
    paths = [path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return {path: path.read_bytes() for path in paths}
