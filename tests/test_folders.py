"""What a run's folder holds, who may write into it, and what is removed from it."""

from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from pipecycle import InputError
from pipecycle.files import make_folder, tidy, write
from pipecycle.runs import workers
from pipecycle.runs.config import Config
from pipecycle.runs.folders import Busy, Damaged, Lock, clear, finished, result
from pipecycle.runs.parquet import collect
from pipecycle.runs.records import load
from pipecycle.runs.run import RunFolder, train_folders
from pipecycle.runs.workers import Shard

SMALL = Config("fedavg").changed({"world.clients": 5, "world.slots": 120, "world.session": 5, "look.every": 30})


HOLDS = """
import sys
from pathlib import Path
from pipecycle.runs.folders import Lock
Lock(Path(".")).take()
print(1, flush=True)
sys.stdin.read()
"""


def holder(folder: Path) -> subprocess.Popen[bytes]:
    """A process that holds a folder's lock until it is killed."""
    other = subprocess.Popen([sys.executable, "-c", HOLDS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=folder)
    assert other.stdout is not None
    other.stdout.readline()
    return other


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    folder = RunFolder(tmp_path_factory.mktemp("runs") / "run", SMALL)
    train_folders([folder], device="cpu")
    return folder


@pytest.fixture
def run(trained: RunFolder, tmp_path: Path) -> RunFolder:
    """A finished run that may be spoilt."""
    path = tmp_path / "run"
    path.mkdir()
    for file in trained.path.iterdir():
        if file.is_file():
            (path / file.name).write_bytes(file.read_bytes())
    return RunFolder(path, SMALL)


def test_a_finished_run_leaves_no_lock_and_is_not_written_again(run: RunFolder) -> None:
    before = {file.name: file.read_bytes() for file in run.path.iterdir()}
    assert sorted(before) == ["config.toml", "metrics.csv", "model.safetensors", "result.json", "schedule.npz"]
    assert not run.take()
    train_folders([run], device="cpu")
    assert {file.name: file.read_bytes() for file in run.path.iterdir() if file.is_file()} == before


@pytest.mark.parametrize("sealed", [True, False])
def test_metrics_that_end_early_are_no_result(run: RunFolder, sealed: bool) -> None:
    """An orphan of an earlier version could do this: the metrics of a checkpoint beside the result of the whole."""
    metrics = run.path / "metrics.csv"
    whole = metrics.read_text()
    if not sealed:  # what versions without a seal have written
        figures = json.loads((run.path / "result.json").read_text())
        del figures["metrics"]
        (run.path / "result.json").write_text(json.dumps(figures))
        assert finished(run.path)
    metrics.write_text("".join(whole.splitlines(keepends=True)[:3]))
    assert not run.finished
    assert run.damage is not None
    assert "metrics.csv is not what result.json (ended: finished) was written with" in run.damage
    with pytest.raises(Damaged):
        load([run.path])
    assert len(collect([run])) == 0
    train_folders([run], device="cpu")
    assert metrics.read_text() == whole
    assert run.damage is None
    assert len(collect([run])) == 4


@pytest.mark.parametrize("name", ["metrics.csv", "result.json"])
def test_any_damage_is_noticed_and_repaired(run: RunFolder, name: str) -> None:
    whole = (run.path / name).read_bytes()
    for place in (0, len(whole) // 2):
        spoilt = bytearray(whole)
        spoilt[place] ^= 64
        (run.path / name).write_bytes(spoilt)
        if name == "metrics.csv":
            assert not run.finished
    (run.path / name).write_bytes(whole[:-20])
    assert not run.finished
    train_folders([run], device="cpu")
    assert (run.path / name).read_bytes() == whole


def test_only_one_process_has_a_folder(tmp_path: Path) -> None:
    """The system takes the lock back from a process that is killed."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=tmp_path
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        mine = Lock(tmp_path)
        with pytest.raises(Busy, match=f"is being trained by process {other.pid}$"):
            mine.take()
        run = RunFolder(tmp_path, SMALL)
        with pytest.raises(Busy):
            train_folders([run], device="cpu")
        assert [file.name for file in tmp_path.iterdir()] == [".lock"]
        other.kill()
    mine.take()
    mine.check()
    (tmp_path / ".lock").unlink()
    with pytest.raises(InputError, match="was removed while it was being trained"):
        mine.check()
    again = Lock(tmp_path)
    again.take()
    mine.release()  # which leaves the lock of who came after it alone
    again.check()
    again.release()
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_any_more_is_released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: Path, missing_ok: bool = False) -> None:
        raise PermissionError(1, "Operation not permitted")

    mine, other = Lock(tmp_path), Lock(tmp_path)
    mine.take()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refused)
        mine.release()
    other.take()
    other.release()
    assert not list(tmp_path.iterdir())


def test_fresh_removes_what_is_ours_and_names_the_rest(run: RunFolder) -> None:
    (run.path / "notes.txt").write_text("precious")
    (run.path / "checkpoint").mkdir()
    (run.path / "checkpoint" / "mine.bin").write_text("precious")
    (run.path / ".metrics.csv.1.partial").write_text("left")
    assert clear(run.path) == {run.path: ["checkpoint/mine.bin", "notes.txt"]}
    assert sorted(file.name for file in run.path.iterdir()) == ["checkpoint", "notes.txt"]
    with pytest.raises(InputError, match="is not the folder of a run"):
        clear(run.path)


def test_fresh_that_was_killed_can_be_given_again(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = {file.name: file.read_bytes() for file in run.path.iterdir()}
    unlink = Path.unlink

    for last in range(6):
        for name, data in whole.items():
            (run.path / name).write_bytes(data)
        run.checkpoint.parent.mkdir(exist_ok=True)
        run.checkpoint.write_text("")
        left = last

        def dies(path: Path, missing_ok: bool = False) -> None:
            nonlocal left
            left -= path.name != ".lock"
            if left < 0 and path.name != ".lock":
                raise KeyboardInterrupt
            unlink(path, missing_ok)

        with monkeypatch.context() as patch:
            patch.setattr(Path, "unlink", dies)
            with pytest.raises(KeyboardInterrupt):
                clear(run.path)
        (run.path / ".lock").write_text("1 elsewhere\n")
        assert run.finished == (last <= 1)  # until result.json goes, which is the first after the checkpoint
        assert clear(run.path) == {}
        assert [file.name for file in run.path.iterdir()] == ["checkpoint"]
        assert clear(run.path) == {}


@pytest.mark.parametrize("why", ["is being trained by", "is not the folder of a run"])
def test_fresh_removes_all_or_nothing(why: str, run: RunFolder, tmp_path: Path) -> None:
    """Or a sweep that is still running would end with fewer runs than it has finished."""
    whole = {file.name: file.read_bytes() for file in run.path.iterdir()}
    second = tmp_path / "second"
    second.mkdir()
    held = Lock(second)
    if "trained" in why:
        held.take()
    else:
        (second / "notes.txt").write_text("precious")
    with pytest.raises(InputError, match=why):
        clear(run.path, second)
    assert {file.name: file.read_bytes() for file in run.path.iterdir()} == whole
    held.release()


def test_a_result_that_goes_while_others_are_trained_is_told(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def dealt(*_: object) -> list[tuple[str, Shard]]:
        (run.path / "result.json").unlink()
        return []

    monkeypatch.setattr(workers, "share", dealt)
    assert workers.execute([run]) == {str(run.path): "its result was removed or changed meanwhile"}


def test_a_result_without_its_configuration_is_nobodys(run: RunFolder) -> None:
    (run.path / "config.toml").unlink()
    assert not run.finished


def test_what_a_kill_leaves_in_a_finished_folder_is_swept(run: RunFolder) -> None:
    run.checkpoint.parent.mkdir()
    run.checkpoint.write_text("")
    run.lock.path.write_text("1 elsewhere\n")
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=run.path
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        run.tidy()
        assert run.lock.path.exists()
        assert run.checkpoint.exists()
        other.kill()
    run.tidy()
    assert not run.lock.path.exists()
    assert not run.checkpoint.exists()
    assert run.finished


@pytest.mark.parametrize(
    "files",
    [
        {"config.toml": "title = 'my site'\n", "metrics.csv": "a,b\n"},
        {"config.toml": SMALL.text()},
        {"config.toml": SMALL.text().replace("format = 1", "format = 9"), "schedule.npz": ""},
        {"schedule.npz": "", "metrics.csv": ""},
        {"config.toml": SMALL.text(), "schedule.npz": "", "trace.jsonl": "{}\n"},
    ],
)
def test_fresh_touches_nothing_of_somebody_elses(files: dict[str, str], tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match="so nothing in it is removed"):
        clear(tmp_path)
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == files


def test_leftovers_of_killed_writers_are_swept(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    left = [f".a.csv.{gone.pid}.partial", f".a.csv.{os.getppid()}.partial", f".b.csv.{gone.pid}.partial", ".x.partial"]
    for name in left:
        (tmp_path / name).write_text("half")
    write(tmp_path / "a.csv", "whole")
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted(["a.csv", *left[1:]])
    tidy(tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == [".x.partial", "a.csv"]


def test_what_was_written_survives_a_power_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The contents are on disk before the name is, and the name before anybody relies on it."""
    synced: list[tuple[str, list[str]]] = []

    def fsync(file: int) -> None:
        folder = next((path for path in (tmp_path, new, new.parent) if path.exists() and same(path, file)), None)
        synced.append(("file", []) if folder is None else (folder.name, sorted(path.name for path in folder.iterdir())))

    def same(path: Path, file: int) -> bool:
        return os.path.samestat(path.stat(), os.fstat(file))

    new = tmp_path / "outer" / "inner"
    monkeypatch.setattr(os, "fsync", fsync)
    make_folder(new)
    assert sorted(synced) == sorted([("outer", ["inner"]), (tmp_path.name, ["outer"])])
    synced.clear()
    make_folder(new)
    write(new / "a.csv", "whole")
    assert synced == [("file", []), ("inner", ["a.csv"])]


@pytest.mark.parametrize(("number", "fails"), [(errno.EINVAL, False), (errno.EIO, True)])
def test_a_disk_that_cannot_sync_folders_and_one_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, fails: bool
) -> None:
    def fsync(file: int) -> None:
        if stat.S_ISDIR(os.fstat(file).st_mode):
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(InputError, match=r"cannot be written \(input/output error\)") if fails else nullcontext():
        write(tmp_path / "a.csv", "whole")
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]


def test_reading_a_run_runs_no_code(run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pipecycle.report.page import page
    from pipecycle.report.tables import summary_rows

    (tmp_path / "trap.py").write_text("from pathlib import Path\nPath('sprung').touch()\n")
    monkeypatch.chdir(tmp_path)
    text = SMALL.text().replace('"fedavg"', '"trap:Policy"\nspeed = 3').replace('"mlp"', '"trap:model"')
    assert text.count("trap:") == 2
    (run.path / "config.toml").write_text(text)
    groups = load([run.path])
    assert summary_rows(groups)[0]["accuracy"] > 0
    assert "trap:Policy" in page(groups)
    assert groups[0].records[0].config is not None
    assert groups[0].records[0].config.text() == text
    assert not (tmp_path / "sprung").exists()
    assert result(run.path) is not None
