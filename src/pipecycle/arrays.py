"""Arrays in .npz files, read without trusting them."""

from __future__ import annotations

import zipfile
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from pipecycle.errors import InputError
from pipecycle.files import reading

Array = NDArray[Any]
MOST_DEFLATED = 1100
"""How many bytes deflate can make of one, and a little."""


def read_arrays(path: Path) -> dict[str, Array]:
    """All arrays of an npz file.  Nothing is unpickled, since that would run what the file holds; no memory is taken
    before a header is known to be true; the archive's checksums are verified."""
    with reading(path):
        try:
            with path.open("rb") as file:
                return _members(file)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None
        except OSError:
            raise
        except Exception:  # zipfile and zlib have a dozen kinds of errors for damaged files
            raise InputError(f"{path}: is not an npz file of named arrays, or a damaged one") from None


def _members(file: IO[bytes]) -> dict[str, Array]:
    arrays: dict[str, Array] = {}
    with zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            name = info.filename.removesuffix(".npy")
            if name in arrays:
                raise InputError(f"holds {name!r} twice")
            if info.file_size > MOST_DEFLATED * (info.compress_size + 1):
                raise InputError(f"{name!r} claims {info.file_size:,} bytes out of {info.compress_size:,}")
            with archive.open(info) as stream:
                arrays[name] = read_array(stream, name, info.file_size)
    return arrays


def read_array(stream: IO[bytes], name: str, size: int) -> Array:
    """One array in numpy's format, `size` bytes with its header."""
    version = np.lib.format.read_magic(stream)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(stream)
    if dtype.hasobject:
        raise InputError(f"{name!r} holds pickled objects, which are refused; save plain arrays")
    needed, held = prod(shape) * dtype.itemsize, size - stream.tell()
    if min(shape, default=0) < 0 or needed != held:
        raise InputError(f"{name!r} claims {' x '.join(map(str, shape)) or 1} values and has {held:,} bytes")
    data = stream.read()  # to the end, where the checksum is compared
    if not needed:
        return np.empty(shape, dtype)
    return np.frombuffer(data, dtype).reshape(shape, order="F" if fortran else "C").copy()
