"""A classification problem in arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from attrs import frozen
from numpy.typing import ArrayLike, NDArray

from pipecycle.errors import InputError
from pipecycle.streams import Ints

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]
MOST_CLASSES = 1 << 16


def _features(value: ArrayLike, name: str) -> Floats:
    array = _array(value, name)
    if array.dtype.kind not in "fiub":
        raise InputError(f"{name} has type {array.dtype}: needs numbers")
    if array.ndim not in (2, 4):
        raise InputError(f"{name} has shape {array.shape}: needs (n, features) or (n, channels, height, width)")
    if 0 in array.shape:
        raise InputError(f"{name} has shape {array.shape}: is empty")
    if array.ndim == 4 and array.shape[3] in (1, 3) and array.shape[1] == array.shape[2] > 3:
        raise InputError(f"{name} has shape {array.shape}: channels are last, needs (n, channels, height, width)")
    if array.dtype == np.uint8:
        return standardise(array, (0.0,), (1.0,))
    with np.errstate(over="ignore"):
        floats = np.ascontiguousarray(array, np.float32)
    if not np.isfinite(floats).all():
        row = int(np.argmax(~np.isfinite(floats.reshape(len(floats), -1)).all(axis=1)))
        raise InputError(f"{name}[{row}] holds a value that is not a finite 32-bit number")
    return floats


def _labels(value: ArrayLike, name: str) -> Ints:
    array = _array(value, name)
    if array.ndim != 1:
        raise InputError(f"{name} has shape {array.shape}: needs one label per sample, shape (n,)")
    if not len(array):
        raise InputError(f"{name} is empty")
    if array.dtype.kind not in "iu":
        raise InputError(f"{name} has type {array.dtype}: labels need to be integers")
    if array.min() < 0:
        raise InputError(f"{name} holds {array.min()}: labels need to be 0 or more")
    if array.max() >= MOST_CLASSES:
        raise InputError(f"{name} holds {array.max()}: labels need to be below {MOST_CLASSES:,}")
    return np.ascontiguousarray(array, np.int64)


def _array(value: ArrayLike, name: str) -> NDArray[Any]:
    try:
        return np.asarray(value)
    except ValueError:
        raise InputError(f"{name} is ragged: needs an array") from None


def standardise(raw: Bytes, mean: tuple[float, ...], deviation: tuple[float, ...], peak: float = 255.0) -> Floats:
    """(raw / peak - mean) / deviation, by channel if there are several, through a table of the 256 values."""
    levels = np.arange(256) / peak
    out = np.empty(raw.shape, np.float32)
    if len(mean) == 1:
        np.take(((levels - mean[0]) / deviation[0]).astype(np.float32), raw, out=out)
    else:
        for channel, (centre, width) in enumerate(zip(mean, deviation, strict=True)):
            out[:, channel] = ((levels - centre) / width).astype(np.float32)[raw[:, channel]]
    return out


@frozen(eq=False, repr=False)
class Task:
    """Samples and labels to train on and to test on.

    Samples become float32 of shape (n, features) or (n, channels, height, width); bytes (uint8) are divided by
    255, other numbers are taken as they are.  Labels become int64; 0 classes means the largest one plus one.
    """

    x_train: Floats
    y_train: Ints
    x_test: Floats
    y_test: Ints
    classes: int = 0
    name: str = "arrays"

    def __attrs_post_init__(self) -> None:
        for part in ("train", "test"):
            object.__setattr__(self, f"x_{part}", _features(getattr(self, f"x_{part}"), f"x_{part}"))
            object.__setattr__(self, f"y_{part}", _labels(getattr(self, f"y_{part}"), f"y_{part}"))
        if self.classes == 0:
            object.__setattr__(self, "classes", int(max(self.y_train.max(), self.y_test.max())) + 1)
        for part, x, y in (("train", self.x_train, self.y_train), ("test", self.x_test, self.y_test)):
            if len(x) != len(y):
                raise InputError(f"x_{part} has {len(x)} samples but y_{part} has {len(y)} labels")
            if y.max() >= self.classes:
                raise InputError(f"y_{part} holds {y.max()}: labels need to be below the {self.classes} classes")
        if self.x_train.shape[1:] != self.x_test.shape[1:]:
            raise InputError(f"x_test has samples of shape {self.x_test.shape[1:]}, x_train of {self.shape}")

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one sample."""
        return self.x_train.shape[1:]

    def __repr__(self) -> str:
        shape = "x".join(map(str, self.shape))
        sizes = f"{len(self.y_train):,} train, {len(self.y_test):,} test"
        return f"Task({self.name}: {sizes}, {shape}, {self.classes} classes)"
