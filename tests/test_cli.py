"""The command as a user runs it: its output, its exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipecycle.commands.planning import PLANNED
from pipecycle.policies import REGISTRY
from pipecycle.policies.settings import described
from pipecycle.runs.config import Config, read_config
from pipecycle.runs.planning import plan_of
from pipecycle.runs.sweep import expand
from tests.commands import ctrl_c, pipecycle

run = partial(pipecycle, columns=100)


def figures(*arguments: str) -> dict[str, Any]:
    done = run("plan", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    result: dict[str, Any] = json.loads(line)
    return result


def test_defaults_and_keys() -> None:
    got = figures("pipecycle", "--delta", "1")
    assert (got["policy"], got["clients"], got["slots"], got["trial"]) == ("pipecycle", 100, 15_000, 0)
    assert got["aggregations"] == 1497
    assert got["energy"] == {"harvested": 1_500_000, "spent": 628_939, "stored": 871_061, "overflowed": 0}
    assert got["budget_slot"] is None
    assert got["group_size"] == {"mean": 20, "max": 20}
    assert got["max_concurrent_groups"] == 2
    assert got["lag"]["max"] <= 2
    assert got["ancestry_max"] == 2
    assert got["chains"] == {"count": 2, "coverage_min": 100, "coverage_mean": 100, "depth_max": 749}
    assert got["sessions"] == 29_960


def test_a_plan_says_what_it_does_not_look_at(tmp_path: Path) -> None:
    words = ("plan", "pipecycle{train.momentum=0.5}", "--slots", "60", "--set", "train.lr=3", "--set", "train.batch=5")
    said = "Note: train.momentum, train.lr have no effect on a plan, which trains nothing."
    assert said in run(*words).stdout
    assert said in run(*words, "--json").stderr
    assert "no effect" not in run("plan", "pipecycle", "--slots", "60", "--set", "data.samples=5", "--json").stderr


LEARNING = {
    "data.name": "fashion-mnist", "data.alpha": 0.1, "data.samples": 3, "data.split": "halves.json",
    "data.scale": "unit", "data.validation": 7, "train.model": "lenet", "train.lr": 0.2, "train.momentum": 0.5,
    "train.weight_decay": 0.1, "train.proximal": 0.1, "train.lr_decay": 0.5, "train.batch": 4,
    "train.replacement": True, "train.distillation": 0.2, "train.precision": "tf32", "train.augment": "flip",
    "look.every": 30, "look.clients_every": 30, "look.early_stop": "late", "look.served": "mean:3",
    "look.on": "validation",
}  # fmt: skip
"""Another value for every field of the sections about learning."""


def test_what_a_plan_is_said_to_look_at_is_what_it_looks_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By plans whose weights or prices come from a split, from a fleet's sessions and from the model."""
    monkeypatch.chdir(tmp_path)
    for name, first in {"own.json": [5, 40, 40], "halves.json": [40, 5, 40]}.items():
        clients = [list(range(end - size, end)) for size, end in zip(first, np.cumsum(first).tolist(), strict=True)]
        (tmp_path / name).write_text(json.dumps({"clients": clients, "test": [0]}))
    (tmp_path / "fleet.csv").write_text("name,session\n" + "".join(f"{client},{5 + client}\n" for client in range(3)))
    assert LEARNING.keys() == {key for key in Config().fields() if not key.startswith("world.")}
    world = {"world.slots": 60, "world.clients": 3, "world.session": 5}
    bases = [
        Config("fedavg").changed({**world, "data.split": "own.json", "data.validation": 2}),
        Config("fedavg").changed({**world, "world.fleet": "fleet.csv"}),
        Config("flda").changed(world),
    ]
    digests = [plan_of(base).digest() for base in bases]
    decisive = set()
    for key, value in LEARNING.items():
        for base, digest in zip(bases, digests, strict=True):
            if key == "look.on":
                base = base.changed({"data.validation": 2})
            if key != "data.name" or base.policy == "flda":
                decisive |= {key} if plan_of(base.changed({key: value})).digest() != digest else set()
    assert decisive == set(PLANNED)


def test_a_configuration_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("[world]\nslots = 60\n", encoding="utf-8-sig")
    assert figures("fedavg", "--config", str(tmp_path / "mine.toml"))["slots"] == 60


def test_a_budget_stops_the_plan() -> None:
    got = figures("pipecycle", "--delta", "1", "--budget", "500000")
    assert got["budget_slot"] == 11_930
    assert got["slots"] == 11_931
    got = figures("pipecycle", "--groups", "10", "--delta", "1", "--slots", "100", "--budget", "1e9")
    assert got["budget_slot"] is None
    assert got["slots"] == 100


def test_settings_and_harvests() -> None:
    got = figures("fedavg", "--harvest", "markov:0.3,12", "--slots", "500", "--set", "epoch=40", "--trial", "3")
    assert got["settings"] == {"epoch": 40}
    assert got["max_concurrent_groups"] is None
    got = figures("pipecycle", "--harvest", "always", "--slots", "50", "--set", "capacity=25", "--set", "initial=21")
    assert got["energy"]["overflowed"] > 0
    energy = got["energy"]
    assert energy["harvested"] == energy["spent"] + energy["stored"] + energy["overflowed"]


def test_a_rate_is_a_harvest_everywhere(tmp_path: Path) -> None:
    """On the command line, in `--set`, beside a policy, in files, in a matrix and in Python: the same run."""
    wanted = Config("fedavg").changed({"delta": 0.3})
    assert wanted.world.harvest == "bernoulli:0.3"
    (tmp_path / "c.toml").write_text("[policy]\nname = 'fedavg'\n[world]\nharvest = 0.3\n")
    for words in ("fedavg --set harvest=0.3", "fedavg{harvest=.3}", "--config c.toml"):
        text = run("config", *words.split(), cwd=tmp_path).stdout
        assert 'harvest = "bernoulli:0.3"' in text, words
    assert figures("fedavg", "--harvest", "0.3", "--slots", "90") == figures("fedavg", "--delta", ".3", "--slots", "90")
    for rate in (0.3, "0.3", np.float64(0.3)):
        assert [*expand(Config("fedavg"), {"harvest": [rate]}).runs.values()] == [wanted]
    assert "rate = 3: needs" in run("plan", "fedavg", "--harvest", "3").stderr
    assert "not both" in run("plan", "fedavg", "--harvest", "0.3", "--delta", "0.3").stderr


def test_a_readable_summary_without_escape_codes() -> None:
    done = run("plan", "pipecycle", "--groups", "10", "--slots", "2000")
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    assert "lane 10" in done.stdout
    assert "A─────────A─────────A" in done.stdout
    assert "a chain has met only" in done.stdout.lower()
    for policy in ("fedavg", "flda", "cycp"):
        assert "training" in run("plan", policy, "--slots", "300").stdout


def test_save_show_and_diff(tmp_path: Path) -> None:
    for name, trial in (("a", "0"), ("b", "0"), ("c", "1")):
        done = run("plan", "cycp", "--slots", "400", "--trial", trial, "--out", str(tmp_path / f"{name}.npz"))
        assert "saved to" in done.stdout
    shown = run("show", str(tmp_path / "a.npz"), "--json", "--budget", "1000")
    assert json.loads(shown.stdout)["budget_slot"] > 0
    assert "aggregations" in run("show", str(tmp_path / "a.npz")).stdout
    same = run("diff", str(tmp_path / "a.npz"), str(tmp_path / "b.npz"))
    assert (same.returncode, same.stdout) == (0, "The schedules are identical.\n")
    other = run("diff", str(tmp_path / "a.npz"), str(tmp_path / "c.npz"), "--json")
    assert other.returncode == 1
    assert "meta.trial" in json.loads(other.stdout)["differs"]
    narrow = pipecycle("diff", "a.npz", "c.npz", cwd=tmp_path, columns=60).stdout
    assert "sessions_by_status.in_flight" in narrow  # nothing is cut off
    assert "…" not in narrow


def test_policies_teach_their_settings() -> None:
    text = run("policies").stdout
    assert [line.split(":")[0] for line in text.splitlines() if not line.startswith(" ")] == [*REGISTRY, "fedprox"]
    whole = "groups = 2  Groups in training at once, at most (G); a whole number of at least 1"
    assert f"    {whole}\n" in text
    settings = json.loads(run("policies", "--json").stdout)["fedavg"]["settings"]
    assert settings == {
        "epoch": {
            "default": None,
            "needs": "a whole number of at least 1",
            "note": "Slots between two server steps (S); max(30, 1.5 sessions) if not given.",
        }
    }
    assert run("policies", "fedavg").stdout.count("\n") == 2
    assert "    use_memory = true  Average over" in text  # as a file says it
    assert "    upload_ratio = by the model  Size of" in text
    assert "    group_size  Members per group" in text
    for name, kind in REGISTRY.items():  # every setting of ours has its line
        assert all(setting.note for setting in described(kind).values()), name


def test_config_teaches_and_is_a_configuration(tmp_path: Path) -> None:
    for name in REGISTRY:
        text = run("config", name).stdout
        (tmp_path / "c.toml").write_text(text)
        assert read_config(tmp_path / "c.toml").identity() == Config(name).identity()
    text = run("config", "pipecycle").stdout
    assert 'rotation = "longest-idle"  # Who joins when more clients are eligible than fit; one of' in text
    assert "lr = 0.05  # learning rate; above 0 and at most 1,000,000\n" in text
    assert "; a number of at least 0 and below 1\n" in text
    assert "none is" not in text
    assert 'harvest = "bernoulli:0.5"  # where energy comes from: a rate, bernoulli:RATE, markov:RATE,BURST,' in text
    assert "the policy's own default" not in text


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("plan pipecycle --delta -0.1", "rate = -0.1"),
        ("plan pipecycel", "did you mean 'pipecycle'"),
        ("plan pipecycle --groups 0", "groups = 0: needs at least 1 concurrent group"),
        ("plan fedavg --groups 2", "fedavg has no groups"),
        ("plan pipecycle --delta 0.1 --harvest always", "not both"),
        ("plan pipecycle --harvest csv:none.csv", "none.csv: cannot be read"),
        ("plan pipecycle --harvest moon", "harvest 'moon'"),
        ("plan pipecycle --set size=3", "setting 'size' of pipecycle"),
        ("plan pipecycle --set groups", "--set groups: needs key=value"),
        ("plan pipecycle --set capacity=19", "capacity = 19: a session needs 20 units"),
        ("plan pipecycle --set capacity=lots", "capacity = lots: needs a number"),
        ("plan pipecycle --session 0", "session = 0"),
        ("plan pipecycle --slots 0", "slots = 0"),
        ("plan pipecycle --clients many", "--clients many: needs a whole number"),
        ("plan pipecycle --budget -3", "budget = -3"),
        ("plan pipecycle --speed 3", "--speed: unknown, --help lists the options"),
        ("show x.npz --budget", "--budget: needs a value"),
        ("plan pipecycle --json=5", "--json: takes no value"),
        ("plan pipecycle --seed 3", "--seed: unknown, did you mean --trial?"),
        ("run pipecycle --lr 0.1", "--lr: unknown, write --set train.lr=VALUE"),
        ("run pipecycle --rotation spread", "--rotation: unknown, write --set rotation=VALUE"),
        ("run pipecycle --slots 1e4", "--slots 1e4: needs a whole number"),
        ("compare --budget=10k", "--budget 10k: needs a number"),
        ("compare --trials 0", "--trials 0: needs at least 1"),
        ("compare fedavg --session 0", "session = 0: needs at least 1 slot"),
        ("plan", "POLICY"),
        ("run", "POLICY"),
        ("run pipecycle --set lr=0.1", "setting 'lr' of pipecycle: unknown, did you mean 'train.lr'?"),
        # planned first, it would take so long that a line says so
        ("run fedavg --model nothing:here --slots 3000000", "module 'nothing' cannot be imported"),
        ("run fedavg --set train.distillation=0.5", "train.distillation = 0.5: has no effect, fedavg has no teacher"),
        ("config fedavg --set nonsense=0.1", "setting 'nonsense' of fedavg: unknown"),
        ("show nothing.npz", "nothing.npz: cannot be read"),
        ("dance", "dance"),
    ],
)
def test_mistakes_are_one_sentence_and_exit_code_two(arguments: str, reason: str, tmp_path: Path) -> None:
    done = run(*arguments.split(), *(["--out", "s.npz"] if arguments.startswith("plan") else []), cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    *before, line = done.stderr.splitlines()
    assert all(said.startswith("reading") for said in before)  # on a machine under load
    assert reason.lower() in line.lower()
    assert list(tmp_path.iterdir()) == []  # nothing written


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    done = run("plan", "fedavg", "--slots", "50", "--out", str(tmp_path / "no" / "s.npz"))
    assert done.returncode == 2
    assert "cannot be written" in done.stderr


@pytest.mark.parametrize("words", [[], ["data"], ["deploy"]])
def test_a_command_without_arguments_shows_its_help_and_complains_about_nothing(words: list[str]) -> None:
    done = run(*words)
    assert "Usage: pipecycle" in done.stdout
    assert done.stderr == ""


def test_help_teaches() -> None:
    assert "who trains when" in run("--help").stdout
    text = run("plan", "--help").stdout
    for word in ("--harvest", "bernoulli:RATE", "--set", "Example"):
        assert word in text
    for words in (["sweep"], ["compare"], ["deploy", "up"], ["run"], []):
        assert "<bool>" not in run(*words, "--help").stdout
    assert "A TOML file with [base], [matrix], trials and [[exclude]]." in run("sweep", "--help").stdout
    text = " ".join(run("compare", "--help").stdout.replace("│", " ").split())
    assert "A TOML file instead of the demo: what it does not say has the defaults of `pipecycle config`" in text


@pytest.mark.parametrize(
    ("words", "complete"),
    [
        ("compare fedavg pipe", ["pipecycle", "pipecycle+"]),
        ("run fedavg --model le", ["lenet"]),
        ("run fedavg --data fa", ["fashion-mnist"]),
        ("plan fedavg --set train.l", ["train.lr=", "train.lr_decay="]),
        ("plan fedavg --set del", ["delta="]),
        ("plan fedavg --harvest c", ["clearsky:", "csv:"]),
        ("compare fedavg --fleet b", ["boards", "bikes.csv"]),
        ("run fedavg --data {here}/o", ["{here}/own.npz"]),
        ("data fetch ci", ["cifar10"]),
    ],
)
def test_completion(words: str, complete: list[str], tmp_path: Path) -> None:
    for name in ("bikes.csv", "own.npz"):
        (tmp_path / name).touch()
    words = words.replace("{here}", str(tmp_path))
    about = {
        "_PIPECYCLE_COMPLETE": "complete_bash",
        "COMP_WORDS": f"pipecycle {words}",
        "COMP_CWORD": str(len(words.split())),
    }
    program = str(Path(sys.executable).with_name("pipecycle"))
    environment = {**os.environ, **about}
    done = subprocess.run([program], capture_output=True, text=True, check=False, env=environment, cwd=tmp_path)
    assert done.stdout.split() == [word.replace("{here}", str(tmp_path)) for word in complete]


def test_long_paths_are_not_broken_where_a_program_reads(tmp_path: Path) -> None:
    folder = tmp_path / ("a-long-name-" * 8)
    folder.mkdir()
    done = pipecycle("plan", "fedavg", "--slots", "50", "--out", str(folder / "s.npz"), columns=60)
    assert f"saved to {folder / 's.npz'}\n" in done.stdout
    small = ("--clients", "5", "--slots", "60", "--device", "cpu")
    done = pipecycle("run", "fedavg", *small, "--out", str(folder / "r"), columns=60)
    assert (
        f"In {folder / 'r'}: config.toml, schedule.npz, metrics.csv, model.safetensors, result.json.\n" in done.stdout
    )


def test_a_process_says_the_same(tmp_path: Path) -> None:
    """What the other tests do in this process is what the program does: exit codes, streams, nothing heavy imported."""
    for arguments in (["plan", "fedavg", "--slots", "200"], ["plan", "pipecycel"]):
        done = subprocess.run(
            [sys.executable, "-m", "pipecycle", *arguments],
            check=False, capture_output=True, text=True, cwd=tmp_path,
        )  # fmt: skip
        here = pipecycle(*arguments, cwd=tmp_path)
        assert (done.returncode, done.stdout, done.stderr) == (here.returncode, here.stdout, here.stderr)
    code = (
        "import sys; from pipecycle.commands import cli; sys.argv = ['pipecycle', 'plan', 'fedavg', '--slots', '200']\n"
        "try: cli.main()\n"
        "except SystemExit: sys.exit(repr({'torch', 'pandas', 'sklearn', 'scipy', 'plotly'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.stderr == "set()\n"


def test_a_run_says_what_it_does_before_it_plans(tmp_path: Path) -> None:
    done = ctrl_c("run", "fedavg", "--slots", "500000", "--out", "r", cwd=tmp_path, at="reading the data and the model")
    assert done.returncode == 130
    assert list(tmp_path.iterdir()) == []


def test_streams_that_are_closed_or_know_few_letters(tmp_path: Path) -> None:
    here = f"{sys.executable} -m pipecycle plan fedavg --slots 200"
    for line in (f"{here} >&-", f"PYTHONIOENCODING=ascii {here}"):
        done = subprocess.run(line, shell=True, check=False, capture_output=True, text=True, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
    assert "training  " in done.stdout
    assert "????????" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_nothing_but_the_help_for_no_command() -> None:
    for words in ([], ["data"], ["deploy"]):
        done = run(*words)
        assert (done.returncode, done.stderr) == (2, "")
        assert "Usage: " in done.stdout


def test_ctrl_c_while_planning_leaves_nothing_behind(tmp_path: Path) -> None:
    done = ctrl_c("plan", "fedavg", "--clients", "200000", "--out", "s.npz", cwd=tmp_path, at="planning fedavg")
    assert done.returncode == 130
    assert done.stderr.splitlines()[-1] == (
        "pipecycle: stopped; no file is half-written. Run the same command to start again"
    )
    assert list(tmp_path.iterdir()) == []
