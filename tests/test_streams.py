from __future__ import annotations

import numpy as np
import pytest

from pipecycle.world.streams import FEW, Stream, streams


def test_a_stream_is_a_function_of_its_key() -> None:
    draw = streams(7)
    assert (draw("hub", 3).words(1000) == streams(7)("hub", 3).words(1000)).all()
    for other in (streams(8)("hub", 3), draw("hub", 4), draw("tie", 3), draw("hub", 3, 0)):
        assert (draw("hub", 3).words(1000) != other.words(1000)).any()


def test_words_are_pinned() -> None:
    # SHAKE-128 and Philox4x64-10 are fixed algorithms: these words may never change.
    assert Stream("0/hub/(1,)").words(2).tolist() == [4502918087917806629, 13980247693638126523]
    assert Stream("0/hub/(1,)").words(FEW + 1)[:2].tolist() == [7851618700240671896, 8308955917731585681]


def test_below_reaches_every_integer_equally() -> None:
    counts = np.bincount([streams(0)("x", index).below(5) for index in range(5000)], minlength=5)
    assert counts.min() > 900
    assert counts.max() < 1100


@pytest.mark.parametrize("size", [5, 200])
def test_sample_is_a_uniform_subset_in_order(size: int) -> None:
    items = np.arange(size) * 10
    hits = np.zeros(size)
    for index in range(2000):
        chosen = streams(1)("s", index).sample(items, 2)
        assert len(chosen) == 2
        assert chosen[0] < chosen[1]
        hits[chosen // 10] += 1
    assert abs(hits / 2000 - 2 / size).max() < 5 * np.sqrt(2 / size / 2000)


def test_sample_of_all_none_and_nothing() -> None:
    items = np.array([4, 9])
    assert streams(0)("s").sample(items, 2).tolist() == [4, 9]
    assert streams(0)("s").sample(items, 5).tolist() == [4, 9]
    assert streams(0)("s").sample(items, 0).tolist() == []
    assert streams(0)("s").sample(items[:0], 0).tolist() == []


@pytest.mark.parametrize("count", [0, 1, 10, 1000])
def test_permutation(count: int) -> None:
    assert sorted(streams(0)("p").permutation(count).tolist()) == list(range(count))
