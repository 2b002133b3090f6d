from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipecycle.data import Split, dirichlet, held_out, load_split, save_split
from pipecycle.errors import InputError

from .conftest import task_of

TASK = task_of([0, 1, 2] * 40, test=1500)


@settings(deadline=None, max_examples=30)
@given(clients=st.integers(1, 30), trial=st.integers(0, 99), suffix=st.sampled_from([".npz", ".json"]))
def test_there_and_back(tmp_path_factory: pytest.TempPathFactory, clients: int, trial: int, suffix: str) -> None:
    path = tmp_path_factory.mktemp("splits") / f"split{suffix}"
    split = dirichlet(TASK, clients, trial=trial)
    save_split(split, path)
    again = load_split(path, TASK)
    assert again.digest() == split.digest()
    assert again.notes == split.notes
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def written(path: Path, content: Any) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


@pytest.mark.parametrize(
    "content",
    [
        {"clients": {"1": [2], "0": [5, 4]}, "test": [3, 0]},
        {"clients": [[4, 5], [2]], "test": [0, 3]},
    ],
)
def test_json_made_elsewhere(tmp_path: Path, content: Any) -> None:
    split = load_split(written(tmp_path / "a.json", content), TASK)
    assert split.digest() == Split.of([[4, 5], [2]], [0, 3]).digest()


@pytest.mark.parametrize("content", [{"1": [2], "0": [5, 4]}, [[4, 5], [2]]])
def test_without_test_samples_the_trial_draws_them(tmp_path: Path, content: Any) -> None:
    split = load_split(written(tmp_path / "a.json", content), TASK, trial=3)
    assert (split.test == held_out(TASK, 3)).all()
    assert len(split.test) == 1000
    assert split[0].tolist() == [4, 5]


def test_npz_made_elsewhere(tmp_path: Path) -> None:
    names: dict[str, Any] = {str(client): np.array([client, 50 + client], np.int32) for client in range(12)}
    np.savez(tmp_path / "a.npz", **names, test=np.array([7]))
    split = load_split(tmp_path / "a.npz", TASK)
    assert split[10].tolist() == [10, 60]
    assert split.test.tolist() == [7]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("{", "is not json"),
        ("5", "needs a map of client to indices"),
        ("{}", "a split needs at least 1 client"),
        ('{"0": [1], "0": [2]}', "has '0' twice"),
        ({"0": [1], "2": [2]}, "has no client 1: 2 clients need the names 0 to 1"),
        ({"0": [1], "1": [120]}, "client 1 holds index 120: toy has 0 to 119"),
        ({"0": [1], "1": [-1]}, "client 1 holds index -1: needs 0 or more"),
        ({"0": [1], "1": [1]}, "clients 0 and 1 share index 1"),
        ({"0": ["a"]}, "client 0: has indices of type <U1, needs integers"),
        ({"0": None}, "client 0: has indices of shape (), needs a flat list"),
        ({"clients": [[1]], "test": [1500]}, "test holds index 1500: toy has 0 to 1499"),
        ({"clients": [[1]], "notes": 3}, "notes needs to be a list"),
    ],
)
def test_bad_json(tmp_path: Path, content: Any, sentence: str) -> None:
    path = written(tmp_path / "a.json", content)
    with pytest.raises(InputError) as raised:
        load_split(path, TASK)
    assert str(raised.value).startswith(f"{path}: {sentence}")


def test_shared_samples_with_the_flag(tmp_path: Path) -> None:
    split = load_split(written(tmp_path / "a.json", [[0, 1], [1, 2]]), TASK, overlap=True)
    assert split.sizes.tolist() == [2, 2]


def test_bad_npz(tmp_path: Path) -> None:
    np.savez(tmp_path / "starts.npz", indices=np.arange(4), starts=np.array([0, 3, 2, 4]))
    np.savez(tmp_path / "end.npz", indices=np.arange(4), starts=np.array([0, 3]))
    np.savez(tmp_path / "pickled.npz", **{"0": np.array([1, None])})  # type: ignore[arg-type]
    (tmp_path / "text.npz").write_text("hello")
    for name, sentence in (
        ("starts", "starts needs to rise from 0"),
        ("end", "starts needs to rise from 0"),
        ("pickled", "'0' holds pickled objects"),
        ("text", "is not an npz file"),
        ("absent", "cannot be read (no such file"),
    ):
        with pytest.raises(InputError) as raised:
            load_split(tmp_path / f"{name}.npz", TASK)
        assert str(raised.value).startswith(f"{tmp_path / name}.npz: {sentence}")


def test_other_files(tmp_path: Path) -> None:
    split = Split.of([[0]], [0])
    with pytest.raises(InputError, match=r"a split is kept in a \.npz or \.json file"):
        save_split(split, tmp_path / "a.csv")
    with pytest.raises(InputError, match=r"cannot be written \(no such file or directory\)"):
        save_split(split, tmp_path / "nowhere" / "a.npz")
    with pytest.raises(InputError, match=r"cannot be read \(no such file or directory\)"):
        load_split(tmp_path / "a.json", TASK)
