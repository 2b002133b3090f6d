"""Files that are there whole or not at all, also after a power cut."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pipecycle.errors import InputError, shown

SEAL = "sha256"


def write(path: Path, data: bytes | str, *, mode: int = 0o666) -> None:
    """Write to a temporary neighbour, then rename: nobody ever sees half a file, or one with wider permissions.  After
    this returns, not even a power cut undoes it."""
    if not path.name:
        raise InputError(f"{path}: is a folder, needs the name of a file")
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        _refuse_device(path, "written")
        tidy(path.parent, path.name)
        with open(partial, "wb", opener=lambda path, flags: os.open(path, flags, mode)) as file:
            file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({reason(error)})") from None
    finally:
        with suppress(OSError):  # what went wrong before is what matters
            partial.unlink(missing_ok=True)


def _refuse_device(path: Path, how: str) -> None:
    """Refuse /dev/null and the like, also a pipe: renaming would put a file in its place, and reading may never end."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise InputError(f"{path}: cannot be {how} (it is a device or a pipe, needs the name of a file)")


def sync_folder(folder: Path) -> None:
    """Wait until a folder's list of names is on disk: renamed and new files are then there after a power cut."""
    try:
        listing = os.open(folder, os.O_RDONLY)
    except PermissionError:  # Windows, or a folder that may be written but not read
        return
    try:
        os.fsync(listing)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # a file system that has no such thing
            raise
    finally:
        os.close(listing)


def make_folder(folder: Path) -> Path:
    """A folder, made if it is not there, on disk like the files that are going to be in it."""
    with using(folder, "made"):
        new = [path for path in (folder, *folder.parents) if not path.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        for path in new:
            sync_folder(path.parent)
    return folder


def writable(path: Path) -> None:
    """Refuse the name of a file that cannot be written, before the work that it is for."""
    with using(path, "written"):
        if not path.name or path.is_dir():
            raise InputError(f"{path}: is a folder, needs the name of a file")
        _refuse_device(path, "written")  # or a name that is too long
        if not path.parent.is_dir():
            raise InputError(f"{path}: cannot be written ({path.parent} is not a folder)")
        if not os.access(path.parent, os.W_OK):
            raise InputError(f"{path}: cannot be written (permission denied)")


def writable_folder(path: Path) -> None:
    """The same for a folder, which may have to be made."""
    with using(path, "written"):
        while not os.path.lexists(path):
            path = path.parent
        if not path.is_dir():
            what = "file" if path.exists() else "link to nothing"
            raise InputError(f"{path}: cannot be written (it is a {what}, needs a folder)")
        if not os.access(path, os.W_OK):
            raise InputError(f"{path}: cannot be written (permission denied)")


LEFT = re.compile(r"\.(.+)\.(\d+)\.partial")
"""The name of a file that is being written, or was when its writer was killed."""


def tidy(folder: Path, name: str | None = None) -> None:
    """Remove what writers of a file that were killed have left, or, where nobody else writes, those of all files."""
    for path in folder.glob(".*.partial"):
        left = LEFT.fullmatch(path.name)
        if left is not None and (name is None or (left[1] == name and not _alive(int(left[2])))):
            path.unlink(missing_ok=True)


def _alive(process: int) -> bool:
    if os.name == "nt":  # where signal 0 is a Ctrl-C
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass
    return True


def reason(error: Exception) -> str:
    """What the system says, as part of a sentence; other errors by their kind."""
    return (error.strerror or str(error)).lower() if isinstance(error, OSError) else type(error).__name__


@contextmanager
def using(path: Path, how: str) -> Iterator[None]:
    """Inside, an error of the system is a sentence such as `PATH: cannot be read (permission denied)`."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{path}: cannot be {how} ({reason(error)})") from None


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """The same for a file that is read to its end, perhaps more than once."""
    with using(path, "read"):
        _refuse_device(path, "read")
        yield


def sealed(values: Mapping[str, Any]) -> str:
    """Plain values as one line of JSON that tells whether it is damaged."""
    text = json.dumps(values)
    return json.dumps({**values, SEAL: hashlib.sha256(text.encode()).hexdigest()}) + "\n"


def unsealed(data: bytes | str) -> dict[str, Any]:
    """What was sealed, or a ValueError; lines of versions that did not seal are taken as they are."""
    values = json.loads(data)
    if not isinstance(values, dict):
        raise ValueError("is not a table")
    seal = values.pop(SEAL, None)
    if seal is not None and seal != hashlib.sha256(json.dumps(values).encode()).hexdigest():
        raise ValueError("does not fit its seal")
    return values


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file, or one sentence."""
    with using(path, "read"):
        return parsed_toml(path.read_bytes(), path)


def parsed_toml(data: bytes | str, path: Path) -> dict[str, Any]:
    """The same for what was read from a file."""
    try:
        return tomllib.loads(data if isinstance(data, str) else data.decode("utf-8-sig"))
    except RecursionError:
        raise InputError(f"{path}: is not TOML that can be read (too deeply nested)") from None
    except ValueError as error:  # of TOML, of its encoding, or a number of thousands of digits
        raise InputError(f"{path}: is not TOML ({shown(error.args[0] if error.args else error, 200)})") from None
