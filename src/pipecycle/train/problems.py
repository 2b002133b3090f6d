"""What is learnt: a task split between clients, a model, and how a client trains it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch
from attrs import asdict, evolve, field, frozen
from numpy.typing import ArrayLike
from torch import Tensor, nn

from pipecycle.checks import MOST_BATCH, at_least, factor, flag, made, share
from pipecycle.data import Augment, Batches, Split, Task, Views, drawn, load
from pipecycle.data.augment import augmentation
from pipecycle.errors import InputError, shown
from pipecycle.schedule.schedule import Schedule
from pipecycle.train import models
from pipecycle.train.sessions import LocalSGD
from pipecycle.train.views import Frame
from pipecycle.world.streams import Ints, streams


@frozen
class Training:
    """How every client trains; the defaults are the paper's."""

    sgd: LocalSGD = field(factory=LocalSGD, validator=made(LocalSGD))
    batch: int = field(default=15, validator=at_least(1, "sample", most=MOST_BATCH))
    replacement: bool = field(default=False, validator=flag)
    """Draw batches independently instead of walking through shuffled passes."""
    lr_decay: float = field(default=1.0, validator=share)
    """The learning rate of a session that starts in slot s is lr * lr_decay ** (s / 1000)."""
    distillation: float = field(default=0.1, validator=factor)
    """FLDA: weight of the teacher's term (lambda)."""
    augment: Augment | None = field(default=None, converter=augmentation)
    """Random views of the images, as `crop:4+flip`; evaluation never has any."""


@frozen(eq=False)
class Problem:
    """A task, its split, and the model that everybody starts from."""

    task: Task = field(validator=made(Task, "pipecycle.data.load(FILE)"))
    split: Split = field(validator=made(Split, "pipecycle.data.load_split(FILE, task)"))
    module: nn.Module
    trial: int = 0
    training: Training = field(factory=Training, validator=made(Training))
    about: Mapping[str, Any] = field(factory=dict)
    """How data and model were chosen: `data.alpha`, `train.model` and so on."""

    def __attrs_post_init__(self) -> None:
        self.split.check(self.task, overlap=True)
        if self.training.augment is not None:
            self.training.augment.check(self.task.shape)

    @property
    def initial(self) -> Tensor:
        """x_0 as one vector."""
        return models.flatten(self.module)

    @property
    def facts(self) -> dict[str, Any]:
        """What decides the outcome, by the names that a configuration has for it."""
        training = self.training
        facts = {"data.name": self.task.name, "train.model": type(self.module).__name__, **self.about}
        facts |= {f"train.{key}": value for key, value in asdict(training.sgd).items()}
        facts |= {f"train.{key}": getattr(training, key) for key in ("batch", "replacement", "lr_decay")}
        facts["train.augment"] = None if training.augment is None else str(training.augment)
        return facts

    @property
    def size(self) -> int:
        """Parameters of the model."""
        return models.size(self.module)

    def samples(self, session: ArrayLike) -> Ints:
        """How many samples a session uses, by client: what its update is weighed by.  For `plan(..., samples=...)`."""
        return self.split.used(session, self.training.batch)

    def batches(self, steps: int) -> Batches:
        """Which samples every client draws, for sessions of so many steps."""
        return Batches(self.split, self.trial, steps, self.training.batch, self.training.replacement)

    def views(self, steps: int) -> Views | None:
        """How the images of those batches are seen; None where they are as they are."""
        training = self.training
        return None if training.augment is None else Views(training.augment, self.trial, steps, training.batch)

    @property
    def frame(self) -> Frame:
        """What views are cut from."""
        augment = self.training.augment
        return Frame(0 if augment is None else augment.crop, self.task.black)

    def __repr__(self) -> str:
        return f"Problem({self.task.name}, {len(self.split)} clients, {self.size:,} parameters, trial {self.trial})"


def problem(
    data: str | Task = "digits",
    model: str | nn.Module = "mlp",
    *,
    clients: int = 100,
    alpha: float | Literal["iid"] | None = None,
    samples: int | None = None,
    trial: int = 0,
    split: Split | None = None,
    training: Training | None = None,
    scale: str | None = None,
    augment: str | None = None,
) -> Problem:
    """A problem by name: without `alpha` (or with "iid") the data are divided IID, with a number by Dirichlet(alpha).
    The trial decides the split, the test samples, the initial weights, every batch and every view of an image.
    `scale` is how bytes become numbers (see `Task`), `augment` wins over that of `training`.

    >>> problem("digits", "mlp", clients=10, alpha=0.3)
    Problem(digits, 10 clients, 4,810 parameters, trial 0)
    """
    at_least(0).of("trial", trial)
    alpha = None if alpha == "iid" else alpha
    task = load(data, scale)
    training = Training() if training is None else training
    if augment is not None:
        training = evolve(training, augment=augment)
    about: dict[str, Any] = {} if split is not None else {"data.alpha": alpha, "data.samples": samples}
    if split is None:
        split = drawn(task, clients, samples, alpha, trial)
    if isinstance(model, str):
        about["train.model"] = model
        module = models.build(model, task.shape, task.classes, streams(trial)("model").words(2))
    elif isinstance(model, nn.Module):
        module = models.check(model, task.shape, task.classes)
    else:
        raise InputError(f"model = {shown(model)}: needs a name or a torch.nn.Module")
    return Problem(task, split, module, trial, training, about)


def session_numbers(schedule: Schedule) -> Ints:
    """k for every session: how many the same client began before."""
    client = schedule.sessions.client
    order = np.argsort(client, kind="stable")
    ranked = client[order]
    first = np.searchsorted(ranked, ranked)
    numbers = np.empty(len(client), np.int64)
    numbers[order] = np.arange(len(client)) - first
    return numbers


def on_device(
    x: np.ndarray[Any, np.dtype[np.float32]], y: Ints, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Samples and labels where they are needed."""
    return torch.from_numpy(x).to(device=device, dtype=dtype), torch.from_numpy(y).to(device)
