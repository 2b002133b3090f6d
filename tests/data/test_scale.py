"""Bytes become numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipecycle.data import Scale, Task, load
from pipecycle.errors import InputError

RAW = np.random.default_rng(3).integers(0, 256, (12, 3, 5, 4)).astype(np.uint8)
Y = np.arange(12) % 3


def made(scale: str | None, raw: np.ndarray = RAW) -> Task:
    return Task(raw[:8], Y[:8], raw[8:], Y[8:], scale=scale)


@pytest.mark.parametrize(
    ("scale", "mean", "deviation"), [("unit", 0.0, 1.0), ("half", 0.5, 0.5), ("centre", 0.5, 1.0), (None, 0.0, 1.0)]
)
def test_fixed_maps_of_the_image_in_0_to_1(scale: str | None, mean: float, deviation: float) -> None:
    task = made(scale)
    assert np.array_equal(task.x_train, ((RAW[:8] / 255 - mean) / deviation).astype(np.float32))
    assert np.array_equal(task.x_test, ((RAW[8:] / 255 - mean) / deviation).astype(np.float32))
    assert task.black == (-mean / deviation,)


def test_standard_takes_the_training_samples_channel_by_channel() -> None:
    task = made("standard")
    whole = RAW[:8] / 255
    mean, deviation = whole.mean((0, 2, 3)), whole.std((0, 2, 3))
    expected = (RAW / 255 - mean[:, None, None]) / deviation[:, None, None]
    assert np.allclose(np.concatenate([task.x_train, task.x_test]), expected, atol=1e-6)
    assert np.allclose(task.black, -mean / deviation)
    flat = made("standard", RAW[:, 0, 0])
    assert abs(float(flat.x_train.mean())) < 1e-6
    assert len(flat.black) == 1
    constant = made("standard", np.full_like(RAW, 51))
    assert np.abs(constant.x_train).max() < 1e-7


def test_digits_by_every_word() -> None:
    raw = load("digits", "unit").x_train
    assert raw.min() == 0.0
    assert raw.max() == 1.0
    assert np.array_equal(load("digits", "standard").x_train, load("digits").x_train)
    assert np.allclose(load("digits").x_train, (raw - 0.3054) / 0.3755, atol=1e-6)
    assert np.array_equal(load("digits", "half").x_test, 2 * load("digits", "unit").x_test - 1)
    assert np.array_equal(load("digits", "centre").x_train, raw - np.float32(0.5))
    assert load("digits").black == (float(np.float32(-0.3054 / 0.3755)),)


def test_files_and_tasks(tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", x_train=RAW[:8], y_train=Y[:8], x_test=RAW[8:], y_test=Y[8:])
    task = load(tmp_path / "own.npz", "half")
    assert np.array_equal(task.x_train, made("half").x_train)
    with pytest.raises(InputError, match="scale = half: the samples of a Task are scaled already"):
        load(task, "half")
    np.savez(tmp_path / "own.npz", x_train=RAW[:8] / 255, y_train=Y[:8], x_test=RAW[8:], y_test=Y[8:])
    with pytest.raises(InputError, match=r"own.npz: scale = unit: x_train has type float64 and no known range, needs"):
        load(tmp_path / "own.npz", "unit")
    for source in ("digits", tmp_path / "own.npz"):
        with pytest.raises(InputError, match="scale = log: needs one of standard, unit, half, centre"):
            load(source, "log")
    floats = Task(RAW[:8] / 255, Y[:8], RAW[8:] / 255, Y[8:])  # type: ignore[arg-type]
    assert floats.scale is None
    assert floats.black == (0.0,)


def test_a_scale_says_what_black_is_in_numbers_that_are_scaled_already() -> None:
    scale = Scale((0.5,), (0.25,))
    task = Task(scale(RAW[:8]), Y[:8], scale(RAW[8:]), Y[8:], scale=scale)
    assert task.black == (-2.0,)
    assert np.array_equal(task.x_train, scale(RAW[:8]))
