"""Named sets as tasks."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from pipecycle.data.catalogue import CATALOGUE, CIFAR10, DIGITS, FASHION_MNIST
from pipecycle.data.formats import read_batch, read_idx, read_task
from pipecycle.data.task import Task, standardise
from pipecycle.errors import InputError

DIGITS_TEST = 360


def load(source: str | Path | Task) -> Task:
    """The task of that name, of that npz file, or itself."""
    if isinstance(source, Task):
        return source
    if source in CATALOGUE:
        if source == DIGITS.name:
            return digits()
        entry = CATALOGUE[str(source)]
        folder = entry.where()
        try:
            return fashion_mnist(folder) if entry is FASHION_MNIST else cifar10(folder)
        except InputError as error:
            raise InputError(f"{error}; `{entry.command}` replaces it") from None
    path = Path(source)
    if path.suffix != ".npz":
        raise InputError(f"data = {str(source)!r}: needs one of {', '.join(CATALOGUE)} or a .npz file")
    return read_task(path)


def digits() -> Task:
    """scikit-learn's 1,797 digits in their own order: the first 1,437 to train on, the last 360 to test.

    Grey levels 0..16 are scaled to mean 0 and deviation 1 over the training part.  They are read from its file, a row
    of 64 levels and a label each: importing scikit-learn would take longer than a small run."""
    spec = find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise InputError(f"data = {DIGITS.name}: needs scikit-learn, which holds it")
    rows = np.loadtxt(Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz", np.uint8, delimiter=",")
    x = standardise(rows[:, :-1].reshape(-1, 1, 8, 8), (0.3054,), (0.3755,), peak=16.0)
    y = rows[:, -1].astype(np.int64)
    cut = len(y) - DIGITS_TEST
    return Task(x[:cut], y[:cut], x[cut:], y[cut:], classes=10, name=DIGITS.name)


def fashion_mnist(folder: Path) -> Task:
    """60,000 and 10,000 images as published, scaled to mean 0 and deviation 1 over the training part."""
    train_images, train_labels, test_images, test_labels = (read_idx(folder / name) for name in FASHION_MNIST.files)
    mean, deviation = (0.2860,), (0.3530,)
    return Task(
        standardise(train_images[:, None], mean, deviation),
        train_labels.astype(np.int64),
        standardise(test_images[:, None], mean, deviation),
        test_labels.astype(np.int64),
        classes=10,
        name=FASHION_MNIST.name,
    )


def cifar10(folder: Path) -> Task:
    """50,000 and 10,000 images as published, scaled by the usual mean and deviation of each channel."""
    batches = [read_batch(folder / name) for name in CIFAR10.files]
    train_images, train_labels = zip(*batches[:-1], strict=True)
    test_images, test_labels = batches[-1]
    mean, deviation = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
    return Task(
        standardise(np.concatenate(train_images), mean, deviation),
        np.concatenate(train_labels),
        standardise(test_images, mean, deviation),
        test_labels,
        classes=10,
        name=CIFAR10.name,
    )
