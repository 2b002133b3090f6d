"""Weights as named arrays, as they travel, and as one vector; arrays that arrive are checked before they are used."""

from __future__ import annotations

import io
from collections.abc import Mapping
from itertools import zip_longest
from math import prod
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray
from torch import Tensor, nn

from pipecycle.arrays import read_array
from pipecycle.errors import shown

LARGEST = 1e12
"""Weights beyond it are no weights, and would sooner or later not be finite."""
EXACT = 2**24
"""Whole numbers up to here are themselves as float32: counters such as a batch normalisation's."""
HEADER = 4096
"""Bytes before the values in numpy's format, at most."""
Arrays = dict[str, NDArray[Any]]
Form = Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]
"""Names, shapes and types."""


class Refused(Exception):
    """Something that must not be used; `name` says what was wrong with it, the text how."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"{name}: {why}")
        self.name = name


def form(module: nn.Module) -> Form:
    """What the weights of a model must look like."""
    return {name: (tuple(value.shape), np.dtype(np.float32)) for name, value in module.named_parameters()}


def named(form: Form, vector: Tensor) -> Arrays:
    """A vector of weights as arrays of a form; whole numbers are rounded to."""
    parts = zip(form.items(), vector.split([prod(shape) for shape, _ in form.values()]), strict=True)
    arrays = {name: (part.reshape(shape).numpy(), kind) for (name, (shape, kind)), part in parts}
    return {name: part if kind == part.dtype else np.rint(part).astype(kind) for name, (part, kind) in arrays.items()}


def joined(arrays: Mapping[str, NDArray[Any]]) -> Tensor:
    """Arrays as one vector, in their order."""
    return torch.cat([torch.from_numpy(np.array(value, np.float32)).reshape(-1) for value in arrays.values()])


def write_arrays(arrays: Mapping[str, NDArray[Any]]) -> ArrayRecord:
    return ArrayRecord({key: Array(np.asarray(value, order="C")) for key, value in arrays.items()})


def read_arrays(record: object, like: Form, name: str) -> Arrays:
    """Arrays with exactly these names, shapes and types, all finite."""
    if not isinstance(record, ArrayRecord):
        raise Refused(name, "is missing")
    for has, needs in zip_longest(record, like, fillvalue="nothing"):
        if has != needs:
            raise Refused(name, f"holds {shown(has)} in the place of {needs}")
    return {key: _read(record[key], *like[key], name, key) for key in like}


def _read(array: Array, shape: tuple[int, ...], kind: np.dtype[Any], name: str, key: str) -> NDArray[Any]:
    """The values of one array; what it claims to be and what it holds must both be what is needed."""
    if tuple(array.shape) != shape or array.dtype != str(kind) or array.stype != "numpy.ndarray":
        raise Refused(name, f"{key} is {array.dtype} {tuple(array.shape)}, needs {kind} {shape} in numpy's format")
    if len(array.data) > prod(shape) * kind.itemsize + HEADER:
        raise Refused(name, f"{key} has {len(array.data)} bytes, more than {kind} {shape} takes")
    try:
        values = read_array(io.BytesIO(array.data), key, len(array.data))
    except Exception as error:  # a broken header fails in many ways
        raise Refused(name, f"{key} cannot be read ({error})") from None
    if values.shape != shape or values.dtype != kind:
        raise Refused(name, f"{key} holds {values.dtype} {values.shape}, needs {kind} {shape}")
    largest = LARGEST if kind.kind == "f" else EXACT
    if not ((values >= -largest) & (values <= largest)).all():
        raise Refused(name, f"{key} holds values that are not finite, or beyond {largest:g}")
    return values
