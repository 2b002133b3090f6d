"""The work that every contender does: FedAvg rounds of lenet sessions, all from the same files.

Initial weights and the samples of every batch are given, so all contenders end with the same model up to rounding.
This module imports nothing from pipecycle, so that a rival pays only for its own imports.
"""

from __future__ import annotations

import functools
import os
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

CLIENTS, ROUNDS, STEPS, BATCH, SAMPLES, LR = 20, 10, 20, 15, 300, 0.05
SHAPE, CLASSES = (3, 32, 32), 10
FOLDER = "RIVALS_FOLDER"
"""The environment variable with the folder of the work; it also marks all processes of the contenders."""


class Work:
    """Images, labels, the initial model, and the indices of every batch; each is read when first used."""

    def __init__(self, folder: Path) -> None:
        torch.set_num_threads(1)
        self.folder = folder

    @functools.cached_property
    def samples(self) -> tuple[Tensor, Tensor]:
        with np.load(self.folder / "data.npz") as data:
            return torch.from_numpy(data["x_train"]), torch.from_numpy(data["y_train"])

    @functools.cached_property
    def batches(self) -> Tensor:
        """Indices of samples, of shape (rounds, clients, steps, batch)."""
        return torch.from_numpy(np.load(self.folder / "batches.npy"))

    def network(self) -> nn.Sequential:
        """lenet with the initial weights."""
        return fill(lenet(), torch.from_numpy(np.load(self.folder / "initial.npy")))


def lenet() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 6, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(400, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, CLASSES),
    )


def fill(module: nn.Sequential, vector: Tensor) -> nn.Sequential:
    nn.utils.vector_to_parameters(vector, module.parameters())
    return module


@functools.cache
def work() -> Work:
    """The work, read once per process."""
    return Work(Path(os.environ[FOLDER]))


class Report:
    """Notes when each round began and ended; after the last round, writes the times and the model to a file.

    If the folder holds a pipe for the contender, it takes turns: it reports that a round is done and waits for a
    signal before the next."""

    def __init__(self, name: str) -> None:
        folder = Path(os.environ[FOLDER])
        self.path = folder / f"{name}.npz"
        self.pipes = (folder / f"{name}.done", folder / f"{name}.go")
        self.begins: list[float] = []
        self.ends: list[float] = []

    def round(self, model: nn.Module | Tensor) -> None:
        self.ends.append(time.time())
        if len(self.ends) == ROUNDS:
            vector = nn.utils.parameters_to_vector(model.parameters()) if isinstance(model, nn.Module) else model
            partial = self.path.with_suffix(".partial.npz")
            np.savez(partial, begins=self.begins, ends=self.ends, model=vector.detach().numpy())
            partial.rename(self.path)
        if self.pipes[0].exists():
            self.pipes[0].write_bytes(b".")
            if len(self.ends) < ROUNDS:
                with self.pipes[1].open("rb", buffering=0) as go:
                    go.read(1)
        self.begins.append(time.time())
