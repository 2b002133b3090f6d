"""This library from Python: plan, then train, and note when each round has been trained and averaged."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from pipecycle.runs.config import read_config
from pipecycle.runs.planning import plan_of
from pipecycle.runs.run import problem_of
from pipecycle.train.engine import Engine, train_many
from pipecycle.train.job import Job, Watch
from rivals.work import CLIENTS, FOLDER, ROUNDS, STEPS, Report


def main() -> None:
    torch.set_num_threads(1)
    config = read_config(Path(os.environ[FOLDER]) / "config.toml")
    schedule, problem = plan_of(config), problem_of(config)
    job, report = Job(schedule, problem, Watch(config.look.every)), Report("ours")

    def tick(engine: Engine) -> None:
        if len(report.ends) < ROUNDS - 1 and engine.steps_done == (len(report.ends) + 1) * CLIENTS * STEPS:
            report.round(job.problem.initial)

    train_many([job], device="cpu", tick=tick)
    assert job.model is not None
    report.round(job.model)


if __name__ == "__main__":
    main()
