"""Killed at any moment and started again: the same bytes as a run that was never interrupted."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from pipecycle import InputError, build, plan
from pipecycle.train.checkpoint import load_job, save_job
from pipecycle.train.engine import Engine, train_many
from pipecycle.train.job import Job, Watch
from pipecycle.train.problems import Problem, problem
from tests.commands import PATIENCE, pipecycle, process, until

POLICIES = [
    ("pipecycle", {"groups": 3, "queue_threshold": 1}),
    ("pipecycle+", {}),
    ("fedavg", {}),
    ("cycp", {}),
    ("mifa", {}),
    ("flda", {}),
    ("flda", {"phase": "global"}),
    ("fedseq", {"mode": "chain"}),
    ("fedbacys", {}),
    ("fedasync", {}),
    ("fedvarp", {"beta": 0.5}),
]


class Stop(Exception):
    pass


@pytest.fixture(scope="module")
def learnt() -> Problem:
    return problem("digits", "mlp", clients=12, alpha=0.5)


def job_of(learnt: Problem, name: str, options: dict[str, object]) -> Job:
    schedule = plan(build(name, options), 0.3, clients=12, slots=400, session=6)
    return Job(schedule, learnt, Watch(every=40, clients_every=80))


def outcome(job: Job) -> tuple[str, bytes]:
    assert job.model is not None
    return job.history.csv(), job.model.numpy().tobytes()


@pytest.mark.parametrize(("name", "options"), POLICIES, ids=lambda value: str(value))
def test_stopped_after_every_stack(name: str, options: dict[str, object], learnt: Problem, tmp_path: Path) -> None:
    """The run is torn down and rebuilt from its file again and again, each time a few stacks further."""
    whole = job_of(learnt, name, options)
    train_many([whole], device="cpu", width=16)
    path = tmp_path / "state.safetensors"
    restarts = 0
    while True:
        job = job_of(learnt, name, options)
        if path.exists():
            load_job(job, path, "me", learnt.initial[:0])
        stacks = 0

        def save_and_stop(engine: Engine, job: Job = job, last: int = 2 + restarts % 3) -> None:
            nonlocal stacks
            stacks += 1
            if stacks == last:
                engine.settle()
                save_job(job, path, "me")
                raise Stop

        try:
            train_many([job], device="cpu", width=16, tick=save_and_stop)
            break
        except Stop:
            restarts += 1
    assert restarts > 2
    assert outcome(job) == outcome(whole)


def test_damaged_and_foreign_checkpoints_are_refused(learnt: Problem, tmp_path: Path) -> None:
    job = job_of(learnt, "pipecycle", {})

    def stop(engine: Engine) -> None:
        engine.settle()
        if job.steps_done > 200:
            raise Stop

    with pytest.raises(Stop):
        train_many([job], device="cpu", tick=stop)
    path = tmp_path / "state.safetensors"
    save_job(job, path, "me")
    whole = path.read_bytes()
    fresh = job_of(learnt, "pipecycle", {})
    with pytest.raises(InputError, match="checkpoint of another run"):
        load_job(fresh, path, "you", learnt.initial[:0])
    for damaged in (
        whole[: len(whole) // 2],
        whole[:-40] + bytes(40),
        b"",
        b"x" * 100,
        whole.replace(b"finite", b"finale", 1),
    ):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match="is damaged"):
            load_job(fresh, path, "me", learnt.initial[:0])
    train_many([fresh], device="cpu")  # was left as it was
    other = job_of(learnt, "pipecycle", {})
    train_many([other], device="cpu")
    assert outcome(fresh) == outcome(other)


RUN = (
    *("run", "fedavg", "--clients", "30", "--alpha", "0.3", "--slots", "90", "--model", "lenet"),
    *("--save-every", "0.05", "--device", "cpu", "--out"),
)


def files(folder: Path) -> dict[str, bytes]:
    return {
        name: (folder / name).read_bytes()
        for name in ("config.toml", "schedule.npz", "metrics.csv", "model.safetensors")
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What a run leaves behind that nobody interrupts."""
    folder = tmp_path_factory.mktemp("whole")
    assert pipecycle(*RUN, str(folder)).returncode == 0
    return files(folder)


@pytest.mark.parametrize(
    ("how", "waits"), [(signal.SIGKILL, (0.0, 0.2)), (signal.SIGTERM, (0.1,)), (signal.SIGINT, (0.0,))]
)
def test_the_command_survives_being_killed(
    how: signal.Signals, waits: tuple[float, ...], whole: dict[str, bytes], tmp_path: Path
) -> None:
    """At its first checkpoint, or so many seconds later."""
    folder = tmp_path / "killed"
    state = folder / "checkpoint" / "state.safetensors"
    for wait in waits:
        before = state.stat().st_mtime_ns if state.exists() else 0
        running = process(*RUN, str(folder), cwd=tmp_path)
        until(lambda before=before: state.exists() and state.stat().st_mtime_ns != before, running)
        time.sleep(wait)
        running.send_signal(how)
        output, _ = running.communicate(timeout=PATIENCE)
        if how != signal.SIGKILL and running.returncode:
            assert running.returncode == 128 + how
            assert "run the same command again to resume" in output.replace("\n", " ")
    assert " finished at " in pipecycle(*RUN, str(folder)).stdout
    assert files(folder) == whole
    assert not any(name.endswith((".partial", ".lock")) for _, _, names in os.walk(folder) for name in names)


def test_a_folder_of_another_run_is_refused(tmp_path: Path) -> None:
    base = ("run", "fedavg", "--clients", "5", "--out", str(tmp_path / "run"))
    assert pipecycle(*base, "--slots", "60").returncode == 0
    other = pipecycle(*base, "--slots", "90")
    assert other.returncode == 2
    assert "holds a run with another configuration (world.slots = 60); choose" in other.stderr
    assert "(policy = fedavg, world.slots = 60)" in pipecycle("run", "mifa", *base[2:], "--slots", "90").stderr
    assert pipecycle(*base, "--slots", "90", "--fresh").returncode == 0
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("precious")
    refused = pipecycle(*base[:-1], str(tmp_path / "thesis"), "--slots", "60", "--fresh")
    assert refused.returncode == 2
    assert (tmp_path / "thesis" / "chapter.txt").read_text() == "precious"
