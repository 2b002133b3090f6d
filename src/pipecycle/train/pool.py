"""Vectors of one size in one tensor, so that many can be gathered at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor


class Pool:
    """Rows by key; a row is free again once its key is dropped."""

    def __init__(self, size: int, like: Tensor, room: int = 64) -> None:
        self._rows = like.new_empty((room, size))
        self._place: dict[int, int] = {}
        self._free = list(range(room - 1, -1, -1))

    @property
    def device(self) -> torch.device:
        return self._rows.device

    def __contains__(self, key: int) -> bool:
        return key in self._place

    def __len__(self) -> int:
        return len(self._place)

    def __getitem__(self, key: int) -> Tensor:
        return self._rows[self._place[key]]

    def keys(self) -> list[int]:
        return sorted(self._place)

    def gather(self, keys: Sequence[int]) -> Tensor:
        """A copy of the rows, in order."""
        return self._rows.index_select(0, self._index([self._place[key] for key in keys]))

    def put(self, keys: Sequence[int], rows: Tensor) -> None:
        """Store one row for each new key."""
        while len(self._free) < len(keys):
            self._grow()
        places = [self._free.pop() for _ in keys]
        self._place.update(zip(keys, places, strict=True))
        if len(places) == 1:
            self._rows[places[0]] = rows[0]
            return
        self._rows.index_copy_(0, self._index(places), rows)

    def drop(self, keys: Iterable[int]) -> None:
        for key in keys:
            self._free.append(self._place.pop(key))

    def _index(self, places: list[int]) -> Tensor:
        """On the device without waiting for it, which takes memory that the device can read by itself."""
        cuda = self._rows.is_cuda
        return torch.tensor(places, dtype=torch.int64, pin_memory=cuda).to(self._rows.device, non_blocking=True)

    def _grow(self) -> None:
        old = len(self._rows)
        rows = self._rows.new_empty((2 * old, self._rows.shape[1]))
        rows[:old] = self._rows
        self._rows = rows
        self._free += range(2 * old - 1, old - 1, -1)
