from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from attrs import evolve

from pipecycle.data import Entry, fetch
from pipecycle.data.cache import STALE, UNFINISHED, md5
from pipecycle.errors import InputError

Official = tuple[Entry, Path]


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A web server on this machine and the folder that it serves."""
    folder = tmp_path / "site"
    folder.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", folder
    server.shutdown()
    thread.join()
    server.server_close()


def packed(folder: Path, path: Path) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        archive.add(folder, folder.name)
    return path


def check(entry: Entry, cache: Path) -> None:
    assert sorted(path.name for path in cache.iterdir()) == [entry.name]
    assert {path.name: md5(path) for path in (cache / entry.name).iterdir()} == entry.files
    assert entry.intact()


def test_from_a_folder(cache: Path, official: Official) -> None:
    entry, folder = official
    seen: list[tuple[str, int, int]] = []
    assert fetch(entry, folder, lambda *step: seen.append(step)) == cache / "cifar10"
    check(entry, cache)
    assert seen[0] == ("data_batch_1.bin", 30730, 30730)
    assert [name for name, _, _ in seen] == list(entry.files)


def test_from_the_folder_above(cache: Path, official: Official) -> None:
    entry, folder = official
    fetch(entry, str(folder.parent))
    check(entry, cache)


def test_from_a_folder_with_the_archive(cache: Path, official: Official, tmp_path: Path) -> None:
    entry, folder = official
    (tmp_path / "downloads").mkdir()
    packed(folder, tmp_path / "downloads" / entry.archive)
    fetch(entry, tmp_path / "downloads")
    check(entry, cache)


def test_from_a_tar(cache: Path, official: Official, tmp_path: Path) -> None:
    entry, folder = official
    fetch(entry, packed(folder, tmp_path / "any.tgz"))
    check(entry, cache)


def test_from_a_zip(cache: Path, official: Official, tmp_path: Path) -> None:
    entry, folder = official
    with zipfile.ZipFile(tmp_path / "any.zip", "w") as archive:
        for path in folder.iterdir():
            archive.write(path, f"../../{path.name}")
    fetch(entry, tmp_path / "any.zip")
    check(entry, cache)


def test_from_the_official_archive(cache: Path, official: Official, site: tuple[str, Path]) -> None:
    entry, folder = official
    archive = packed(folder, site[1] / entry.archive)
    entry = evolve(entry, site=site[0], archive_md5=md5(archive))
    seen: list[tuple[str, int, int]] = []
    fetch(entry, progress=lambda *step: seen.append(step))
    check(entry, cache)
    size = archive.stat().st_size
    assert (entry.archive, size, size) in seen


def test_from_an_address_of_an_archive(cache: Path, official: Official, site: tuple[str, Path]) -> None:
    entry, folder = official
    packed(folder, site[1] / "mirror.tar.gz")
    fetch(entry, f"{site[0]}/mirror.tar.gz")
    check(entry, cache)


def test_from_loose_files_at_an_address(cache: Path, official: Official, site: tuple[str, Path]) -> None:
    entry, folder = official
    shutil.copytree(folder, site[1], dirs_exist_ok=True)
    entry = evolve(entry, archive="")
    fetch(entry, f"{site[0]}/")
    check(entry, cache)


def test_what_is_there_is_not_fetched_again(cache: Path, official: Official) -> None:
    entry, folder = official
    fetch(entry, folder)
    shutil.rmtree(folder)
    fetch(entry, folder)
    check(entry, cache)


def test_what_is_damaged_is_replaced(cache: Path, official: Official) -> None:
    entry, folder = official
    fetch(entry, folder)
    (cache / "cifar10" / "data_batch_2.bin").write_bytes(b"rot")
    fetch(entry, folder)
    check(entry, cache)


def test_what_else_is_in_the_cache_stays(cache: Path, official: Official) -> None:
    entry, folder = official
    (cache / "cifar10").mkdir(parents=True)
    (cache / ".notes-of-mine").mkdir()
    (cache / "cifar10" / "thesis.txt").touch()
    os.utime(cache / ".notes-of-mine", (0, 0))
    fetch(entry, folder)
    assert entry.intact()
    assert (cache / "cifar10" / "thesis.txt").exists()
    assert sorted(path.name for path in cache.iterdir()) == [".notes-of-mine", "cifar10"]


def test_built_in_sets_need_no_files(cache: Path) -> None:
    assert fetch("digits") is None
    assert not cache.exists()


def refuses(entry: Entry | str, source: str | Path | None, sentence: str, cache: Path) -> None:
    with pytest.raises(InputError) as raised:
        fetch(entry, source)
    assert sentence in str(raised.value)
    assert "\n" not in str(raised.value)
    assert not cache.exists() or not list(cache.iterdir())


def test_another_checksum_is_refused(cache: Path, official: Official, tmp_path: Path) -> None:
    entry, folder = official
    (folder / "data_batch_3.bin").write_bytes(b"other")
    refuses(entry, folder, "data_batch_3.bin has md5 795f3202b17cb6bc3d4b771d8c6c9eaf, the official one has", cache)
    refuses(entry, packed(folder, tmp_path / "a.tar.gz"), "data_batch_3.bin has md5 795f", cache)


def test_another_checksum_is_refused_from_the_web(cache: Path, official: Official, site: tuple[str, Path]) -> None:
    entry, folder = official
    packed(folder, site[1] / entry.archive)
    refuses(evolve(entry, archive_md5="0" * 32), site[0], "the official one has 000", cache)


def test_missing_files_are_named(cache: Path, official: Official, tmp_path: Path) -> None:
    entry, folder = official
    (folder / "test_batch.bin").unlink()
    refuses(entry, folder, "has no test_batch.bin", cache)
    refuses(entry, packed(folder, tmp_path / "a.tar.gz"), "has no test_batch.bin", cache)


def test_damaged_archives(cache: Path, official: Official, tmp_path: Path) -> None:
    entry, folder = official
    whole = packed(folder, tmp_path / "a.tar.gz").read_bytes()
    (tmp_path / "cut.tar.gz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "text.tar.gz").write_text("hello")
    refuses(entry, tmp_path / "cut.tar.gz", "is no archive, or a damaged one", cache)
    refuses(entry, tmp_path / "text.tar.gz", "is no archive, or a damaged one", cache)


def test_sources_that_are_none(cache: Path, official: Official, site: tuple[str, Path], tmp_path: Path) -> None:
    entry, _ = official
    refuses(entry, tmp_path / "nowhere", "no such folder or archive", cache)
    refuses(entry, "ftp://host/x.tar.gz", "needs to begin with http:// or https://", cache)
    refuses(entry, f"{site[0]}/x.zip", "cannot be downloaded (status 404)", cache)
    refuses(entry, None, "`pipecycle data fetch cifar10 --from FOLDER` takes them", cache)
    refuses("mnist", None, "data = 'mnist': known sets are digits, fashion-mnist, cifar10", cache)


def test_a_cache_that_cannot_be_written(official: Official, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry, folder = official
    (tmp_path / "file").touch()
    monkeypatch.setenv("PIPECYCLE_CACHE", str(tmp_path / "file"))
    with pytest.raises(InputError, match="cannot be used to fetch cifar10"):
        fetch(entry, folder)


def test_interrupted(cache: Path, official: Official) -> None:
    entry, folder = official

    def stop(name: str, done: int, total: int) -> None:
        if name == "data_batch_4.bin":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(entry, folder, stop)
    assert not list(cache.iterdir())


KILLED = """
import os, signal, sys
from pipecycle.data import Entry, fetch
files = dict(pair.split("=") for pair in sys.argv[2:])
def die(name, done, total):
    if name == "data_batch_4.bin":
        os.kill(os.getpid(), signal.SIGKILL)
fetch(Entry("cifar10", "small", files), sys.argv[1], die)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL on Windows")
def test_killed(cache: Path, official: Official) -> None:
    entry, folder = official
    pairs = [f"{name}={value}" for name, value in entry.files.items()]
    assert subprocess.run([sys.executable, "-c", KILLED, folder, *pairs]).returncode == -signal.SIGKILL
    assert not entry.cached()
    (leftover,) = cache.iterdir()
    assert leftover.name.startswith(UNFINISHED)

    old = time.time() - STALE - 60
    os.utime(leftover, (old, old))
    fetch(entry, folder)
    check(entry, cache)
