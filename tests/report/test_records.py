from __future__ import annotations

import re
import shutil
from pathlib import Path

import attrs
import pytest

from pipecycle import InputError, Schedule
from pipecycle.report import load
from pipecycle.runs.config import Config
from pipecycle.runs.records import read
from pipecycle.runs.run import RunFolder


def test_trials_of_one_configuration_are_one_group(make, tmp_path: Path) -> None:
    for trial in (1, 0):
        make(f"runs/a{trial}", "pipecycle", world__trial=trial)
        make(f"runs/b{trial}", "fedavg", world__trial=trial)
    groups = load([tmp_path / "runs"])
    assert [group.label for group in groups] == ["pipecycle", "fedavg"]
    assert [[record.trial for record in group.records] for group in groups] == [[0, 1], [0, 1]]
    assert groups[0].scenario == groups[1].scenario
    assert groups[0].records[0].state == "finished"


def test_labels_say_what_tells_groups_apart_and_nothing_else(make) -> None:
    paths = [
        make("a", "pipecycle", groups=2),
        make("b", "pipecycle", groups=3),
        make("c", "fedavg"),
        make("d", "fedavg", world__harvest="always"),
    ]
    labels = [group.label for group in load(paths)]
    assert labels == [
        "pipecycle groups=2 harvest=bernoulli:0.5",
        "pipecycle groups=3 harvest=bernoulli:0.5",
        "fedavg harvest=always",
        "fedavg harvest=bernoulli:0.5",
    ]


def test_a_default_given_or_not_is_the_same_configuration(make) -> None:
    (group,) = load([make("a", "pipecycle"), make("b", "pipecycle", groups=2, world__trial=1)])
    assert len(group.records) == 2


def test_an_unfinished_run_is_shown_as_such_and_left_out_of_means(make) -> None:
    done = make("a", "pipecycle")
    begun = make("b", "pipecycle", world__trial=1, accuracy=(40.0,), ended=None)
    fresh = make("c", "pipecycle", world__trial=2, ended=None, metrics=False)
    (group,) = load([done, begun, fresh])
    assert [record.state for record in group.records] == [
        "finished",
        "unfinished, evaluated up to slot 100",
        "unfinished, nothing evaluated yet",
    ]
    assert [record.trial for record in group.trained] == [0]
    (alone,) = load([begun])
    assert alone.trained == ()
    assert len(alone.curves) == 1


def test_a_lone_schedule_is_planned_only(make, tmp_path: Path) -> None:
    folder = make("a")
    shutil.copy(folder / "schedule.npz", tmp_path / "lone.npz")
    (group,) = load([tmp_path / "lone.npz"])
    assert group.records[0].state == "planned only"
    assert group.facts["world.clients"] == 10
    both = load([folder, tmp_path / "lone.npz"])
    assert [one.label for one in both] == ["pipecycle", "pipecycle (plan)"]


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda run: shutil.rmtree(run), "there is no such run"),
        (lambda run: (run / "schedule.npz").unlink(), "holds a config.toml but no schedule.npz"),
        (lambda run: [file.unlink() for file in run.iterdir()], "is not a run, nor does it hold any"),
        (lambda run: (run / "schedule.npz").write_bytes(b"no"), "is not an npz file of named arrays, or a damaged one"),
        (lambda run: (run / "metrics.csv").write_text("slot,energy\n1,x\n"), "is not the metrics of a run"),
        (lambda run: (run / "result.json").write_text("{"), "is not the result of a run"),
        (lambda run: (run / "metrics.csv").unlink(), "metrics.csv cannot be read (no such file or directory)"),
        (lambda run: (run / "config.toml").write_text("format = 99\n"), "is a configuration of format 99"),
    ],
)
def test_what_is_not_a_run_is_refused_in_one_sentence(make, spoil, sentence: str) -> None:
    run = make("run")
    spoil(run)
    with pytest.raises(InputError, match=re.escape(sentence)) as caught:
        load([run])
    assert "\n" not in str(caught.value)


def test_other_files_and_the_same_run_twice_are_refused(make, tmp_path: Path) -> None:
    run = make("run")
    with pytest.raises(InputError, match="is not a run; give its folder"):
        load([run / "metrics.csv"])
    shutil.copytree(run, tmp_path / "copy")
    with pytest.raises(InputError, match=r"is the same run as .*run \(pipecycle, trial 0\)"):
        load([run, tmp_path / "copy"])
    with pytest.raises(InputError, match="no runs"):
        load([])


def test_steps_are_told_apart(make) -> None:
    groups = load([make("a", "fedseq"), make("b", "fedseq", step="lag-stable"), make("c", "fedseq", step=0.5)])
    assert sorted(group.label for group in groups) == ["fedseq step=0.5", "fedseq step=1.0", "fedseq step=lag-stable"]


def old_plus(make, name: str) -> Path:
    """A run folder as the first pipecycle+ left it: it was pipecycle with other defaults."""
    folder = make(name, "pipecycle", rotation="spread", relay_mix=0.5)
    config = Config("pipecycle+").changed({"world.clients": 10, "world.slots": 400, "world.harvest": "bernoulli:0.5"})
    (folder / "config.toml").write_text(config.text().replace("revision = 2\n", ""))
    schedule = Schedule.load(folder / "schedule.npz")
    attrs.evolve(schedule, meta={**schedule.meta, "policy": "pipecycle+"}).save(folder / "schedule.npz")
    return folder


def test_runs_of_the_former_pipecycle_plus_still_open_and_are_not_resumed(make) -> None:
    folder = old_plus(make, "old")
    groups = load([folder, make("new", "pipecycle+")])
    assert [group.label for group in groups] == ["pipecycle+ revision=1", "pipecycle+ revision=2"]
    same = Config("pipecycle", {"rotation": "spread", "relay_mix": 0.5}).changed(
        {"world.clients": 10, "world.slots": 400, "world.harvest": "bernoulli:0.5"}
    )
    assert groups[0].example.config is not None
    assert groups[0].example.config.text() == same.text()
    config = read(folder.parent / "new").config
    assert config is not None
    with pytest.raises(InputError, match="holds a run of an earlier pipecycle\\+, which was another algorithm"):
        RunFolder(folder, config)
