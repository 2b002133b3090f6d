"""A classification problem in arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from attrs import frozen
from numpy.typing import ArrayLike, NDArray

from pipecycle.data.scale import UNIT, Floats32, Scale, measured, named_scale
from pipecycle.errors import InputError
from pipecycle.world.streams import Ints

MOST_CLASSES = 1 << 16


def _features(array: NDArray[Any], name: str, scale: Scale) -> Floats32:
    if array.dtype.kind not in "fiub":
        raise InputError(f"{name} has type {array.dtype}: needs numbers")
    if array.ndim not in (2, 4):
        raise InputError(f"{name} has shape {array.shape}: needs (n, features) or (n, channels, height, width)")
    if 0 in array.shape:
        raise InputError(f"{name} has shape {array.shape}: is empty")
    if array.ndim == 4 and array.shape[3] in (1, 3) and array.shape[1] == array.shape[2] > 3:
        raise InputError(f"{name} has shape {array.shape}: channels are last, needs (n, channels, height, width)")
    if array.dtype == np.uint8:
        return scale(array)
    with np.errstate(over="ignore"):
        floats = np.ascontiguousarray(array, np.float32)
    if not np.isfinite(floats).all():
        row = int(np.argmax(~np.isfinite(floats.reshape(len(floats), -1)).all(axis=1)))
        raise InputError(f"{name}[{row}] holds a value that is not a finite 32-bit number")
    return floats


def _scale(given: str | Scale | None, raw: dict[str, NDArray[Any]]) -> Scale | None:
    """The map that was asked for; numbers other than bytes have no known range to map from."""
    other = [part for part, array in raw.items() if array.dtype != np.uint8]
    if not isinstance(given, str):
        return given if given is not None or other else UNIT
    named = named_scale(given, UNIT)
    if other:
        kind = raw[other[0]].dtype
        raise InputError(f"scale = {given}: x_{other[0]} has type {kind} and no known range, needs bytes (uint8)")
    sound = raw["train"].size and raw["train"].ndim in (2, 4)  # what is not is refused in a moment
    return measured(raw["train"]) if given == "standard" and sound else named


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


@frozen(eq=False, repr=False)
class Task:
    """Samples and labels to train on and to test on.

    Samples become float32 of shape (n, features) or (n, channels, height, width); bytes (uint8) are scaled, which
    without a `scale` divides them by 255, other numbers are taken as they are.  Labels become int64; without `classes`
    they begin at 0, and the largest says how many classes there are.
    """

    x_train: Floats32
    y_train: Ints
    x_test: Floats32
    y_test: Ints
    classes: int = 0
    name: str = "arrays"
    scale: str | Scale | None = None
    """standard, unit, half or centre, for bytes only; a finished task has the map itself, if there is one."""

    def __attrs_post_init__(self) -> None:
        raw = {part: _array(getattr(self, f"x_{part}"), f"x_{part}") for part in ("train", "test")}
        scale = _scale(self.scale, raw)
        object.__setattr__(self, "scale", scale)
        for part, array in raw.items():
            object.__setattr__(self, f"x_{part}", _features(array, f"x_{part}", scale or UNIT))
            object.__setattr__(self, f"y_{part}", _labels(getattr(self, f"y_{part}"), f"y_{part}"))
        if self.classes == 0:
            labels = np.concatenate([self.y_train, self.y_test])
            least, most = int(labels.min()), int(labels.max())
            if least > 0:  # counted from 1, as elsewhere: a class 0 would never occur
                raise InputError(
                    f"y_train and y_test hold labels {least} to {most}: need to begin at 0, subtract {least}"
                )
            object.__setattr__(self, "classes", most + 1)
        for part, x, y in (("train", self.x_train, self.y_train), ("test", self.x_test, self.y_test)):
            if len(x) != len(y):
                raise InputError(f"x_{part} has {len(x)} samples but y_{part} has {len(y)} labels")
            if y.max() >= self.classes:
                raise InputError(f"y_{part} holds {y.max()}: labels need to be below the {self.classes} classes")
        if self.x_train.shape[1:] != self.x_test.shape[1:]:
            raise InputError(f"x_test has samples of shape {self.x_test.shape[1:]}, x_train of {self.shape}")

    @property
    def black(self) -> tuple[float, ...]:
        """What a raw 0 has become, once or for each channel; 0 where samples are not bytes."""
        return self.scale.black if isinstance(self.scale, Scale) else (0.0,)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one sample."""
        return self.x_train.shape[1:]

    def __repr__(self) -> str:
        of = f"{self.shape[0]:,} features" if len(self.shape) == 1 else "x".join(map(str, self.shape))
        sizes = f"{len(self.y_train):,} training and {len(self.y_test):,} test samples"
        return f"Task({self.name}: {sizes} of {of}, {self.classes} classes)"
