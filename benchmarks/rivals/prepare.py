"""The data, the initial model and all batches, as this library makes them, in files that every contender reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from pipecycle.data import Split, save_split
from pipecycle.runs.config import Config
from pipecycle.runs.planning import plan_of
from pipecycle.runs.run import problem_of
from rivals.work import BATCH, CLASSES, CLIENTS, LR, ROUNDS, SAMPLES, SHAPE, STEPS

TEST = 1_000
SIGNAL = 0.2
"""How strong a class's pattern is in noise of deviation 1: ten rounds learn it half-way."""


def prepare(folder: Path) -> None:
    images(folder / "data.npz")
    blocks = np.arange(CLIENTS * SAMPLES).reshape(CLIENTS, SAMPLES)
    save_split(Split.of(blocks, np.arange(TEST)), folder / "split.npz")
    config = settings(folder)
    (folder / "config.toml").write_text(config.text())
    schedule, problem = plan_of(config), problem_of(config)
    sessions = len(schedule.sessions.client)
    if sessions != CLIENTS * ROUNDS:
        raise SystemExit(f"the schedule has {sessions} sessions: needs {CLIENTS * ROUNDS}")
    np.save(folder / "initial.npy", problem.initial.numpy())
    turns = [problem.batches(STEPS)(np.arange(CLIENTS), np.full(CLIENTS, turn)) for turn in range(ROUNDS)]
    np.save(folder / "batches.npy", np.stack(turns))


def images(path: Path) -> None:
    """CIFAR-shaped images: a coarse random pattern for each class, plus noise."""
    rng = np.random.default_rng(0)
    patterns = rng.normal(size=(CLASSES, SHAPE[0], 8, 8)).repeat(4, 2).repeat(4, 3)
    data: dict[str, Any] = {}
    for part, count in (("train", CLIENTS * SAMPLES), ("test", TEST)):
        labels = rng.integers(CLASSES, size=count)
        data[f"x_{part}"] = (SIGNAL * patterns[labels] + rng.normal(size=(count, *SHAPE))).astype(np.float32)
        data[f"y_{part}"] = labels
    np.savez(path, **data)


def settings(folder: Path) -> Config:
    """Full batteries and a server step right after each upload: FedAvg as if there were no batteries."""
    slots = ROUNDS * (STEPS + 1)
    return Config("fedavg").changed(
        {
            "epoch": STEPS + 1,
            "world.clients": CLIENTS,
            "world.session": STEPS,
            "world.slots": slots,
            "world.harvest": "always",
            "world.initial": 1e3,
            "data.name": str(folder / "data.npz"),
            "data.split": str(folder / "split.npz"),
            "train.model": "lenet",
            "train.lr": LR,
            "train.batch": BATCH,
            "look.every": slots,
        }
    )
