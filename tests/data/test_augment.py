"""Which views there are, and which of them each place of a session's batches gets."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecycle.data import Augment, Views
from pipecycle.data.augment import augmentation
from pipecycle.errors import InputError
from pipecycle.world.streams import streams


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("flip", Augment(flip=True)),
        ("crop:1", Augment(1)),
        ("crop:12", Augment(12)),
        ("crop:4+flip", Augment(4, flip=True)),
        ("none", None),
        (None, None),
    ],
)
def test_texts(text: str | None, made: Augment | None) -> None:
    assert augmentation(text) == made
    assert made is None or str(made) == text


@pytest.mark.parametrize("text", ["", "crop", "crop:0", "crop:04", "crop:-1", "crop:4 flip", "+flip", "flip+crop:4", 4])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"augment = .*: needs none, flip, crop:N or crop:N\+flip"):
        augmentation(text)


def test_words_are_philox_at_the_counter_of_client_and_session() -> None:
    """The scheme, restated: 31 bits for the row, 31 for the column, the last one for the mirror."""
    key = streams(5)("augment").bits().state["state"]["key"]
    words = np.random.Philox(key=key, counter=(3 << 64) + (2 << 128)).random_raw(8).tolist()
    expected = [((word >> 33) * 9 >> 31, (word >> 2 & 0x7FFFFFFF) * 9 >> 31, word & 1) for word in words]
    codes = Views(Augment(4, flip=True), 5, 2, 4)([2], [3]).reshape(-1).tolist()
    assert [(code // 2 // 9, code // 2 % 9, code % 2) for code in codes] == expected


def test_digest() -> None:
    codes = Views(Augment(4, flip=True), 0, 20, 15)(np.arange(10), np.arange(10) * 1000)
    assert codes.shape == (10, 20, 15)
    assert (
        hashlib.blake2b(codes.astype("<i8").tobytes(), digest_size=16).hexdigest() == "1d8d34796d9813ed00114bc6fcf3708b"
    )


@given(st.integers(1, 12), st.integers(1, 9), st.integers(0, 40), st.integers(0, 2**40))
def test_first_steps_do_not_depend_on_how_many_follow(steps: int, batch: int, client: int, k: int) -> None:
    augment = Augment(2, flip=True)
    long = Views(augment, 1, 15, batch)([client, 3], [k, 0])
    assert (Views(augment, 1, steps, batch)([client], [k])[0] == long[0, :steps]).all()


def test_many_sessions_are_drawn_as_one_by_one() -> None:
    """More than one chunk of words."""
    views = Views(Augment(1), 0, 20, 15)
    clients, ks = np.arange(500) % 7, np.arange(500)
    many = views(clients, ks)
    for row in (0, 217, 218, 219, 499):
        assert (many[row] == views([clients[row]], [ks[row]])[0]).all()


def test_all_views_are_equally_likely_and_mirrors_leave_offsets_alone() -> None:
    """40,000 draws of 18 views: 2,222 each, give or take five deviations of 46."""
    both = Views(Augment(1, flip=True), 0, 20, 20)(np.zeros(100, int), np.arange(100)).ravel()
    assert np.abs(np.bincount(both, minlength=18) - 40_000 / 18).max() < 5 * 46
    crops = Views(Augment(1), 0, 20, 20)(np.zeros(100, int), np.arange(100)).ravel()
    assert (crops == both // 2 * 2).all()
    flips = Views(Augment(flip=True), 0, 20, 20)(np.zeros(100, int), np.arange(100)).ravel()
    assert (flips == both % 2).all()


def test_no_sessions_have_no_views() -> None:
    assert Views(Augment(1), 0, 2, 3)([], []).shape == (0, 2, 3)
