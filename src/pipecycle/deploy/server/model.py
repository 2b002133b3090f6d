"""What a live run learns: the model's form, its initial weights, and how it is evaluated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import hypot, isfinite, prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipecycle.deploy.wire.arrays import Arrays, Form, form, joined, named, read_arrays
from pipecycle.deploy.wire.settings import RunSettings
from pipecycle.errors import InputError
from pipecycle.train.history import Checkpoint, History, Row, Score

Evaluate = Callable[[Arrays], Mapping[str, float]]


class Model:
    """Weights as one vector on the server, and as named arrays on the way."""

    def __init__(
        self, initial: Mapping[str, NDArray[Any]], classes: int, score: Callable[[Tensor], Score], *, foreign: bool
    ) -> None:
        for name, value in initial.items():
            if value.dtype != np.float32 and value.dtype.kind not in "iu":
                raise InputError(f"the initial model's {name} is {value.dtype}: needs float32 or whole numbers")
        if not initial:
            raise InputError("the initial model has no arrays")
        self.form: Form = {name: (tuple(value.shape), value.dtype) for name, value in initial.items()}
        self.classes, self.foreign, self.score = classes, foreign, score
        self.initial = joined(initial)
        self.history = History([])

    @property
    def size(self) -> int:
        return len(self.initial)

    def named(self, vector: Tensor) -> Arrays:
        """A vector as arrays."""
        return named(self.form, vector)

    def vector(self, record: object) -> Tensor:
        """A node's weights as a vector; refused unless they have the model's form and are finite."""
        return joined(read_arrays(record, self.form, "arrays"))

    def norm(self, update: Tensor) -> float:
        """The size of an update.  Whole numbers are no part of it: they count, and would hide how far weights go."""
        parts = zip(update.split([prod(shape) for shape, _ in self.form.values()]), self.form.values(), strict=True)
        return hypot(*(float(part.norm()) for part, (_, kind) in parts if kind.kind == "f"))

    def logits(self, record: object) -> tuple[Tensor, Tensor]:
        """A node's logit sums and counts by label."""
        classes, kind = self.classes, np.dtype(np.float32)
        arrays = read_arrays(record, {"sums": ((classes, classes), kind), "counts": ((classes,), kind)}, "logits")
        sums, counts = (torch.from_numpy(np.array(arrays[name])) for name in ("sums", "counts"))
        return sums, counts

    def record(self, point: Checkpoint, score: Score) -> Row:
        """Add an evaluation to the history."""
        self.history.record(point, score, None)
        return self.history.rows[-1]

    @staticmethod
    def figures(row: Row) -> dict[str, Any]:
        """A row for the trace, in which null stands for what is not a number."""

        def number(value: float) -> float | None:
            return value if isfinite(value) else None

        by_class = [number(value) for value in row.by_class]
        return {"accuracy": number(row.accuracy), "loss": number(row.loss), "by_class": by_class}

    def recall(self, event: Mapping[str, Any]) -> None:
        """Add an evaluation from the trace to the history."""
        values = (event["accuracy"], event["loss"], *event["by_class"])
        accuracy, loss, *by_class = (float("nan") if value is None else value for value in values)
        point = Checkpoint(event.get("of", event["slot"]) + 1, event["version"], event["energy"])
        self.record(point, Score(accuracy, loss, tuple(by_class)))


def own(run: RunSettings) -> Model:
    """The model and the test samples that the settings name."""
    from pipecycle.train.examiner import Examiner
    from pipecycle.train.problems import on_device

    problem = run.problem()
    task, test = problem.task, problem.split.test
    samples = on_device(task.x_test[test], task.y_test[test], torch.device("cpu"), torch.float32)
    examiner = Examiner(problem.module, *samples, task.classes)
    initial = named(form(problem.module), problem.initial)
    return Model(initial, task.classes, lambda vector: examiner.examine(vector[None]).read()[0], foreign=False)


def foreign(initial: Mapping[str, NDArray[Any]], evaluate: Evaluate | None) -> Model:
    """A user's own model as arrays; `evaluate` gives its accuracy in percent and its loss."""

    def score(vector: Tensor) -> Score:
        figures = {} if evaluate is None else evaluate(model.named(vector))
        return Score(float(figures.get("accuracy", float("nan"))), float(figures.get("loss", float("nan"))), ())

    model = Model(initial, 0, score, foreign=True)
    return model
