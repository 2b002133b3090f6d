"""Where fetched sets are kept, a folder each, which appears whole or not at all."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

UNFINISHED = ".pipecycle-fetch-"
STALE = 24 * 3600.0
"""Seconds after which the unfinished folder of a killed fetch is swept away."""


def root() -> Path:
    """PIPECYCLE_CACHE, or the platform's place for a user's caches."""
    chosen = os.environ.get("PIPECYCLE_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "pipecycle"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "pipecycle" / "Cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pipecycle"


@contextmanager
def staging(name: str) -> Iterator[Path]:
    """A folder to fill; it becomes the set's if the block ends well and vanishes otherwise."""
    home, target = root(), root() / name
    home.mkdir(parents=True, exist_ok=True)
    _sweep(home)
    stage = home / f"{UNFINISHED}{secrets.token_hex(6)}"
    stage.mkdir()
    try:
        yield stage
        if target.is_dir():
            # It lacks some files or holds damaged ones; whatever else is in it is somebody's and stays.
            for path in stage.iterdir():
                path.replace(target / path.name)
        else:
            stage.rename(target)
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _sweep(home: Path) -> None:
    for path in home.glob(f"{UNFINISHED}*"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > STALE:
                shutil.rmtree(path)


def md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
