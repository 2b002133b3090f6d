"""Tensors by name, in memory or in a folder, so that a killed server finds them again."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from pipecycle.errors import InputError
from pipecycle.files import reason, write

Tensors = dict[str, Tensor]


class TensorStore:
    """With a folder every entry is a file of its own, whole or not there, and the latest ones are in memory too."""

    def __init__(self, folder: Path | None = None, room: int = 64) -> None:
        self.folder, self.room = folder, room
        self._recent: OrderedDict[str, Tensors] = OrderedDict()

    def put(self, name: str, values: Tensors) -> None:
        values = {key: value.detach().contiguous().clone() for key, value in values.items()}
        self._remember(name, values)
        if self.folder is not None:
            write(self._path(name), save(values))

    def get(self, name: str) -> Tensors:
        if name not in self._recent:
            self._remember(name, self._read(name))
        self._recent.move_to_end(name)
        return self._recent[name]

    def drop(self, name: str) -> None:
        self._recent.pop(name, None)
        if self.folder is not None:
            self._path(name).unlink(missing_ok=True)

    def __contains__(self, name: str) -> bool:
        return name in self._recent or (self.folder is not None and self._path(name).exists())

    def _remember(self, name: str, values: Tensors) -> None:
        self._recent[name] = values
        self._recent.move_to_end(name)
        if self.folder is not None:
            while len(self._recent) > self.room:
                self._recent.popitem(last=False)

    def _read(self, name: str) -> Tensors:
        if self.folder is None:
            raise KeyError(name)
        path = self._path(name)
        try:
            return load(path.read_bytes())
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({reason(error)})") from None
        except SafetensorError:
            raise InputError(f"{path}: is damaged") from None

    def _path(self, name: str) -> Path:
        assert self.folder is not None
        return self.folder / f"{name}.safetensors"
