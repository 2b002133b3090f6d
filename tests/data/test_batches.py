from __future__ import annotations

import hashlib

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pipecycle.data import Batches, Split, iid, session_indices
from pipecycle.world.streams import streams

from .conftest import task_of

SIZES = st.lists(st.integers(1, 40), min_size=1, max_size=5)


def split_of(sizes: list[int]) -> Split:
    ends = np.cumsum(sizes)
    return Split.of([np.arange(end - size, end) * 3 for end, size in zip(ends, sizes, strict=True)], [0])


def test_one_session_is_one_pass() -> None:
    """20 steps of 15 are 300: every sample once."""
    indices = np.arange(1000, 1300)
    batches = session_indices(indices, trial=0, client=4, k=7, steps=20, batch=15)
    assert batches.shape == (20, 15)
    assert batches.dtype == np.int64
    assert np.sort(batches.ravel()).tolist() == indices.tolist()


def test_a_pass_that_ends_inside_a_session_is_reshuffled() -> None:
    """10 samples in batches of 4: passes end after 2.5 and 5 steps."""
    places = session_indices(np.arange(10), 0, 0, 0, steps=6, batch=4).ravel()
    passes = [places[:10], places[10:20]]
    assert all(sorted(part) == list(range(10)) for part in passes)
    assert passes[0].tolist() != passes[1].tolist()
    assert len(set(places[20:].tolist())) == 4


def test_batches_shrink_to_the_samples() -> None:
    batches = session_indices(np.array([8, 9, 11]), 0, 0, 0, steps=4, batch=15)
    assert batches.shape == (4, 3)
    assert (np.sort(batches, axis=1) == [8, 9, 11]).all()


def test_words_are_philox_at_the_counter_of_client_and_session() -> None:
    """The scheme, restated: order the samples by the words of Philox(key of the trial) from counter (0, k, client)."""
    key = streams(5)("batches").bits().state["state"]["key"]
    words = np.random.Philox(key=key, counter=(3 << 64) + (2 << 128)).random_raw(300)
    expected = np.argsort(words, kind="stable").reshape(20, 15)
    assert (session_indices(np.arange(300), 5, client=2, k=3, steps=20, batch=15) == expected).all()


def test_digest() -> None:
    batches = Batches(iid(task_of([0, 1] * 500), 10), trial=0, steps=20)
    content = batches(np.arange(10), np.arange(10) * 1000).astype("<i8").tobytes()
    assert hashlib.blake2b(content, digest_size=16).hexdigest() == "659469f6eb373f2a08108ab18434579c"


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_many_equal_one_by_one(data: st.DataObject) -> None:
    split = split_of(data.draw(SIZES, label="sizes"))
    steps, batch = data.draw(st.integers(1, 12), label="steps"), data.draw(st.integers(1, 20), label="batch")
    trial, replacement = data.draw(st.integers(0, 99), label="trial"), data.draw(st.booleans(), label="replacement")
    session = st.tuples(st.integers(0, len(split) - 1), st.integers(0, 2**40))
    sessions = data.draw(st.lists(session, max_size=8), label="sessions")
    clients, ks = [client for client, _ in sessions], [k for _, k in sessions]
    many = Batches(split, trial, steps, batch, replacement)(clients, ks)
    assert many.shape == (len(sessions), steps, batch)
    for row, client, k in zip(many, clients, ks, strict=True):
        one = session_indices(split[client], trial, client, k, steps, batch, replacement)
        assert (row[:, : one.shape[1]] == one).all()
        assert (row[:, one.shape[1] :] == -1).all()
        assert np.isin(one, split[client]).all()


@given(st.integers(1, 60), st.integers(1, 20), st.integers(1, 20), st.booleans())
def test_first_steps_do_not_depend_on_how_many_follow(size: int, steps: int, batch: int, replacement: bool) -> None:
    long = session_indices(np.arange(size), 0, 1, 2, 25, batch, replacement)
    assert (session_indices(np.arange(size), 0, 1, 2, steps, batch, replacement) == long[:steps]).all()


@given(st.integers(1, 60), st.integers(1, 20), st.integers(1, 20))
def test_every_sample_is_used_equally_often(size: int, steps: int, batch: int) -> None:
    used = np.bincount(session_indices(np.arange(size), 3, 0, 9, steps, batch).ravel(), minlength=size)
    assert used.max() - used.min() <= 1


def test_trial_client_and_session_each_matter() -> None:
    keys = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 1, 1), (0, 12, 3), (0, 1, 23)]
    drawn = {session_indices(np.arange(300), *key, steps=20, batch=15).tobytes() for key in keys}
    assert len(drawn) == len(keys)


def test_first_places_are_uniform() -> None:
    """20,000 sessions of 10 samples: each comes first 2,000 times, give or take five deviations of 42."""
    for replacement in (False, True):
        batches = Batches(split_of([10]), 0, steps=2, batch=5, replacement=replacement)
        first = batches(np.zeros(20_000, int), np.arange(20_000))[:, 0, 0] // 3
        assert np.abs(np.bincount(first, minlength=10) - 2000).max() < 5 * 42.5


def test_with_replacement_samples_recur() -> None:
    batches = session_indices(np.arange(300), 0, 0, 0, 20, 15, replacement=True)
    # 300 draws of 300 leave about 300 / e = 110 out.
    assert 160 < len(np.unique(batches)) < 220
