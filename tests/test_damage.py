"""Damaged files: a changed byte or a cut is refused in one sentence, or does not change what is read.

Where a format has no checksum, a changed byte may give another value that is possible; docs/formats.md says where."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
import torch

from pipecycle import InputError, Schedule, build, plan
from pipecycle.data import Task, dirichlet, load, load_split, save_split
from pipecycle.runs import parquet, records
from pipecycle.runs.config import Config, read_config
from pipecycle.runs.run import RunFolder, problem_of, train_folders, watch
from pipecycle.train import Job
from pipecycle.train.checkpoint import load_job
from pipecycle.world.specs import parse_harvest

SEALED = ("schedule.npz", "split.npz", "data.npz", "results.parquet", "state.safetensors")
OPEN = ("config.toml", "metrics.csv", "split.json", "trace.csv")
FLIPS, CUTS = 30, 8
SMALL = {"world.clients": 6, "world.slots": 60, "world.session": 5, "look.every": 20}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One file of each format."""
    home = tmp_path_factory.mktemp("whole")
    config = Config("pipecycle").changed(SMALL)
    run = RunFolder(home / "run", config)
    saved: list[bytes] = []

    def save(engine: Any) -> None:
        (job,) = engine.jobs
        if job.history.rows and not job.over and not saved:
            engine.settle()
            run.save(job)
            saved.append(run.checkpoint.read_bytes())

    train_folders([run], device="cpu", show=save)
    (home / "state.safetensors").write_bytes(saved[0])
    (home / "identity").write_text(run.identity)
    for name in ("schedule.npz", "config.toml", "metrics.csv"):
        (home / name).write_bytes((run.path / name).read_bytes())
    parquet.Results(parquet.collect([run]), []).save(home / "results.parquet")
    task = digits()
    split = dirichlet(task, 5, 10)
    save_split(split, home / "split.npz")
    save_split(split, home / "split.json")
    np.savez_compressed(
        home / "data.npz",
        x_train=task.x_train[:40], y_train=task.y_train[:40], x_test=task.x_test[:9], y_test=task.y_test[:9],
    )  # fmt: skip
    (home / "trace.csv").write_text("".join(f"{minute},{minute % 7}.25\n" for minute in range(60)))
    return home


@cache
def digits() -> Task:
    return load("digits")


def read_split(path: Path, home: Path) -> str:
    return load_split(path, digits()).digest()


def read_data(path: Path, home: Path) -> list[list[Any]]:
    task = load(path)
    return [array.tolist() for array in (task.x_train, task.y_train, task.x_test, task.y_test)]


def read_results(path: Path, home: Path) -> tuple[str, str]:
    found = parquet.load(path)
    return found.frame.to_csv(), json.dumps(found.pieces)


def read_metrics(path: Path, home: Path) -> list[Any] | None:
    found = records.read_metrics(path)
    return None if found is None else [np.asarray(value).tolist() for value in attrs.asdict(found).values()]


def read_state(path: Path, home: Path) -> tuple[Any, ...]:
    config = read_config(home / "config.toml")
    job = Job(Schedule.load(home / "schedule.npz"), problem_of(config), watch(config))
    load_job(job, path, (home / "identity").read_text(), torch.empty(0))
    weights = job.versions.gather(job.versions.keys()).tolist()
    return job.steps_done, job.history.csv(), job.versions.keys(), weights, job.graph.session_done.tolist()


READ: dict[str, Callable[[Path, Path], Any]] = {
    "schedule.npz": lambda path, home: Schedule.load(path).digest(),
    "split.npz": read_split,
    "data.npz": read_data,
    "results.parquet": read_results,
    "state.safetensors": read_state,
    "config.toml": lambda path, home: read_config(path).text(),
    "metrics.csv": read_metrics,
    "split.json": read_split,
    "trace.csv": lambda path, home: parse_harvest(f"csv:{path}").trace.values.tolist(),  # type: ignore[attr-defined]
}


def damaged(data: bytes, name: str) -> list[bytes]:
    """Versions of a file with one changed byte, and of its beginning; the same in every run of the test."""
    random = np.random.default_rng(len(name))
    flips = []
    for place in random.integers(0, len(data), FLIPS).tolist():
        other = bytearray(data)
        other[place] ^= int(random.integers(1, 256))
        flips.append(bytes(other))
    return flips + [data[:cut] for cut in sorted(random.integers(0, len(data), CUTS).tolist())]


def test_there_are_enough() -> None:
    assert len(READ) * (FLIPS + CUTS) >= 300
    assert {*SEALED, *OPEN} == set(READ)


@pytest.mark.parametrize("name", READ)
def test_damage_is_refused_or_harmless(name: str, home: Path, tmp_path: Path) -> None:
    whole = READ[name](home / name, home)
    path = tmp_path / name
    outcomes = {"refused": 0, "harmless": 0, "another": 0, "long": 0}
    for data in damaged((home / name).read_bytes(), name):
        path.write_bytes(data)
        try:
            found = READ[name](path, home)
        except InputError as error:
            outcomes["refused" if len(str(error)) < 600 and "\n" not in str(error) else "long"] += 1
        else:
            outcomes["harmless" if found == whole else "another"] += 1
    assert outcomes["refused"], outcomes
    assert not outcomes["long"], outcomes
    if name in SEALED:
        assert not outcomes["another"], outcomes


@pytest.mark.parametrize(
    ("old", "new"), [("class_1", "clasR_1"), ("class_1,", ""), (",0,0,", ",0,0,9,"), ("slot", "s")]
)
def test_columns_of_metrics_that_do_not_fit_are_refused(old: str, new: str, home: Path, tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text((home / "metrics.csv").read_text().replace(old, new, 1))
    with pytest.raises(InputError, match="is not the metrics of a run, or is damaged"):
        read_metrics(path, home)


def test_a_column_of_another_version_is_no_damage(home: Path, tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    head, *rows = (home / "metrics.csv").read_text().splitlines()
    path.write_text("\n".join([f"{head},mood", *(f"{row},7" for row in rows)]))
    assert str(read_metrics(path, home)) == str(read_metrics(home / "metrics.csv", home))


COLUMNS = {
    # what is wrong: column, place, value
    "a client that is not there": ("sessions.client", 3, 12),
    "a session before its model": ("sessions.reference", 0, 5),
    "an end before the start": ("sessions.end", 4, 0),
    "a session after the last slot": ("sessions.start", -1, 300),
    "starts out of order": ("sessions.start", 0, 100),
    "an unknown status": ("sessions.status", 0, 9),
    "a receiver of nothing": ("sessions.receiver", 0, 0),
    "energy spent twice": ("sessions.spent", 0, 10**9),
    "negative energy": ("sessions.spent", 0, -5),
    "a level that nobody harvested": ("energy.level", 0, 2**30),
    "a total that falls": ("energy.harvested", 10, 0),
    "overflow out of nothing": ("energy.overflow", 0, 7),
    "a version of itself": ("versions.base", 5, 6),
    "a version of a later one": ("versions.base", 0, 3),
    "an update used twice": ("versions.update", 1, 0),
    "a weight that is no number": ("versions.weight", 0, float("nan")),
    "an infinite coefficient": ("versions.coefficient", 0, float("inf")),
    "offsets that fall": ("versions.base_at", 4, 0),
    "a first version that is none": ("versions.kind", 0, 1),
    "a version from the future": ("versions.made", 1, 299),
    "a publication of nothing": ("publications.version", 0, 10**6),
    "publications out of order": ("publications.slot", 0, 299),
    "a batch of nobody": ("launches", 0, 1),
    "a session of no length": ("length", (), 0),
}


@pytest.mark.parametrize("what", COLUMNS)
def test_a_schedule_that_cannot_be_is_refused(what: str, tmp_path: Path) -> None:
    """Checksums do not help against a file that was made wrong."""
    made = plan(build("pipecycle", {"groups": 3}), 0.5, clients=12, slots=300, session=6)
    column, place, value = COLUMNS[what]
    changed = made.arrays()[column].copy()
    changed[place] = value
    part, _, name = column.rpartition(".")
    target = getattr(made, part) if part else made
    object.__setattr__(target, name, changed)
    made.save(tmp_path / "wrong.npz")
    with pytest.raises(InputError, match="is not a schedule, or is damaged"):
        Schedule.load(tmp_path / "wrong.npz")


def test_a_schedule_that_adds_an_update_once_more_is_refused(tmp_path: Path) -> None:
    made = plan(build("pipecycle", {"groups": 3}), 0.5, clients=12, slots=300, session=6)
    versions = made.versions
    longer = attrs.evolve(
        versions,
        update=np.append(versions.update, versions.update[0]),
        weight=np.append(versions.weight, 0.5),
        update_at=np.append(versions.update_at[:-1], versions.update_at[-1] + 1),
    )
    attrs.evolve(made, versions=longer).save(tmp_path / "wrong.npz")
    with pytest.raises(InputError, match="a session is used twice"):
        Schedule.load(tmp_path / "wrong.npz")


@pytest.mark.parametrize("meta", [{"clients": 11}, {"clients": 10**20}, {"trial": -1}, {"grouping": 5}, {"policy": 5},
                                  {"settings": []}, {"budget": "x"}, {"horizon": 0}, {"harvest": None}])  # fmt: skip
def test_what_a_schedule_says_of_itself_is_checked(meta: dict[str, Any], tmp_path: Path) -> None:
    made = plan(build("fedavg"), 0.5, clients=12, slots=100, session=6)
    made.meta.update(meta)
    made.save(tmp_path / "wrong.npz")
    with pytest.raises(InputError, match="is not a schedule, or is damaged"):
        Schedule.load(tmp_path / "wrong.npz")
