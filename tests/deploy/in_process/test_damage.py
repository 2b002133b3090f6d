"""One byte changed, or the end cut off: a node's ledger and a server's checkpoint are refused, or read as they were."""

from __future__ import annotations

import os
import random
import stat
from pathlib import Path
from typing import Any

import attrs
import pytest

pytest.importorskip("flwr")

from pipecycle.deploy.node.ledger import FileStore, Ledger
from pipecycle.deploy.server.trace import STATE, TRACE, Trace, read_saved
from pipecycle.errors import InputError

pytestmark = pytest.mark.flower


class Still:
    def monotonic(self) -> float:
        return 1.25


def damaged(data: bytes, cases: int) -> list[bytes]:
    rng = random.Random(0)
    out = []
    for _ in range(cases):
        place = rng.randrange(len(data))
        changed = bytearray(data)
        changed[place] = rng.choice([byte for byte in range(256) if byte != data[place]])
        out += [bytes(changed), data[: rng.randrange(len(data))]]
    return out


def test_a_ledger(tmp_path: Path) -> None:
    path = tmp_path / "ledger.json"
    ledger = Ledger(FileStore(path), 3, 1000, 40)
    ledger.enter("run")
    ledger.account.gain(25)
    ledger.account.pay(training=20, upload=1)
    ledger.save()
    whole, before = path.read_bytes(), attrs.asdict(ledger.account)
    refused = 0
    for data in damaged(whole, 40):
        path.write_bytes(data)
        try:
            found = Ledger(FileStore(path), 3, 1000, 40)
        except InputError:
            refused += 1
        else:
            assert attrs.asdict(found.account) == before
    assert refused > 70
    path.write_bytes(whole)
    assert attrs.asdict(Ledger(FileStore(path), 3, 1000, 40).account) == before


def test_a_checkpoint_and_its_trace(tmp_path: Path) -> None:
    trace = Trace(tmp_path, Still())
    for slot in range(5):
        trace.write("launch", slot, clients=[slot, slot + 1], k=[0, 1])
    trace.save("run", 4, "identity")
    trace.close()
    whole = read_saved(tmp_path)
    assert len(whole[1]) == 5
    refused = 0
    for name in (STATE, TRACE):
        path = tmp_path / name
        data = path.read_bytes()
        for changed in damaged(data, 40):
            path.write_bytes(changed)
            found: Any = None
            try:
                found = read_saved(tmp_path)
            except InputError:
                refused += 1
            assert found in (None, whole)
        path.write_bytes(data)
    assert refused > 140
    assert read_saved(tmp_path) == whole


def test_the_names_of_a_ledger_and_a_checkpoint_survive_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a folder, only the names are left that it had when it was synced last."""
    left: dict[int, set[str]] = {}

    def fsync(file: int) -> None:
        if stat.S_ISDIR(os.fstat(file).st_mode):
            left[os.fstat(file).st_ino] = set(os.listdir(file))

    monkeypatch.setattr(os, "fsync", fsync)
    home = tmp_path / "state" / "pipecycle"
    store = FileStore(home / "ledger.json")
    with store.locked():
        Ledger(store, 3, 1000, 40)
    trace = Trace(home / "run", Still())
    trace.write("start", -1)
    trace.save("word", -1, "identity")
    trace.close()
    for path in (home, home / "ledger.json", home / "run" / TRACE, home / "run" / STATE):
        for part in (path, *path.parents):
            if part != tmp_path and part.is_relative_to(tmp_path):
                assert part.name in left[part.parent.stat().st_ino], part


def test_files_of_before_the_seals_still_open(tmp_path: Path) -> None:
    path = tmp_path / "ledger.json"
    path.write_text('{"format": 2, "client": 3, "capacity": 1000, "harvested": 40, "runs": {}}\n')
    assert Ledger(FileStore(path), 3, 1000, 40).account.harvested == 40
