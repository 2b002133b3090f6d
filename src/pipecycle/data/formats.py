"""The files that data sets come in: idx, CIFAR-10's binary batches, and npz."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import numpy as np

from pipecycle.arrays import read_arrays
from pipecycle.data.scale import Bytes
from pipecycle.data.task import Task
from pipecycle.errors import InputError
from pipecycle.files import reason, using
from pipecycle.world.streams import Ints

RECORD = 1 + 3 * 32 * 32
KEYS = ("x_train", "y_train", "x_test", "y_test")


def read_idx(path: Path) -> Bytes:
    """A gzipped idx file of unsigned bytes."""
    try:
        content = gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: cannot be read as gzip ({reason(error)})") from None
    # Two zero bytes, the type (8 is unsigned byte), the number of dimensions, then each as four big-endian bytes.
    header = 4 + 4 * content[3] if len(content) > 3 and content[:3] == b"\0\0\x08" else 0
    if not header or len(content) < header:
        raise InputError(f"{path}: is not an idx file of unsigned bytes")
    shape = tuple(int(size) for size in np.frombuffer(content, ">u4", content[3], 4))
    if len(content) != header + int(np.prod(shape, dtype=np.int64)):
        raise InputError(f"{path}: has {len(content) - header:,} values where its header says {shape}")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def read_batch(path: Path) -> tuple[Bytes, Ints]:
    """Images and labels of one of CIFAR-10's binary batches."""
    with using(path, "read"):
        content = np.fromfile(path, np.uint8)
    if not len(content) or len(content) % RECORD:
        raise InputError(f"{path}: has {len(content):,} bytes, which is no number of {RECORD}-byte images")
    records = content.reshape(-1, RECORD)
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0].astype(np.int64)


def read_task(path: Path, scale: str | None = None) -> Task:
    """A user's own set: an npz file with x_train, y_train, x_test and y_test."""
    arrays = read_arrays(path)
    missing = [key for key in KEYS if key not in arrays]
    if missing:
        raise InputError(f"{path}: has no {', '.join(missing)}; needs {', '.join(KEYS)}")
    x_train, y_train, x_test, y_test = (arrays[key] for key in KEYS)
    try:
        return Task(x_train, y_train, x_test, y_test, name=path.stem, scale=scale)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
