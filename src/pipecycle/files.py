"""Files that are there whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from pipecycle.errors import InputError


def write(path: Path, data: bytes | str) -> None:
    """Write to a temporary neighbour, then rename: nobody ever sees half a file."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({reason(error)})") from None
    finally:
        partial.unlink(missing_ok=True)


def reason(error: OSError) -> str:
    """What the system says, as part of a sentence."""
    return (error.strerror or str(error)).lower()
