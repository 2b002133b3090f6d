"""Named sets as tasks."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from pipecycle.data.catalogue import CATALOGUE, CIFAR10, DIGITS, FASHION_MNIST
from pipecycle.data.formats import read_batch, read_idx, read_task
from pipecycle.data.scale import Scale, named_scale
from pipecycle.data.task import Task
from pipecycle.errors import InputError

DIGITS_TEST = 360
USUAL = {
    DIGITS.name: Scale((0.3054,), (0.3755,), peak=16.0),
    FASHION_MNIST.name: Scale((0.2860,), (0.3530,)),
    CIFAR10.name: Scale((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
}
"""Mean 0 and deviation 1 over the training part, for CIFAR-10 by the usual numbers of each channel."""


def load(source: str | Path | Task, scale: str | None = None) -> Task:
    """The task of that name, of that npz file, or itself; `scale` as in `Task`, None for the set's own."""
    if isinstance(source, Task):
        if scale is not None:
            raise InputError(f"scale = {scale}: the samples of a Task are scaled already, needs Task(..., scale=)")
        return source
    if not isinstance(source, str | Path):
        raise InputError(
            f"data = a {type(source).__name__}: needs a name, an .npz file or Task(x_train, y_train, x_test, y_test)"
        )
    if source in CATALOGUE:
        entry = CATALOGUE[str(source)]
        how = named_scale(scale, USUAL[entry.name])
        if entry is DIGITS:
            return digits(how)
        folder = entry.where()
        try:
            return fashion_mnist(folder, how) if entry is FASHION_MNIST else cifar10(folder, how)
        except InputError as error:
            raise InputError(f"{error}; `{entry.command}` replaces it") from None
    path = Path(source)
    if path.suffix != ".npz":
        raise InputError(f"data = {str(source)!r}: needs one of {', '.join(CATALOGUE)} or a .npz file")
    return read_task(path, scale)


def digits(scale: Scale) -> Task:
    """scikit-learn's 1,797 digits in their own order: the first 1,437 to train on, the last 360 to test.

    They are read from its file, a row of 64 levels and a label each: importing scikit-learn would take longer than a
    small run."""
    spec = find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise InputError(f"data = {DIGITS.name}: needs scikit-learn, which holds it")
    rows = np.loadtxt(Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz", np.uint8, delimiter=",")
    x, y = rows[:, :-1].reshape(-1, 1, 8, 8), rows[:, -1].astype(np.int64)
    cut = len(y) - DIGITS_TEST
    return _ten((x[:cut], y[:cut]), (x[cut:], y[cut:]), DIGITS.name, scale)


def fashion_mnist(folder: Path, scale: Scale) -> Task:
    """60,000 and 10,000 images as published."""
    train_images, train_labels, test_images, test_labels = (read_idx(folder / name) for name in FASHION_MNIST.files)
    train, test = (train_images[:, None], train_labels), (test_images[:, None], test_labels)
    return _ten(train, test, FASHION_MNIST.name, scale)


def cifar10(folder: Path, scale: Scale) -> Task:
    """50,000 and 10,000 images as published."""
    *batches, test = (read_batch(folder / name) for name in CIFAR10.files)
    images, labels = zip(*batches, strict=True)
    return _ten((np.concatenate(images), np.concatenate(labels)), test, CIFAR10.name, scale)


def _ten(train: tuple[Any, Any], test: tuple[Any, Any], name: str, scale: Scale) -> Task:
    """Bytes of ten classes as a task."""
    return Task(*train, *test, classes=10, name=name, scale=scale)
