"""Columns of numbers that grow at their end."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

_CODES = {"bool": "B", "uint8": "B", "int32": "i", "int64": "q", "float64": "d"}


class Column:
    """Append one number in 50 ns or an array at memory speed, then take it all as a numpy array.

    The standard library's array grows in place where numpy would copy; small arrays are gathered first, since
    each step of growth costs more than they do."""

    __slots__ = ("_data", "_dtype", "_pending", "_size")

    def __init__(self, dtype: type[np.generic]) -> None:
        self._dtype = np.dtype(dtype)
        self._data: array[Any] = array(_CODES[self._dtype.name])
        self._pending: list[NDArray[Any]] = []
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def extend(self, values: NDArray[Any]) -> None:
        """The column keeps `values` itself for a while: it must not change afterwards."""
        self._pending.append(values)
        self._size += len(values)
        if len(self._pending) == 256 or len(values) > 4096:
            self._flush()

    def extend_few(self, values: Sequence[float]) -> None:
        if self._pending:
            self._flush()
        self._data.extend(values)
        self._size += len(values)

    def __getitem__(self, index: NDArray[np.int64]) -> NDArray[Any]:
        return self.values()[index]

    def values(self) -> NDArray[Any]:
        """All of it, without a copy; nothing can be appended while the result is alive."""
        self._flush()
        return np.frombuffer(self._data, self._dtype) if self._size else np.empty(0, self._dtype)

    def _flush(self) -> None:
        if self._pending:
            whole = self._pending[0] if len(self._pending) == 1 else np.concatenate(self._pending)
            self._data.frombytes(whole.astype(self._dtype, "C", copy=False).view(np.uint8))  # type: ignore[arg-type]
            self._pending.clear()


class Flags:
    """A flag per number, false until set; there is always room for more."""

    __slots__ = ("_room",)

    def __init__(self) -> None:
        self._room = np.zeros(1024, bool)

    def __getitem__(self, index: NDArray[np.int64]) -> NDArray[np.bool_]:
        try:
            return self._room[index]
        except IndexError:
            room = np.zeros(2 * int(index.max()) + 1, bool)
            room[: len(self._room)] = self._room
            self._room = room
            return self._room[index]

    def set(self, index: NDArray[np.int64]) -> None:
        """Only after `self[index]` has made room."""
        self._room[index] = True
