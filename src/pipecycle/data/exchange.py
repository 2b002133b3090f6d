"""Splits in files: npz or json, ours or made elsewhere."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from pipecycle.arrays import read_arrays
from pipecycle.data.partition import held_out
from pipecycle.data.split import Split
from pipecycle.data.task import Task
from pipecycle.errors import InputError, shown
from pipecycle.files import reading, write


def save(split: Split, path: str | Path) -> None:
    """To a .npz or .json file, which appears whole or not at all."""
    path = Path(path)
    if kind(path) == ".npz":
        data = io.BytesIO()
        notes = np.array(split.notes, dtype=np.str_)
        arrays = {"indices": split.indices, "starts": split.starts, "test": split.test, "notes": notes}
        arrays |= {"validation": split.validation} if len(split.validation) else {}
        np.savez_compressed(data, **arrays)  # type: ignore[arg-type]  # numpy's stub allows no names
        write(path, data.getvalue())
        return
    clients = {str(client): indices.tolist() for client, indices in enumerate(split)}
    content = {"clients": clients, "test": split.test.tolist(), "notes": list(split.notes)}
    content |= {"validation": split.validation.tolist()} if len(split.validation) else {}
    write(path, json.dumps(content))


def load(path: str | Path, task: Task, *, trial: int = 0, overlap: bool = False) -> Split:
    """A split of the task from a file; clients may share samples only if `overlap`.

    json: {"clients": {"0": [indices], ...}, "test": [indices]}, or the clients alone, as a map or a list.
    npz: arrays named "0", "1", ... and "test", or the indices and starts that `save` writes.
    Both may have "validation" beside "test".  A file that names no test samples gets those of the trial."""
    path = Path(path)
    try:
        split = _from_npz(path, task, trial) if kind(path) == ".npz" else _from_json(path, task, trial)
        return split.check(task, overlap)
    except InputError as error:
        prefix = "" if str(error).startswith(str(path)) else f"{path}: "
        raise InputError(f"{prefix}{error}") from None


def kind(path: Path) -> str:
    """How a split is written, by the name of its file."""
    if path.suffix not in (".npz", ".json"):
        raise InputError(f"{path}: a split is kept in a .npz or .json file")
    return path.suffix


def _from_npz(path: Path, task: Task, trial: int) -> Split:
    arrays: dict[str, Any] = read_arrays(path)
    test, held = arrays.pop("test", None), arrays.pop("validation", None)
    notes = np.atleast_1d(arrays.pop("notes", [])).tolist()
    if set(arrays) == {"indices", "starts"}:
        starts, indices = arrays["starts"], arrays["indices"]
        rising = starts.ndim == 1 and starts.dtype.kind in "iu" and len(starts) > 1 and (np.diff(starts) > 0).all()
        if not rising or starts[0] != 0 or indices.ndim != 1 or starts[-1] != len(indices):
            raise InputError("starts needs to rise from 0 to the number of indices")
        return _assemble(np.split(indices, starts[1:-1]), test, held, notes, task, trial)
    return _assemble(_numbered(arrays), test, held, notes, task, trial)


def _from_json(path: Path, task: Task, trial: int) -> Split:
    try:
        with reading(path):
            content = json.loads(path.read_text(encoding="utf-8-sig"), object_pairs_hook=_unique)
    except InputError:
        raise
    except (ValueError, RecursionError) as error:  # of its encoding, of json, or a number of thousands of digits
        raise InputError(f"is not json ({shown(error, 200)})") from None
    about = content if isinstance(content, dict) and "clients" in content else {"clients": content}
    content, notes = about["clients"], about.get("notes") or []
    if not isinstance(notes, list):
        raise InputError("notes needs to be a list of sentences")
    if isinstance(content, dict):
        content = _numbered(content)
    if not isinstance(content, list):
        raise InputError("needs a map of client to indices")
    return _assemble(content, about.get("test"), about.get("validation"), notes, task, trial)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        names = [name for name, _ in pairs]
        raise InputError(f"has {next(name for name in names if names.count(name) > 1)!r} twice")
    return content


def _numbered(clients: dict[str, Any]) -> list[Any]:
    """The values of "0", "1", ... in that order."""
    for client in range(len(clients)):
        if str(client) not in clients:
            raise InputError(f"has no client {client}: {len(clients)} clients need the names 0 to {len(clients) - 1}")
    return [clients[str(client)] for client in range(len(clients))]


def _assemble(
    clients: list[Any], test: ArrayLike | None, held: ArrayLike | None, notes: list[Any], task: Task, trial: int
) -> Split:
    return Split.of(clients, held_out(task, trial) if test is None else test, map(str, notes), held)
