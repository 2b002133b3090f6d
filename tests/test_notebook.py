"""What a newcomer does in a notebook: import, plan, train, look, compare, report."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import pipecycle
from pipecycle import (
    Bernoulli,
    Comparison,
    Config,
    Costs,
    History,
    InputError,
    Markov,
    Schedule,
    Watch,
    build,
    compare,
    plan,
    problem,
    sweep,
    train,
)
from pipecycle.policies import MIFA
from pipecycle.schedule.summary import sentences, summarise
from pipecycle.world.energy import UNIT
from tests.commands import working_in

WORLD = {"harvest": 1.0, "clients": 6, "slots": 120}


@pytest.fixture(scope="module")
def schedule() -> Schedule:
    return plan("pipecycle(groups=2)", **WORLD)


@pytest.fixture(scope="module")
def history(schedule: Schedule) -> History:
    return train(schedule, problem("digits", clients=6), Watch(every=40, budget=150))


@pytest.fixture(scope="module")
def comparison(history: History) -> Comparison:
    other = train(plan("fedavg", **WORLD), problem("digits", clients=6), Watch(every=40, budget=150))
    return Comparison.of([history, other])


def test_importing_the_package_does_not_import_torch() -> None:
    """Neither does planning, nor asking what there is."""
    code = (
        "import sys, pipecycle; from pipecycle import plan, train, build, compare, sweep, Comparison, History;"
        "plan('pipecycle(groups=3)', clients=4, slots=50); print(set(pipecycle.__all__) <= set(dir(pipecycle)));"
        "print([name for name in ('torch', 'pandas', 'matplotlib') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.split("\n")[:2] == ["True", "[]"], done.stderr


def test_every_name_of_the_package_is_there() -> None:
    assert all(getattr(pipecycle, name) is not None for name in pipecycle.__all__)
    with pytest.raises(AttributeError, match="module 'pipecycle' has no attribute 'plot'"):
        _ = pipecycle.plot  # type: ignore[attr-defined]


def test_train_is_a_package_and_can_be_called() -> None:
    from pipecycle.train.engine import train_many

    assert pipecycle.train.train_many is train_many  # type: ignore[attr-defined]
    assert callable(pipecycle.train)


def test_policies_by_name_spec_and_settings() -> None:
    told = [build("pipecycle", groups=3), build("pipecycle(groups=3)"), build("pipecycle", {"groups": "3"})]
    plans = [plan(policy, "markov:0.3,12", 8, 200) for policy in (*told, "pipecycle(groups=3)")]
    assert all(made == plans[0] for made in plans)
    assert plans[0].meta["settings"]["groups"] == 3
    with pytest.raises(InputError, match="setting 'grops' of pipecycle: unknown, did you mean 'groups'"):
        build("pipecycle", grops=3)
    with pytest.raises(InputError, match="policy 'pipecylce': unknown, did you mean 'pipecycle'"):
        plan("pipecylce(groups=3)")


def test_a_schedule_as_text_and_in_a_notebook(schedule: Schedule) -> None:
    said = schedule.summary()
    assert repr(said) == said  # a notebook shows lines, not a string with \n in it
    assert said.startswith("pipecycle (groups 2, rotation longest-idle, relay_mix 1.0)\nlane 1      A─────────A")
    energy = sentences(summarise(schedule))["energy"]
    assert f"\nenergy        {energy}\n" in said
    shown = schedule._repr_html_()
    assert f"<td>{energy}</td>" in shown
    assert shown.count("<img ") == 1
    assert "data:image/png;base64,iVBOR" in shown


def test_the_sessions_of_a_schedule_as_a_frame(schedule: Schedule) -> None:
    frame = schedule.frame()
    assert len(frame) == len(schedule.sessions)
    assert frame["energy"].sum() == schedule.sessions.spent.sum() / UNIT
    assert frame["status"].value_counts().to_dict() == {
        name.replace("_", " "): count for name, count in schedule.status_counts().items() if count
    }


def test_a_history_as_text_and_in_a_notebook(history: History) -> None:
    at = history.at_budget
    assert repr(history).startswith(f"History(pipecycle, trial 0: 4 evaluations, {history.final.accuracy:.1f} % at")
    line = f"at the budget  {at.accuracy:.1f} % with {at.energy:.0f} units"
    assert line in history.summary()
    assert f"{at.accuracy:.1f} % with {at.energy:.0f} units" in history._repr_html_()


def test_an_unfinished_history_says_so() -> None:
    nothing = History([])
    assert "nothing has been evaluated yet" in nothing.summary()
    assert "<img" not in nothing._repr_html_()
    with pytest.raises(InputError, match="a history without a schedule"):
        nothing.report()


def test_figures_show_the_numbers(history: History, comparison: Comparison) -> None:
    (line,) = history.plot("accuracy_slots").axes[0].get_lines()
    regular = history.frame().query("budget == False")
    assert line.get_xdata().tolist() == regular["slot"].tolist()
    assert line.get_ydata().tolist() == pytest.approx(regular["accuracy"].tolist())
    both = comparison.plot()
    assert [text.get_text() for text in both.legends[0].get_texts()] == ["PipeCycle", "FedAvg"]
    png, size = both._repr_png_()  # type: ignore[attr-defined]
    assert png.startswith(b"\x89PNG")
    assert size["width"] == pytest.approx(both.get_figwidth() * 96, abs=1)
    with pytest.raises(InputError, match="plot 'acuracy': unknown, did you mean 'accuracy'"):
        comparison.plot("acuracy")


def test_a_comparison_of_histories(comparison: Comparison, history: History) -> None:
    table = comparison.table()
    assert table.loc["pipecycle", "mean"] == history.at_budget.accuracy
    assert set(comparison.frame()["scheduler"]) == {"pipecycle", "fedavg"}
    best = table.index[0]
    assert f"{best} came out highest: {table['mean'].iloc[0]:.1f} % of test samples right at the budget" in (
        comparison.summary()
    )
    shown = comparison._repr_html_()
    assert f"{best} came out highest" in shown
    assert shown.count("<table>") == 2


def test_what_a_user_calls_things_is_text(history: History) -> None:
    named = Comparison.of({"<b>mine</b>": history})
    assert "&lt;b&gt;mine" in named._repr_html_()
    assert "<b>mine" not in named._repr_html_()


def page_data(path: Path) -> dict[str, object]:
    text = path.read_text()
    found = re.search(r"<script[^>]*application/json[^>]*>(.*?)</script>", text, re.DOTALL)
    assert found
    return json.loads(found[1])


@pytest.mark.parametrize("which", ["schedule", "history", "comparison"])
def test_each_writes_a_page(which: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    thing = request.getfixturevalue(which)
    path = thing.report(tmp_path / "page.html")
    labels = [group["label"] for group in page_data(path)["groups"]]  # type: ignore[attr-defined]
    assert labels == (["PipeCycle", "FedAvg"] if which == "comparison" else ["PipeCycle"])
    assert "in memory" in path.read_text()
    with pytest.raises(InputError, match="needs an accuracy in percent"):
        thing.report(tmp_path / "page.html", target=200)


def test_devices_that_differ_are_compared_like_any_other(tmp_path: Path) -> None:
    """Fast devices use up two units a step; what a session costs differs between clients."""
    learnt = problem("digits", clients=6)
    length = np.array([10, 10, 10, 20, 20, 20])
    own = {"session": length, "costs": Costs(step=20 / length), "samples": learnt.samples(length)}
    runs = {
        "equal": [train(plan("fedavg", **WORLD), learnt, Watch(every=60))],
        "half fast": train(plan("fedavg", **WORLD, **own), learnt, Watch(every=60)),
        "half fast, planned": plan("pipecycle", Bernoulli([1.0] * 6), 6, 120, **own),
    }
    result = Comparison.of(runs)
    assert list(result.table().index[:2]) == sorted(runs, key=lambda name: -result.table()["mean"].fillna(0)[name])[:2]
    data = page_data(result.report(tmp_path / "page.html"))
    assert [group["label"] for group in data["groups"]] == list(runs)  # type: ignore[attr-defined]
    battery = [panel["battery"] for panel in data["panels"]]  # type: ignore[attr-defined]
    assert "z" in battery[0]
    assert "reason" in battery[1]  # the page says why it has no picture of these


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda plan_, learnt: train(learnt, plan_), r"^schedule = Problem\(.*: needs a Schedule \(plan\(\) makes one"),
        (
            lambda plan_, learnt: train(plan_, plan_),
            r"^problem = Schedule\(.*: needs a Problem \(problem\(\) makes one",
        ),
        (lambda plan_, learnt: train(plan_, learnt, 100), r"^watch = 100: needs a Watch \(Watch\(every=100\)"),
        (lambda plan_, learnt: plan("fedavg", costs=1.0), r"^costs = 1.0: needs Costs\(...\)"),
        (lambda plan_, learnt: plan("fedavg", links=0.3), r"^links = 0.3: needs Links\(...\)"),
        (lambda plan_, learnt: plan_.report("page.html", target=200), r"^target = 200: needs an accuracy in percent"),
        (lambda plan_, learnt: Comparison.of([]), r"^no runs: needs at least one run folder, history or schedule"),
    ],
)
def test_a_wrong_thing_is_one_sentence(call: Callable[..., object], said: str, schedule: Schedule) -> None:
    with pytest.raises(InputError, match=said):
        call(schedule, problem("digits", clients=6))


def test_things_say_what_they_are_and_words_mean_the_same_as_on_the_command_line(schedule: Schedule) -> None:
    assert repr(Bernoulli(0.3)) == "Bernoulli(rate=0.3)"
    assert repr(Markov(0.3, 12)) == "Markov(rate=0.3, burst=12)"
    assert repr(Bernoulli(np.full(500, 0.3))).startswith("Bernoulli(rate=500#")
    even = problem("digits", clients=6, alpha="iid")
    assert (even.split.indices == problem("digits", clients=6).split.indices).all()
    with pytest.raises(InputError, match=r"needs one of .*, pipeline, mixing, battery$"):
        schedule.plot("nothing")


def test_runs_that_cannot_be_told_apart_need_names(history: History) -> None:
    with pytest.raises(InputError, match="two runs of pipecycle, trial 0, with the same settings: give them names"):
        Comparison.of([history, history])
    with pytest.raises(InputError, match="twice: has trial 0 twice, needs one run per trial"):
        Comparison.of({"twice": [history, history]})
    with pytest.raises(InputError, match="needs at least one run under every name"):
        Comparison.of({"none": []})
    with pytest.raises(InputError, match="needs a history that train"):
        Comparison.of([MIFA()])  # type: ignore[list-item]
    other = train(plan("pipecycle(groups=2)", **WORLD), problem("digits", clients=6, alpha=0.5), Watch(every=60))
    labels = [group.label for group in Comparison.of([history, other]).groups]
    assert all("alpha=" in label for label in labels)


def test_a_sweep_in_memory_and_in_folders_is_the_same(tmp_path: Path) -> None:
    base = Config().changed({"world.clients": 6, "world.slots": 120, "look.every": 60})
    matrix = {"policy": ["pipecycle+", "fedavg"], "groups": [2, 3], "delta": [1.0]}
    memory = sweep(matrix, 2, base=base, device="cpu")
    assert len(memory.groups) == 3
    assert [len(group.records) for group in memory.groups] == [2, 2, 2]
    folders = sweep(matrix, 2, base=base, out=tmp_path, device="cpu")
    assert folders.table().equals(memory.table())
    numbers = ["slot", "energy", "accuracy", "loss"]
    assert np.allclose(folders.frame()[numbers], memory.frame()[numbers])
    assert Comparison.load(tmp_path).table().equals(memory.table())


def test_a_sweep_file_from_python(tmp_path: Path) -> None:
    file = tmp_path / "grid.toml"
    file.write_text('[base.world]\nclients = 5\nslots = 60\n[matrix]\npolicy = ["fedavg"]\ndelta = [0.5, 1.0]\n')
    found = sweep(file, 2)
    assert [group.label for group in found.groups] == ["fedavg harvest=bernoulli:0.5", "fedavg harvest=bernoulli:1.0"]
    with pytest.raises(InputError, match="a sweep file has its own"):
        sweep(file, base=Config())


INTERRUPTS = """
import os, signal
from pathlib import Path
from torch import nn

class Net(nn.Module):
    calls = 0
    def __init__(self, shape, classes):
        super().__init__()
        self.line = nn.Linear(64, classes)
    def forward(self, x):
        Net.calls += 1
        if Net.calls == 40:
            os.kill(os.getpid(), signal.SIGINT)
        return self.line(x.flatten(1))
"""


def test_ctrl_c_in_a_sweep_is_what_python_users_expect_and_the_same_call_resumes(tmp_path: Path) -> None:
    (tmp_path / "interrupts.py").write_text(INTERRUPTS)
    base = Config("fedavg").changed({"world.clients": 6, "world.slots": 120, "look.every": 20, "delta": 1.0})
    base = base.changed({"train.model": "interrupts:Net"})
    with working_in(tmp_path):
        with pytest.raises(KeyboardInterrupt):
            sweep({"policy": ["fedavg"]}, base=base, out=tmp_path / "cut", device="cpu")
        assert list(tmp_path.glob("cut/*/checkpoint/state.safetensors"))
        resumed = sweep({"policy": ["fedavg"]}, base=base, out=tmp_path / "cut", device="cpu")
        whole = sweep({"policy": ["fedavg"]}, base=base, device="cpu")
    assert resumed.table().equals(whole.table())


def test_a_second_sigterm_in_a_sweep_ends_the_program_as_the_first_does(tmp_path: Path) -> None:
    twice = INTERRUPTS.replace("os.kill", "for _ in range(2): os.kill").replace("SIGINT", "SIGTERM")
    (tmp_path / "impatient.py").write_text(twice)
    base = Config("fedavg").changed({"world.clients": 6, "world.slots": 120, "train.model": "impatient:Net"})
    with working_in(tmp_path), pytest.raises(SystemExit) as ended:
        sweep({"policy": ["fedavg"]}, base=base, out=tmp_path / "cut", device="cpu")
    assert ended.value.code == 143


def test_who_waits_at_a_terminal_sees_how_far_it_is(
    schedule: Schedule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    matrix, base = {"policy": ["fedavg", "mifa"]}, Config().changed({"world.clients": 6, "world.slots": 120})
    for terminal in (False, True):
        if terminal:
            monkeypatch.setenv("FORCE_COLOR", "1")
        for what, work in (
            ("pipecycle", lambda: train(schedule, problem("digits", clients=6), device="cpu")),
            ("2 runs", lambda: compare(["fedavg", "mifa"], 1, base=base, device="cpu")),
            ("2 runs", lambda out=tmp_path / str(terminal): sweep(matrix, base=base, out=out, device="cpu")),
        ):
            work()
            said = capsys.readouterr().err
            assert (f"training {what}" in said) == terminal
            assert terminal or not said


def test_a_frame_says_what_schedulers_differ_in() -> None:
    world = {"clients": 4, "slots": 60}
    runs = [
        train(plan(f"pipecycle(groups={k})", **world), problem("digits", clients=4), Watch(every=60)) for k in (1, 2)
    ]
    frame = Comparison.of(runs).frame()
    assert frame.groupby("groups")["accuracy"].mean().index.tolist() == [1, 2]
    assert "policy" not in frame.columns


def test_one_scheduler_need_not_be_in_a_list() -> None:
    found = compare("fedavg", 1, clients=4, slots=40, budget=50)
    assert [group.label for group in found.groups] == ["fedavg"]
    with pytest.raises(InputError, match="needs at least one scheduler"):
        compare([])
