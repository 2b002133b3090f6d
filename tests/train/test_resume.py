"""Killed at any moment and started again: the same bytes as a run that was never interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from pipecycle import InputError, build, plan
from pipecycle.train.checkpoint import load_job, save_job
from pipecycle.train.engine import Engine, train_many
from pipecycle.train.job import Job, Watch
from pipecycle.train.problems import Problem, problem

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
]


class Stop(Exception):
    pass


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


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


COMMAND = [
    *(sys.executable, "-m", "pipecycle", "run", "fedavg", "--clients", "30", "--alpha", "0.3"),
    *("--model", "lenet", "--save-every", "0.05", "--device", "cpu"),
]


def files(folder: Path) -> dict[str, bytes]:
    return {
        name: (folder / name).read_bytes()
        for name in ("config.toml", "schedule.npz", "metrics.csv", "model.safetensors")
    }


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_command_survives_being_killed(how: signal.Signals, tmp_path: Path) -> None:
    command = [*COMMAND, "--slots", "400", "--out"]
    subprocess.run([*command, str(tmp_path / "whole")], check=True, capture_output=True)
    folder = tmp_path / "killed"
    state = folder / "checkpoint" / "state.safetensors"
    for wait in (0.0, 0.2):
        before = state.stat().st_mtime_ns if state.exists() else 0
        process = subprocess.Popen([*command, str(folder)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 60
        while process.poll() is None and (not state.exists() or state.stat().st_mtime_ns == before):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(wait)
        process.send_signal(how)
        output, _ = process.communicate(timeout=60)
        if how != signal.SIGKILL and process.returncode:
            assert process.returncode == 128 + how
            assert "the same command goes on" in output.replace("\n", " ")
    done = subprocess.run([*command, str(folder)], check=True, capture_output=True, text=True)
    assert "ended (finished)" in done.stdout
    assert files(folder) == files(tmp_path / "whole")
    assert not any(name.endswith((".partial", ".lock")) for _, _, names in os.walk(folder) for name in names)


def test_a_folder_of_another_run_is_refused(tmp_path: Path) -> None:
    base = [sys.executable, "-m", "pipecycle", "run", "fedavg", "--clients", "5", "--out", str(tmp_path / "run")]
    subprocess.run([*base, "--slots", "60"], check=True, capture_output=True)
    other = subprocess.run([*base, "--slots", "90"], check=False, capture_output=True, text=True)
    assert other.returncode == 2
    assert "holds a run with another configuration" in other.stderr
    subprocess.run([*base, "--slots", "90", "--fresh"], check=True, capture_output=True)
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("precious")
    refused = subprocess.run(
        [*base[:-1], str(tmp_path / "thesis"), "--slots", "60", "--fresh"], check=False, capture_output=True, text=True
    )
    assert refused.returncode == 2
    assert (tmp_path / "thesis" / "chapter.txt").read_text() == "precious"
