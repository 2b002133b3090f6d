from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pipecycle.commands.data import app
from pipecycle.data import CATALOGUE, Entry, dirichlet, iid, load, load_split
from pipecycle.errors import InputError


def run(*words: str) -> str:
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_split_prints_counts() -> None:
    out = run("split", "digits", "--clients", "3", "--samples", "40", "--trial", "2")
    assert "digits: class counts" in out
    assert iid(load("digits"), 3, 40, 2).digest() in out
    assert run("split", "digits", "--clients", "3", "--samples", "40", "--trial", "2", "--alpha", "iid") == out


def test_split_of_many_clients_is_cut() -> None:
    assert "... and 60 more clients" in run("split", "digits", "--alpha", "0.1")


def test_split_as_json_and_file(tmp_path: Path) -> None:
    task = load("digits")
    path = tmp_path / "split.npz"
    out = json.loads(run("split", "digits", "--clients", "100", "--alpha", "0.1", "--out", str(path), "--json"))
    split = dirichlet(task, 100, alpha=0.1)
    assert out["digest"] == split.digest() == load_split(path, task).digest()
    assert out["counts"] == split.show(task)
    assert out["notes"] == list(split.notes)
    assert (out["data"], out["clients"], out["test"]) == ("digits", 100, 360)


def test_fetch_and_list(cache: Path, official: tuple[Entry, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    entry, folder = official
    monkeypatch.setitem(CATALOGUE, "cifar10", entry)
    assert "184.4 kB" not in run("list")
    assert run("fetch", "cifar10", "--from", str(folder)).endswith(f"cifar10: {cache / 'cifar10'}\n")
    out = run("list")
    assert "184.4 kB" in out
    assert f"cache: {cache}" in out


def test_fetch_of_a_built_in_set(cache: Path) -> None:
    assert run("fetch", "digits").endswith("digits: 8x8 grey digits, part of scikit-learn, nothing to fetch\n")


def test_bad_input_is_left_to_the_program(cache: Path) -> None:
    for words in (["fetch", "mnist"], ["split", "cifar10"], ["split", "digits", "--clients", "0"]):
        assert isinstance(CliRunner().invoke(app, words).exception, InputError)


def test_importing_is_cheap() -> None:
    code = "import pipecycle.data, sys; print({'sklearn', 'torch'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"
