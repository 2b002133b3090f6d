from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from pipecycle.data.formats import read_batch, read_idx, read_task
from pipecycle.errors import InputError

from .conftest import idx


def test_idx(tmp_path: Path) -> None:
    values = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    (tmp_path / "a.gz").write_bytes(idx(values))
    assert (read_idx(tmp_path / "a.gz") == values).all()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"plain", "cannot be read as gzip"),
        (idx(np.zeros(100, np.uint8))[:-9], "cannot be read as gzip"),
        (gzip.compress(mtime=0, data=b""), "is not an idx file of unsigned bytes"),
        (gzip.compress(mtime=0, data=b"\0\0\x0d\1\0\0\0\1\0\0\0\0"), "is not an idx file of unsigned bytes"),
        (gzip.compress(mtime=0, data=b"\0\0\x08\3\0\0\0\1"), "is not an idx file of unsigned bytes"),
        (gzip.compress(mtime=0, data=b"\0\0\x08\1\0\0\0\5abc"), "has 3 values where its header says (5,)"),
    ],
)
def test_damaged_idx(tmp_path: Path, content: bytes, sentence: str) -> None:
    (tmp_path / "a.gz").write_bytes(content)
    with pytest.raises(InputError) as raised:
        read_idx(tmp_path / "a.gz")
    assert sentence in str(raised.value)


def test_binary_batch_is_label_then_red_green_blue(tmp_path: Path) -> None:
    record = bytes([7]) + bytes([1]) * 1024 + bytes([2]) * 1024 + bytes(range(32)) * 32
    (tmp_path / "a.bin").write_bytes(record * 2)
    images, labels = read_batch(tmp_path / "a.bin")
    assert labels.tolist() == [7, 7]
    assert images.shape == (2, 3, 32, 32)
    assert (images[1, 0] == 1).all()
    assert (images[1, 1] == 2).all()
    assert images[0, 2, 5].tolist() == list(range(32))


@pytest.mark.parametrize("content", [b"", b"x" * 3072])
def test_damaged_batch(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.bin").write_bytes(content)
    with pytest.raises(InputError, match="no number of 3073-byte images"):
        read_batch(tmp_path / "a.bin")


def arrays() -> dict[str, np.ndarray]:
    return {"x_train": np.eye(3), "y_train": np.arange(3), "x_test": np.eye(3)[:2], "y_test": np.arange(2)}


def test_npz(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", **arrays())  # type: ignore[arg-type]
    task = read_task(tmp_path / "mine.npz")
    assert repr(task) == "Task(mine: 3 training and 2 test samples of 3 features, 3 classes)"


def test_npz_without_a_key(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", x_train=np.eye(3), y_test=np.arange(3))
    with pytest.raises(InputError, match="has no y_train, x_test; needs x_train, y_train, x_test, y_test"):
        read_task(tmp_path / "mine.npz")


def test_npz_with_bad_labels_names_the_file(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", **{**arrays(), "y_test": np.array([0, -3])})  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"mine\.npz: y_test holds -3"):
        read_task(tmp_path / "mine.npz")


def test_pickled_arrays_are_refused(tmp_path: Path) -> None:
    pickled = np.array([0, "one", None], dtype=object)
    np.savez(tmp_path / "mine.npz", **{**arrays(), "y_train": pickled})  # type: ignore[arg-type]
    with pytest.raises(InputError, match="pickled objects, which are refused"):
        read_task(tmp_path / "mine.npz")


def test_files_that_are_no_npz(tmp_path: Path) -> None:
    np.save(tmp_path / "one.npy", np.eye(3))
    (tmp_path / "one.npy").rename(tmp_path / "one.npz")
    (tmp_path / "text.npz").write_text("hello")
    (tmp_path / "empty.npz").touch()
    np.savez(tmp_path / "whole.npz", **arrays())  # type: ignore[arg-type]
    (tmp_path / "cut.npz").write_bytes((tmp_path / "whole.npz").read_bytes()[:200])
    for name in ("one", "text", "empty", "cut", "absent"):
        with pytest.raises(InputError, match=rf"{name}\.npz: "):
            read_task(tmp_path / f"{name}.npz")
