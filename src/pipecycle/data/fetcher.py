"""Putting a named set into the cache: from its official place, another address, a folder or an archive.

Every file is checked against its md5, wherever it comes from."""

from __future__ import annotations

import hashlib
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from http.client import HTTPException
from lzma import LZMAError
from pathlib import Path, PurePosixPath
from typing import IO
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import urlopen

from attrs import frozen

from pipecycle.data import cache
from pipecycle.data.catalogue import Entry, find
from pipecycle.errors import InputError
from pipecycle.files import reason

Progress = Callable[[str, int, int], None]
"""Told the file's name, the bytes that have come, and all of its bytes (0 if unknown)."""

ARCHIVES = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar", ".zip")
CHUNK = 1 << 18
PATIENCE = 30.0
"""Seconds without an answer after which a download is given up."""


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
                _Fetching(entry, stage, progress or _silent).fill(source)
    except OSError as error:
        where = error.filename or cache.root()
        raise InputError(f"{where}: cannot be used to fetch {entry.name} ({reason(error)})") from None
    return entry.folder()


def _silent(name: str, done: int, total: int) -> None:
    pass


@frozen
class _Fetching:
    """A set on its way into the folder `stage`."""

    entry: Entry
    stage: Path
    progress: Progress

    def fill(self, source: str | Path | None) -> None:
        path = Path(source or "").expanduser()
        if source is None or urlsplit(str(source)).scheme in ("http", "https"):
            self.from_address(str(source or self.entry.site).rstrip("/"))
        elif path.is_dir():
            self.from_folder(path)
        elif path.is_file():
            self.from_archive(path)
        else:
            raise InputError(f"{source}: no such folder or archive; an address needs to begin with http:// or https://")

    def from_address(self, address: str) -> None:
        entry, path = self.entry, urlsplit(address).path
        if path.endswith(ARCHIVES):
            packed = self.download(address, PurePosixPath(path).name, "")
        elif entry.archive:
            packed = self.download(f"{address}/{entry.archive}", entry.archive, entry.archive_md5)
        else:
            for name, md5 in entry.files.items():
                self.download(f"{address}/{name}", name, md5)
            return
        self.from_archive(packed)
        packed.unlink()

    def from_folder(self, folder: Path) -> None:
        for place in [folder, *sorted(path for path in folder.iterdir() if path.is_dir())]:
            if all((place / name).is_file() for name in self.entry.files):
                for name, md5 in self.entry.files.items():
                    with (place / name).open("rb") as stream:
                        self.keep(name, stream, (place / name).stat().st_size, md5, place)
                return
            if self.entry.archive and (place / self.entry.archive).is_file():
                self.from_archive(place / self.entry.archive)
                return
        missing = [name for name in self.entry.files if not (folder / name).is_file()]
        raise InputError(f"{folder}: has no {', '.join(missing)}")

    def from_archive(self, archive: Path) -> None:
        missing = dict(self.entry.files)
        try:
            for name, size, stream in _members(archive):
                if name in missing:
                    self.keep(name, stream, size, missing.pop(name), archive)
                if not missing:
                    return
        # An encrypted member, or one of an unknown compression, is a RuntimeError to zipfile.
        except (tarfile.TarError, zipfile.BadZipFile, zlib.error, LZMAError, EOFError, RuntimeError) as error:
            raise InputError(f"{archive}: is no archive, or a damaged one ({type(error).__name__})") from None
        raise InputError(f"{archive}: has no {', '.join(sorted(missing))}")

    def download(self, address: str, name: str, md5: str) -> Path:
        """One file; `md5` is empty for an archive of somebody else's, whose files are checked."""
        try:
            with urlopen(address, timeout=PATIENCE) as stream:
                self.keep(name, stream, int(stream.headers.get("Content-Length") or 0), md5, address)
        except (OSError, HTTPException) as error:
            cause = getattr(error, "reason", error)
            why = reason(cause if isinstance(cause, Exception) else error)
            if isinstance(error, HTTPError):
                why = f"status {error.code}"
                error.close()
            by_hand = f"if you have the files, `{self.entry.command} --from FOLDER` takes them"
            raise InputError(f"{address}: cannot be downloaded ({why}); {by_hand}") from None
        return self.stage / name

    def keep(self, name: str, stream: IO[bytes], size: int, md5: str, origin: str | Path) -> None:
        digest, done = hashlib.md5(usedforsecurity=False), 0
        with (self.stage / name).open("wb") as file:
            while chunk := stream.read(CHUNK):
                digest.update(chunk)
                file.write(chunk)
                done += len(chunk)
                self.progress(name, done, size)
        if md5 and digest.hexdigest() != md5:
            raise InputError(f"{origin}: {name} has md5 {digest.hexdigest()}, the official one has {md5}")


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
