"""`pipecycle compare`, and what a researcher may expect of every command."""

from __future__ import annotations

import html
import json
import os
import resource
import subprocess
import sys
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import torch

from pipecycle.data import session_indices
from pipecycle.policies import REGISTRY
from pipecycle.report import load
from pipecycle.runs.compare import DEMO, POLICIES, captions, compare, comparison, lines, references
from pipecycle.runs.run import problem_of
from pipecycle.train.engine import train_many
from tests.commands import Done, ctrl_c, pipecycle

SMALL = ("--trials", "2", "--clients", "8", "--slots", "300", "--budget", "400", "--device", "cpu", "--workers", "1")


def on_a_full_disk(*arguments: str, cwd: Path) -> Done:
    """A limit on the size of files is what a full disk looks like to the program: a write that fails."""
    command = [sys.executable, "-m", "pipecycle", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=cwd,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000)),
    )  # fmt: skip


def test_the_demo_compares_the_papers_schedulers_and_ours() -> None:
    rivals = {"fedasync", "fedbuff", "fedau", "fedvarp", "f3ast"}
    assert set(POLICIES) == set(REGISTRY) - {"fedbacys-odd", "isolated"} - rivals
    sweep = comparison(DEMO)
    assert len(sweep) == 24
    assert {config.settings.get("groups") for config in sweep.runs.values()} == {5, None}


def test_compare_prints_a_table_and_writes_a_report(tmp_path: Path) -> None:
    done = pipecycle("compare", "pipecycle", "fedavg", *SMALL, "--out", "c", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    for word in ("scheduler", "fedavg", "pipecycle", "centralised", "isolated", "unlimited", "c/report.html"):
        assert word in done.stdout
    page = (tmp_path / "c" / "report.html").read_text()
    assert "http://" not in page.split("<script", 1)[0]
    # The lines end with the longest run of their trial, and both screen and report say so.
    records = [record for group in load([tmp_path / "c"]) for record in group.records]
    slots = {trial: max(one.schedule.slots for one in records if one.trial == trial) for trial in (0, 1)}
    about = captions(8, slots)
    assert f"({min(slots.values())} to {max(slots.values())})" in about["centralised"]
    for name, text in about.items():
        assert f"{name}: {text}" in " ".join(done.stdout.split())
        assert f"{name}: {html.escape(text)}" in page
    again = pipecycle("compare", "pipecycle", "fedavg", *SMALL, "--out", "c", "--json", cwd=tmp_path)
    rows = {row["policy"]: row for row in json.loads(again.stdout)["rows"]}
    assert set(rows) == {"pipecycle", "fedavg"}
    assert sorted(row["is_best"] for row in rows.values()) == [False, True]
    worse = next(row for row in rows.values() if not row["is_best"])
    by_trial = [
        worse["accuracy_by_trial"][trial]
        - next(row for row in rows.values() if row["is_best"])["accuracy_by_trial"][trial]
        for trial in ("0", "1")
    ]
    assert worse["difference"] == pytest.approx(sum(by_trial) / 2)
    # Two pairs: the interval is the mean +- 12.706 standard errors (Student's t, one degree of freedom).
    half = 12.7062 * abs(by_trial[0] - by_trial[1]) / 2
    assert worse["difference_high"] - worse["difference"] == pytest.approx(half, rel=1e-4, abs=1e-9)


def test_long_names_cut_no_figure(tmp_path: Path) -> None:
    entries = ("pipecycle+(groups=2)", "pipecycle+(groups=4)", "fedavg{train.lr=0.01}")
    done = pipecycle("compare", *entries, *SMALL, "--out", "c", cwd=tmp_path)
    table = done.stdout.partition("\n")[2].partition("Accuracy in percent")[0]
    assert "…" not in table
    assert table.count(" ± ") == 3 + 2  # an accuracy each, and the difference of two to the best
    assert max(map(len, table.splitlines())) <= 80


OWN = """joules = 2
slot = 300
[[device]]
count = 3
session = 8
download = 0.5
[[device]]
count = 5
session = 12
"""


def test_compare_with_a_fleet_says_what_its_figures_are(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(OWN)
    small = [*SMALL[:2], *SMALL[4:]]
    done = pipecycle("compare", "fedavg", *small, "--fleet", "own.toml", "--out", "c", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stdout.split())
    assert "8 clients, 300 slots, the devices of own.toml, 400 units" in said
    assert "Energy: training / to hubs / to the server / downloads. Waste" in said
    assert "A unit is 2 J, a slot 5 minutes." in said
    shares = next(line for line in done.stdout.splitlines() if line.startswith(" fedavg")).split()[-2].split("/")
    assert len(shares) == 4
    assert sum(map(int, shares)) in (99, 100, 101)


def test_reference_lines_have_the_sessions_of_the_fleet(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(OWN)
    base = DEMO.changed({"world.fleet": str(tmp_path / "own.toml"), "world.clients": 8, "world.slots": 60})
    unlimited = lines(base)["unlimited"].schedule
    assert unlimited.length.tolist() == [8] * 3 + [12] * 5
    assert unlimited.samples.tolist() == [15 * 8] * 3 + [15 * 12] * 5


def test_a_fleet_counts_its_clients_for_compare_in_python(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(OWN)
    result = compare(["fedavg"], trials=1, slots=60, budget=50, fleet=str(tmp_path / "own.toml"))
    assert [record.schedule.clients for group in result.groups for record in group.records] == [8]


def test_reference_lines_lie_where_they_should() -> None:
    base = DEMO.changed({"world.clients": 10, "world.slots": 1200})
    found = references(base, {0: 1200})
    assert found["isolated"][0] < 60 < found["centralised"][0]
    assert found["unlimited"][0] > found["isolated"][0]


def test_centralised_is_sgd_with_a_step_in_every_slot() -> None:
    """A session follows the other from slot 0 on; by hand it is a plain loop over the batches of one client."""
    base = DEMO.changed({"world.clients": 5, "world.slots": 50, "world.budget": None, "data.samples": 60})
    job = lines(base)["centralised"]
    assert job.schedule.sessions.start.tolist() == [0, 20, 40]
    assert job.schedule.sessions.end.tolist() == [19, 39, 59]  # 50 slots, and the session that has begun
    assert job.steps_total == 60
    (mine,) = job.problem.split
    assert sorted(mine) == sorted(np.concatenate([*problem_of(base).split]))
    train_many([job], trainer="loop", dtype=torch.float64)

    module = deepcopy(job.problem.module).double()
    images, labels = torch.from_numpy(job.problem.task.x_train).double(), torch.from_numpy(job.problem.task.y_train)
    sgd = torch.optim.SGD(module.parameters(), lr=base.train.lr)
    for k in range(3):
        for index in session_indices(mine, 0, 0, k, 20, 15):
            sgd.zero_grad()
            torch.nn.functional.cross_entropy(module(images[index]), labels[index]).backward()
            sgd.step()
    task, test = job.problem.task, job.problem.split.test
    right = module(torch.from_numpy(task.x_test[test]).double()).argmax(1).numpy() == task.y_test[test]
    assert job.history.final.clients_accuracy == pytest.approx(100 * right.mean())
    assert right.mean() > 0.3


def test_isolated_is_the_mean_over_all_clients(tmp_path: Path) -> None:
    """A table of gains per client: only the second of seven charges, so six of the mean are the initial model."""
    rows = "\n".join(f"{slot},0,1,0,0,0,0,0" for slot in range(300))
    (tmp_path / "gains.csv").write_text(f"slot,a,b,c,d,e,f,g\n{rows}\n")
    base = DEMO.changed({"world.clients": 7, "world.slots": 300, "world.harvest": f"csv:{tmp_path / 'gains.csv'}"})
    job = lines(base.changed({"world.budget": None}))["isolated"]
    assert set(job.schedule.sessions.client.tolist()) == {1}
    train_many([job])
    last, untrained = job.history.final, job.scores[0].accuracy
    own = job.client_scores[max(job.client_scores)]
    assert last.clients_accuracy == pytest.approx((6 * untrained + own) / 7)
    assert references(base, {0: 300})["isolated"] == [last.clients_accuracy]


def test_lines_are_kept_for_the_slots_they_were_asked_for(tmp_path: Path) -> None:
    base = DEMO.changed({"world.clients": 4, "world.slots": 200})
    first = references(base, {0: 60}, tmp_path)
    (kept,) = tmp_path.iterdir()
    kept.write_text(kept.read_text().replace("0.", "1.", 1) if "0." in kept.read_text() else "{")
    assert references(base, {0: 60}, tmp_path) == first  # damaged, so they are computed again
    kept.write_text(json.dumps({**first, "isolated": [-1.0]}))
    assert references(base, {0: 60}, tmp_path)["isolated"] == [-1.0]
    assert references(base, {0: 80}, tmp_path)["isolated"] != [-1.0]


def test_compare_from_python() -> None:
    base = DEMO.changed({"world.clients": 8, "world.slots": 300, "world.budget": 400.0})
    found = compare(["fedavg", "mifa"], trials=2, base=base, device="cpu")
    assert set(found.table().index) == {"fedavg", "mifa"}
    assert set(found.frame()["trial"]) == {0, 1}
    assert "Comparison(2 schedulers, 2 trials)" in repr(found)


@pytest.mark.slow
def test_a_full_disk_is_one_sentence(tmp_path: Path) -> None:
    for arguments in (
        ("plan", "fedavg", "--slots", "2000", "--out", "s.npz"),
        ("run", "fedavg", "--clients", "8", "--slots", "300"),
    ):
        done = on_a_full_disk(*arguments, cwd=tmp_path)
        assert done.returncode == 2
        *progress, line = done.stderr.splitlines()
        assert all(said.startswith(("planning", "training")) for said in progress), progress  # on a slow machine
        assert "cannot be written (file too large)" in line
        assert not list(tmp_path.rglob("*.partial"))


def test_a_configuration_of_another_version_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "old.toml").write_text("format = 0\n")
    for command in ("plan", "run", "compare", "config"):
        done = pipecycle(command, "--config", "old.toml", cwd=tmp_path)
        assert done.returncode == 2
        assert "is a configuration of format 0, this version reads format 1" in done.stderr


@pytest.mark.slow
def test_ctrl_c_while_comparing_says_how_to_resume(tmp_path: Path) -> None:
    options = ("--model", "lenet", "--trials", "2", "--workers", "1", "--out", "c")
    done = ctrl_c("compare", "fedavg", *options, cwd=tmp_path, at="%")  # the bar has a share done: a worker is training
    assert done.returncode == 130
    assert "run the same command again to resume" in done.stdout
    assert list((tmp_path / "c").glob("*/checkpoint/state.safetensors"))


def test_shell_completion_completes() -> None:
    environment = {
        **os.environ,
        "_PIPECYCLE_COMPLETE": "complete_bash",
        "COMP_WORDS": "pipecycle comp",
        "COMP_CWORD": "1",
    }
    program = Path(sys.executable).with_name("pipecycle")
    done = subprocess.run([str(program)], capture_output=True, text=True, check=False, env=environment)
    assert done.stdout.split() == ["compare"]
