from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from pipecycle.data import CATALOGUE, Entry, cache_root, load
from pipecycle.errors import InputError

from .conftest import idx


def test_digits() -> None:
    task = load("digits")
    assert repr(task) == "Task(digits: 1,437 training and 360 test samples of 1x8x8, 10 classes)"
    assert abs(float(task.x_train.mean())) < 1e-3
    assert abs(float(task.x_train.std()) - 1.0) < 1e-3
    # The first image is a 0 whose upper row reads 0 0 5 13 9 1 0 0 out of 16.
    row = (np.array([0, 0, 5, 13, 9, 1, 0, 0]) / 16 - 0.3054) / 0.3755
    assert task.y_train[0] == 0
    assert np.allclose(task.x_train[0, 0, 0], row)
    assert np.bincount(task.y_test).tolist() == [35, 36, 35, 37, 37, 37, 37, 36, 33, 37]


def test_digits_are_scikit_learns() -> None:
    from sklearn.datasets import load_digits

    bundle = load_digits()
    task = load("digits")
    levels = np.concatenate([task.x_train, task.x_test])[:, 0] * 0.3755 + 0.3054
    assert np.allclose(levels * 16, bundle.images, atol=1e-4)
    assert np.concatenate([task.y_train, task.y_test]).tolist() == bundle.target.tolist()


def test_fashion_mnist(cache: Path) -> None:
    folder = cache / "fashion-mnist"
    folder.mkdir(parents=True)
    images = np.zeros((3, 28, 28), np.uint8)
    images[2, 4, 5] = 255
    for part in ("train", "t10k"):
        (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(idx(images))
        (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(idx(np.array([9, 0, 3])))
    task = load("fashion-mnist")
    assert task.x_train.shape == (3, 1, 28, 28)
    assert task.y_test.tolist() == [9, 0, 3]
    assert task.x_train[2, 0, 4, 5] == np.float32((1 - 0.2860) / 0.3530)
    assert task.x_train[0, 0, 0, 0] == np.float32(-0.2860 / 0.3530)

    (folder / "t10k-labels-idx1-ubyte.gz").write_bytes(b"rot")
    with pytest.raises(InputError, match=r"cannot be read as gzip.*; `pipecycle data fetch fashion-mnist` replaces it"):
        load("fashion-mnist")


def test_cifar10(cache: Path, official: tuple[Entry, Path]) -> None:
    cache.mkdir()
    official[1].rename(cache / "cifar10")
    task = load("cifar10")
    assert task.x_train.shape == (50, 3, 32, 32)
    assert task.x_test.shape == (10, 3, 32, 32)
    assert task.y_train.tolist() == list(range(10)) * 5
    # Image 3 of batch 2 is filled with 3 + 1, and image 0 of the test batch with 5.
    assert task.x_train[13, 2, 9, 9] == np.float32((4 / 255 - 0.4465) / 0.2616)
    assert task.x_test[0, 1, 0, 0] == np.float32((5 / 255 - 0.4822) / 0.2435)


@pytest.mark.parametrize("name", ["fashion-mnist", "cifar10"])
def test_a_missing_set_names_the_command(cache: Path, name: str) -> None:
    with pytest.raises(InputError) as raised:
        load(name)
    assert str(raised.value) == f"{name} is not in the cache: `pipecycle data fetch {name}` puts it there"


def test_npz_and_task(tmp_path: Path) -> None:
    x, y = np.eye(4), np.arange(4)
    np.savez(tmp_path / "own.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    task = load(tmp_path / "own.npz")
    assert load(str(tmp_path / "own.npz")).name == task.name == "own"
    assert load(task) is task


def test_arrays_are_no_data_by_themselves() -> None:
    arrays = (np.zeros((4, 2)), np.zeros(4, int), np.zeros((2, 2)), np.zeros(2, int))
    with pytest.raises(InputError, match=r"data = a tuple: needs a name, an .npz file or Task\(x_train, y_train"):
        load(arrays)  # type: ignore[arg-type]


def test_neither_name_nor_file() -> None:
    with pytest.raises(
        InputError, match=r"data = 'mnist': needs one of digits, fashion-mnist, cifar10 or a \.npz file"
    ):
        load("mnist")
    with pytest.raises(InputError, match=r"absent\.npz: cannot be read \(no such file or directory\)"):
        load("absent.npz")


def test_files_of_the_catalogue() -> None:
    assert [len(entry.files) for entry in CATALOGUE.values()] == [0, 4, 6]
    assert all(len(md5) == 32 for entry in CATALOGUE.values() for md5 in entry.files.values())


@pytest.mark.skipif(sys.platform in ("darwin", "win32"), reason="these have places of their own")
def test_place_of_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PIPECYCLE_CACHE", "~/sets")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_root() == tmp_path / "sets"
    monkeypatch.delenv("PIPECYCLE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/c")
    assert cache_root() == Path("/var/c/pipecycle")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_root() == tmp_path / ".cache" / "pipecycle"
