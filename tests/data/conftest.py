from __future__ import annotations

import gzip
import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pipecycle.data import Entry, Task

Make = Callable[..., Task]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    root = tmp_path / "cache"
    monkeypatch.setenv("PIPECYCLE_CACHE", str(root))
    return root


@pytest.fixture
def official(tmp_path: Path) -> tuple[Entry, Path]:
    """A small set of CIFAR-10's file names and format, and the folder that holds it."""
    folder = tmp_path / "official" / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    files = {}
    for number, name in enumerate([*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]):
        content = b"".join(bytes([label]) + bytes([label + number]) * 3072 for label in range(10))
        (folder / name).write_bytes(content)
        files[name] = hashlib.md5(content).hexdigest()
    return Entry("cifar10", "small", files, site="http://127.0.0.1:9", archive="cifar-10-binary.tar.gz"), folder


def idx(values: np.ndarray) -> bytes:
    """A gzipped idx file of unsigned bytes, written independently of the reader."""
    header = bytes([0, 0, 8, values.ndim]) + b"".join(size.to_bytes(4, "big") for size in values.shape)
    return gzip.compress(header + values.astype(np.uint8).tobytes(), mtime=0)


def task_of(labels: np.ndarray | list[int], test: int = 5, classes: int = 0) -> Task:
    """A task of which only the labels matter."""
    y = np.asarray(labels)
    x = np.zeros((max(len(y), test), 1), np.float32)
    return Task(x[: len(y)], y, x[:test], np.zeros(test, np.int64), classes=classes, name="toy")
