"""Variants of policies in one line: on the command line, in a sweep's matrix and in Python."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipecycle.errors import InputError
from pipecycle.policies import FedAvg, PipeCycle
from pipecycle.policies.registry import build, settings
from pipecycle.policies.spec import Spec
from pipecycle.runs.compare import DEMO, compare, comparison
from pipecycle.runs.config import Config
from pipecycle.runs.sweep import expand
from tests.commands import Done, pipecycle

OWN = """from attrs import define
from pipecycle.policies import FedAvg

@define(slots=False, eq=False)
class Policy(FedAvg):
    name = "own"
    k: int = 3
"""
SMALL = ("--clients", "8", "--slots", "200", "--budget", "300", "--trials", "1", "--device", "cpu", "--workers", "1")


def compared(*arguments: str, cwd: Path) -> Done:
    return pipecycle("compare", *arguments, *SMALL, "--out", "c", cwd=cwd, columns=200)


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("fedavg", Spec("fedavg")),
        ("pipecycle(groups=2)", Spec("pipecycle", {"groups": "2"})),
        (" pipecycle+ ( groups = 2 , kappa=0.5 ) ", Spec("pipecycle+", {"groups": "2", "kappa": "0.5"})),
        ("fedavg()", Spec("fedavg")),
        ("fedavg{train.lr=0.02}", Spec("fedavg", {}, {"train.lr": "0.02"})),
        ("a.b:C(k=1){lr=2, x.y=3}", Spec("a.b:C", {"k": "1"}, {"lr": "2", "x.y": "3"})),
        ("x{harvest=markov:0.3,12}", Spec("x", {}, {"harvest": "markov:0.3,12"})),
        ("x{harvest='solar:a.csv,panel=2', slots=9}", Spec("x", {}, {"harvest": "solar:a.csv,panel=2", "slots": "9"})),
    ],
)
def test_specs(text: str, spec: Spec) -> None:
    assert Spec.of(text) == spec
    assert Spec.of(str(Spec.of(text))) == spec or "panel" in text  # quotes are not kept


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("pipecycle(groups=2", r"needs NAME, NAME\(setting=value"),
        ("(groups=2)", "needs NAME"),
        ("pipecycle(2)", "'2' needs to be key=value"),
        ("pipecycle(groups=)", "'groups=' needs to be key=value"),
        ("pipecycle(groups=2, groups=3)", "groups is given twice"),
        ("pipecycle(size=2)", "setting 'size' of pipecycle: unknown"),
        ("pipecycle(groups=two)", "groups = two: needs a whole number"),
        ("fedavg{train.lr=0.1}", "train.lr is about a run"),
    ],
)
def test_wrong_specs_are_one_sentence(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        build(text)


def test_a_policy_is_built_from_a_spec_and_back() -> None:
    policy = build("pipecycle(groups=3)", {"rotation": "spread"})
    assert isinstance(policy, PipeCycle)
    assert (policy.groups, policy.rotation) == (3, "spread")
    assert Spec.of(policy) == Spec("pipecycle", settings(policy))


def test_variants_on_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "my.py").write_text(OWN)
    entries = ("pipecycle(groups=2)", "pipecycle", "fedavg(epoch=60){train.lr=0.02}", "my:Policy(k=10)")
    done = compared(*entries, "--set", "train.lr=0.04", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    labels = {row["label"] for row in json.loads(done.stdout)["rows"]}
    assert labels == {"pipecycle groups=2 lr=0.04", "pipecycle groups=5 lr=0.04", "fedavg lr=0.02", "own lr=0.04"}
    texts = [path.read_text() for path in (tmp_path / "c").glob("*/config.toml")]
    assert sum('name = "pipecycle"\ngroups = 5\n' in text for text in texts) == 1
    assert sum('name = "fedavg"\nepoch = 60\n' in text and "lr = 0.02\n" in text for text in texts) == 1
    assert sum('name = "my:Policy"\nk = 10\n' in text and "lr = 0.04\n" in text for text in texts) == 1
    page = (tmp_path / "c" / "report.html").read_text()
    assert "PipeCycle groups=2 lr=0.04" in page
    assert "PipeCycle groups=5 lr=0.04" in page


def test_a_setting_for_all_that_have_it() -> None:
    runs = comparison(DEMO, ["pipecycle(groups=3)", "cycp", "fedavg"], 1, settings={"groups": "2"}).runs.values()
    assert [config.settings.get("groups") for config in runs] == [3, 2, None]
    runs = comparison(DEMO, ["fedavg{slots=300}", "mifa"], 1).runs.values()
    assert [config.world.slots for config in runs] == [300, 1000]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            "fedavg --set groups=2",
            "setting 'groups' of fedavg: unknown, needs a setting (epoch) or a field of the run (",
        ),
        ("fedavg mifa --set train.distillation=0.5", "train.distillation = 0.5: has no effect, fedavg has no teacher"),
        ("flda fedavg{train.distillation=0.5}", "train.distillation = 0.5: has no effect, fedavg has no teacher"),
        ("fedavg --groups 2", "setting 'groups' of fedavg: unknown"),
        ("fedavg mifa --set k=10", "setting 'k' of fedavg, mifa: unknown"),
        ("fedavg --set lr=0.1", "setting 'lr' of fedavg: unknown, did you mean 'train.lr'?"),
        ("pipecycle(groups=2) --groups 3", "groups: has no effect, pipecycle(groups=2) say their own"),
        ("pipecycle --groups 3 --set groups=2", "--groups 3 and --set groups=2: give one of them, not both"),
        ("pipecycle pipecycle(groups=5)", "two of them are the same"),
        ("fedavg{trial=3}", "a trial is for all policies"),
        ("fedavg{lr=3}", "did you mean 'train.lr'?"),
        ("fedavg{train.lrr=3}", "train.lrr: unknown, did you mean 'train.lr'?"),  # `lr` alone would be refused
        ("fedavg --delta 0.3 --set harvest=always", "--delta 0.3 and --set harvest=always: give one of them, not both"),
        ("fedavg --slots 300 --set world.slots=200", "--slots 300 and --set world.slots=200: give one of them"),
        ("fedavg --set epoch=3 --set epoch=4", "epoch is set twice"),
        ("fedavg --config pipe.toml", "groups = 9 of pipecycle: has no effect, it is not compared"),
        ("fedavg --set data.split=s.json --set samples=3", "unknown, did you mean 'data.samples'?"),
        ("fedavg --set data.split=s.json --alpha 1", "--alpha 1: has no effect, s.json says who holds which samples"),
    ],
)
def test_what_has_no_effect_is_refused(arguments: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "pipe.toml").write_text('[policy]\nname = "pipecycle"\ngroups = 9\n')
    done = pipecycle("compare", *arguments.split(), cwd=tmp_path)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert said in line
    assert not (tmp_path / "runs").exists()


def test_variants_in_python() -> None:
    base = DEMO.changed({"clients": 8, "slots": 200, "budget": 300.0})
    found = compare(["pipecycle(groups=2)", PipeCycle(groups=3), "mifa", FedAvg(epoch=60)], 1, base=base, device="cpu")
    lengths = {group.label: group.example.schedule.meta["settings"] for group in found.groups}
    assert set(lengths) == {"pipecycle groups=2", "pipecycle groups=3", "mifa", "fedavg"}
    assert lengths["pipecycle groups=3"]["groups"] == 3
    assert lengths["fedavg"]["epoch"] == 60


def test_variants_in_a_matrix() -> None:
    matrix = {"policy": ["pipecycle(groups=2)", "cycp", "fedavg"], "groups": [5, 10], "lr": [0.1]}
    with pytest.raises(InputError, match=r"setting 'lr' of .*, cycp, fedavg: unknown, did you mean 'train.lr'"):
        expand(Config(), matrix)
    runs = expand(Config(), {**{key: matrix[key] for key in ("policy", "groups")}, "train.lr": [0.1]}).runs.values()
    cells = [(config.policy, config.settings.get("groups")) for config in runs]
    assert cells == [("pipecycle", 2), ("cycp", 5), ("cycp", 10), ("fedavg", None)]
    with pytest.raises(InputError, match=r"groups: has no effect, pipecycle\(groups=2\) say their own"):
        expand(Config(), {"policy": ["pipecycle(groups=2)"], "groups": [5]})


def test_plan_and_run_take_specs_and_short_names(tmp_path: Path) -> None:
    done = pipecycle("plan", "pipecycle(groups=3){slots=300}", "--set", "clients=20", "--json", cwd=tmp_path)
    figures = json.loads(done.stdout)
    assert (figures["settings"]["groups"], figures["slots"], figures["clients"]) == (3, 300, 20)
    both = pipecycle("plan", "pipecycle(groups=3)", "--groups", "2", cwd=tmp_path)
    assert "groups=3 of pipecycle and --groups 2: give one of them, not both" in both.stderr
    done = pipecycle("config", "fedavg(epoch=40)", "--set", "alpha=iid", "--set", "delta=0.3", "--json", cwd=tmp_path)
    values = json.loads(done.stdout)
    assert (values["policy"]["epoch"], values["data"]["alpha"]) == (40, None)
    assert values["world"]["harvest"] == "bernoulli:0.3"
