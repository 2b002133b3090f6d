"""Tensors by name, in memory or in a folder where a resumed server reads them again."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from pipecycle.errors import InputError
from pipecycle.files import using, write

Tensors = dict[str, Tensor]


class TensorStore:
    """With a folder every entry is a file of its own, complete or not there."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self._memory: dict[str, Tensors] = {}

    def put(self, name: str, values: Tensors) -> None:
        values = {key: value.detach().contiguous().clone() for key, value in values.items()}
        if self.folder is None:
            self._memory[name] = values
        else:
            write(self._path(name), save(values))

    def get(self, name: str) -> Tensors:
        if self.folder is None:
            return self._memory[name]
        path = self._path(name)
        try:
            with using(path, "read"):
                return load(path.read_bytes())
        except SafetensorError:
            raise InputError(f"{path}: is damaged") from None

    def drop(self, name: str) -> None:
        self._memory.pop(name, None)
        if self.folder is not None:
            self._path(name).unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        assert self.folder is not None
        return self.folder / f"{name}.safetensors"
