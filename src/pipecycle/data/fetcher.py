"""Putting a named set into the cache: from its official place, another address, a folder or an archive.

Every file is checked against its md5, wherever it comes from."""

from __future__ import annotations

import hashlib
import logging
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from importlib import import_module
from lzma import LZMAError
from pathlib import Path, PurePosixPath
from typing import IO
from urllib.parse import urlsplit

from attrs import define

from pipecycle.data import cache
from pipecycle.data.catalogue import Entry, find
from pipecycle.errors import InputError
from pipecycle.files import reason

Progress = Callable[[str, int, int], None]
"""Told the file's name, the bytes that have come, and all of its bytes (0 if unknown)."""

ARCHIVES = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar", ".zip")
CHUNK = 1 << 18


def fetch(name: str | Entry, source: str | Path | None = None, progress: Progress | None = None) -> Path | None:
    """The cache's folder of a set, filled from `source` if it is not there; None for one that needs no files.

    `source` is None (the official place), an http(s) address of an archive or of a folder with the files, a
    local folder, or a local archive."""
    entry = find(name) if isinstance(name, str) else name
    if not entry.files:
        return None
    try:
        if not entry.intact():
            with cache.staging(entry.name) as stage:
                _fill(entry, source, stage, progress or _silent)
    except OSError as error:
        where = error.filename or cache.root()
        raise InputError(f"{where}: cannot be used to fetch {entry.name} ({reason(error)})") from None
    return entry.folder()


def _silent(name: str, done: int, total: int) -> None:
    pass


def _fill(entry: Entry, source: str | Path | None, stage: Path, progress: Progress) -> None:
    if source is None or urlsplit(str(source)).scheme in ("http", "https"):
        return _from_address(entry, str(source or entry.site).rstrip("/"), stage, progress)
    path = Path(source).expanduser()
    if path.is_dir():
        return _from_folder(entry, path, stage, progress)
    if path.is_file():
        return _from_archive(entry, path, stage, progress)
    raise InputError(f"{source}: no such folder or archive; an address needs to begin with http:// or https://")


def _from_address(entry: Entry, address: str, stage: Path, progress: Progress) -> None:
    if urlsplit(address).path.endswith(ARCHIVES):
        packed = _download(entry, address, PurePosixPath(urlsplit(address).path).name, "", stage, progress)
    elif entry.archive:
        packed = _download(entry, f"{address}/{entry.archive}", entry.archive, entry.archive_md5, stage, progress)
    else:
        for name, md5 in entry.files.items():
            _download(entry, f"{address}/{name}", name, md5, stage, progress)
        return
    _from_archive(entry, packed, stage, progress)
    packed.unlink()


def _from_folder(entry: Entry, folder: Path, stage: Path, progress: Progress) -> None:
    places = [folder, *sorted(path for path in folder.iterdir() if path.is_dir())]
    for place in places:
        if all((place / name).is_file() for name in entry.files):
            for name in entry.files:
                with (place / name).open("rb") as stream:
                    _keep(entry, name, stream, (place / name).stat().st_size, place, stage, progress)
            return None
        if entry.archive and (place / entry.archive).is_file():
            return _from_archive(entry, place / entry.archive, stage, progress)
    missing = [name for name in entry.files if not (folder / name).is_file()]
    raise InputError(f"{folder}: has no {', '.join(missing)}")


def _from_archive(entry: Entry, archive: Path, stage: Path, progress: Progress) -> None:
    missing = set(entry.files)
    try:
        for name, size, stream in _members(archive):
            if name in missing:
                _keep(entry, name, stream, size, archive, stage, progress)
                missing.remove(name)
            if not missing:
                return
    # An encrypted member, or one of an unknown compression, is a RuntimeError to zipfile.
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, LZMAError, EOFError, RuntimeError) as error:
        raise InputError(f"{archive}: is no archive, or a damaged one ({type(error).__name__})") from None
    raise InputError(f"{archive}: has no {', '.join(sorted(missing))}")


def _members(archive: Path) -> Iterator[tuple[str, int, IO[bytes]]]:
    """Files in a tar or zip archive by their bare name, so that no path in it can lead out of the cache."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as zipped:
            for info in zipped.infolist():
                with zipped.open(info) as stream:
                    yield PurePosixPath(info.filename).name, info.file_size, stream
    else:
        with tarfile.open(archive) as tarred:
            for member in tarred:
                content = tarred.extractfile(member) if member.isfile() else None
                if content is not None:
                    yield PurePosixPath(member.name).name, member.size, content


def _keep(entry: Entry, name: str, stream: IO[bytes], size: int, origin: Path, stage: Path, progress: Progress) -> None:
    digest, done = hashlib.md5(usedforsecurity=False), 0
    with (stage / name).open("wb") as file:
        while chunk := stream.read(CHUNK):
            digest.update(chunk)
            file.write(chunk)
            done += len(chunk)
            progress(name, done, size)
    if digest.hexdigest() != entry.files[name]:
        raise InputError(f"{origin}: {name} has md5 {digest.hexdigest()}, the official one has {entry.files[name]}")


def _download(entry: Entry, address: str, name: str, md5: str, stage: Path, progress: Progress) -> Path:
    try:
        pooch = import_module("pooch")
    except ImportError:
        raise InputError(f"downloading needs pooch (pip install pooch); or {_by_hand(entry)}") from None
    pooch.get_logger().setLevel(logging.WARNING)
    loader = pooch.HTTPDownloader(progressbar=_Bar(name, progress), chunk_size=CHUNK)
    try:
        return Path(pooch.retrieve(address, f"md5:{md5}" if md5 else None, name, stage, downloader=loader))
    except OSError as error:
        response = getattr(error, "response", None)
        why = reason(error)
        if response is not None:
            why = f"status {response.status_code}"
            response.close()
        raise InputError(f"{address}: cannot be downloaded ({why}); {_by_hand(entry)}") from None
    except ValueError:
        raise InputError(f"{address}: has another md5 than the official {md5}; {_by_hand(entry)}") from None


def _by_hand(entry: Entry) -> str:
    return f"if you have the files, `{entry.command} --from FOLDER` takes them"


@define
class _Bar:
    """What pooch wants for a progress bar."""

    name: str
    progress: Progress
    total: int = 0
    done: int = 0

    def update(self, count: int) -> None:
        self.done = min(self.done + count, self.total or self.done + count)
        self.progress(self.name, self.done, self.total)

    def reset(self) -> None:
        self.done = 0

    def close(self) -> None:
        pass
