"""Losses, failures and contact: the generator's published vectors, frequencies, and windows by hand."""

from __future__ import annotations

import numpy as np
import pytest

from pipecycle.errors import InputError
from pipecycle.world.links import Air, Links, Passes, Windows
from pipecycle.world.streams import Lots, philox, streams, unit


def test_philox_gives_the_vectors_of_its_authors() -> None:
    """Known answers of Random123 1.14 for philox4x32-10."""

    def answer(counter: list[int], key: tuple[int, int]) -> list[int]:
        words = [np.array([word], np.uint64) for word in counter]
        return [int(word[0]) for word in philox(*words, *key)]

    assert answer([0, 0, 0, 0], (0, 0)) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    full = 0xFFFFFFFF
    assert answer([full] * 4, (full, full)) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]
    pi = [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344]
    assert answer(pi, (0xA4093822, 0x299F31D0)) == [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]


def test_a_draw_depends_on_its_name_alone() -> None:
    lots = Lots(streams(3)("loss", 0))
    many = lots(np.arange(1000), np.full(1000, 7))
    one = lots(np.array([421]), np.array([7]))
    assert (many[0][421], many[1][421]) == (one[0][0], one[1][0])
    assert lots(np.array([421]), np.array([8]))[0][0] != one[0][0]
    assert Lots(streams(4)("loss", 0))(np.array([421]), np.array([7]))[0][0] != one[0][0]
    assert 0.0 <= unit(many[0]).min() < 0.01 < 0.99 < unit(many[0]).max() < 1.0


def test_tries_follow_the_geometric_law() -> None:
    air = Air(Links(loss=0.3, tries=4), 200_000, 0)
    needed = air.tries(np.arange(200_000), "server")
    assert needed is not None
    for tries in range(1, 5):
        assert np.mean(needed > tries) == pytest.approx(0.3**tries, abs=0.004)
    assert needed.max() == 5  # never arrives
    assert air.tries(np.arange(5), "hub").tolist() == [1] * 5


def test_losses_are_counted_per_client() -> None:
    whole, apart = (Air(Links(loss=0.5), 4, 1) for _ in range(2))
    everybody = [whole.tries(np.arange(4), "server").tolist() for _ in range(6)]
    third = [apart.tries(np.array([2]), "server").tolist()[0] for _ in range(6)]
    assert [row[2] for row in everybody] == third


def test_failures_have_their_share_and_any_step() -> None:
    air = Air(Links(failure=0.25), 40_000, 0)
    step = air.failures(np.arange(40_000), 8)
    assert step is not None
    assert np.mean(step >= 0) == pytest.approx(0.25, abs=0.01)
    assert np.bincount(step[step >= 0], minlength=8).min() > 1000
    assert step.max() == 7


def test_passes_are_open_for_their_share() -> None:
    air = Air(Links(passes=Passes(20, np.array([0.25, 0.0, 1.0]))), 3, 5)
    open_in = np.array([air.contact(np.arange(3), slot) for slot in range(40)])
    assert open_in.sum(axis=0).tolist() == [10, 0, 40]
    assert (open_in[:20] == open_in[20:]).all()


def test_windows_by_hand() -> None:
    """Client 0 in slots 2 and 3 and in 7, client 2 in slot 5, client 1 always, and again after ten slots."""
    windows = Windows(np.array([2, 0, 0]), np.array([5, 7, 2]), np.array([5, 7, 3]), 10)
    air = Air(Links(windows=windows), 3, 0)
    for again in (0, 10):
        found = [np.flatnonzero(air.contact(np.arange(3), slot + again)).tolist() for slot in range(10)]
        assert found == [[1], [1], [0, 1], [0, 1], [1], [1, 2], [1], [0, 1], [1], [1]]
    with pytest.raises(InputError, match="name client 2: there are 2 clients"):
        Air(Links(windows=windows), 2, 0)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"loss": 1.5}, "loss = 1.5: needs a probability from 0 to 1"),
        ({"failure": [0.1, -2]}, "failure = -2: needs a probability"),
        ({"loss": "often"}, "loss = often: needs a probability from 0 to 1"),
        ({"channels": 0}, "channels = 0: needs at least 1 channel"),
        ({"tries": 0}, "tries = 0: needs at least 1 try"),
    ],
)
def test_bad_links_are_refused(given: dict[str, object], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        Links(**given)


def test_a_figure_per_client_needs_one_for_each() -> None:
    with pytest.raises(InputError, match="loss: has 2 values for 3 clients"):
        Air(Links(loss=[0.1, 0.2]), 3, 0)
    with pytest.raises(InputError, match="contact_period = 0"):
        Passes(0, 0.5)
