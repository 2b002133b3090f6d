from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipecycle.data import Split, Task, dirichlet, held_out, iid, load
from pipecycle.data.partition import _fill
from pipecycle.data.shares import Floats, labels, log_gammas, weights
from pipecycle.errors import InputError
from pipecycle.world.streams import Ints, Words, streams

from .conftest import task_of


@pytest.fixture(scope="module")
def fifty_thousand() -> Task:
    """The label counts of CIFAR-10: 5,000 of each of ten classes, and 10,000 for testing."""
    return task_of(np.arange(50_000) * 7 % 10, test=10_000)


def test_digests_of_digits() -> None:
    task = load("digits")
    assert iid(task, 100).digest() == "d5998276cdc131b38581d9841aed0b63"
    assert dirichlet(task, 100, alpha=0.1).digest() == "4d0c0dace512f3d93de88f59b1744c29"


def test_digests_of_fifty_thousand(fifty_thousand: Task) -> None:
    assert iid(fifty_thousand, 100).digest() == "f4889e9495a2506adb7de977276941d1"
    assert dirichlet(fifty_thousand, 100, alpha=0.1).digest() == "1099fbfe8ccba2fcd54968b4a91c066a"
    assert dirichlet(fifty_thousand, 100, 500, alpha=0.01).digest() == "25f054c941808987739d1bef12bbea0b"


def check(split: Split, task: Task, clients: int, samples: int) -> None:
    assert len(split) == clients
    assert (split.sizes == samples).all()
    assert len(np.unique(split.indices)) == clients * samples
    assert 0 <= split.indices.min() <= split.indices.max() < len(task.y_train)
    assert all((np.diff(indices) > 0).all() for indices in split)
    assert len(split.test) == min(1000, len(task.y_test)) == len(np.unique(split.test))
    assert split.check(task) is split


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_exact_disjoint_and_it_always_ends(data: st.DataObject) -> None:
    """Whatever the labels and however scarce: exact sizes, nothing twice, and notes for what ran out."""
    stock = data.draw(st.lists(st.integers(0, 30), min_size=1, max_size=6).filter(any), label="stock")
    task = task_of(np.repeat(np.arange(len(stock)), stock), classes=len(stock))
    total = len(task.y_train)
    clients = data.draw(st.integers(1, total), label="clients")
    samples = data.draw(st.integers(1, total // clients), label="samples")
    trial = data.draw(st.integers(0, 1000), label="trial")
    alpha = data.draw(st.sampled_from([1e-6, 0.01, 0.1, 1.0, 100.0, 1e9]), label="alpha")
    check(iid(task, clients, samples, trial), task, clients, samples)
    split = dirichlet(task, clients, samples, alpha, trial)
    check(split, task, clients, samples)
    used = split.counts(task).sum(axis=0)
    ran_out = {int(note.split()[1]) for note in split.notes}
    emptied = set(np.flatnonzero((used == stock) & (np.array(stock) > 0)).tolist())
    # The class of the very last sample may end without anybody having missed it.
    assert ran_out <= emptied
    assert len(emptied - ran_out) <= (clients * samples == total)


def draw_by_draw(logs: Floats, words: Words, stock: Ints) -> Ints:
    """The rule as it is written: one label at a time, from the classes that are left."""
    left, counts = stock.copy(), np.zeros(logs.shape, np.int64)
    for client, row in enumerate(words):
        for word in row:
            label = labels(weights(logs[client : client + 1], left > 0), np.array([[word]]))[0, 0]
            counts[client, label] += 1
            left[label] -= 1
    return counts


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(0, 40), min_size=2, max_size=5).filter(any),
    st.integers(1, 12),
    st.integers(0, 10_000),
    st.sampled_from([0.05, 1.0]),
)
def test_counts_follow_the_rule(stock: list[int], samples: int, trial: int, alpha: float) -> None:
    clients = max(1, sum(stock) // samples)
    samples = min(samples, sum(stock))
    logs = log_gammas(streams(trial), "test", 0, clients * len(stock), alpha).reshape(clients, -1)
    words = streams(trial)("words").words(clients * samples).reshape(clients, samples)
    counts, _ = _fill(logs, words, np.array(stock))
    assert (counts == draw_by_draw(logs, words, np.array(stock))).all()


def test_a_class_that_ran_out_is_named() -> None:
    task = task_of([0] * 3 + [1] * 97)
    split = dirichlet(task, 10, 9, alpha=1.0)
    assert len(split.notes) == 1
    assert split.notes[0].startswith("class 0 ran out at client ")
    assert split.counts(task)[:, 0].sum() == 3
    assert "class 0 ran out" in repr(split)


def test_all_samples_of_one_class_leave_no_note() -> None:
    assert dirichlet(task_of([0] * 20), 4, 5).notes == ()


def test_shares_follow_the_concentration(fifty_thousand: Task) -> None:
    """A client's share p of a class has E[p^2] = (alpha + 1) / (10 (10 alpha + 1)), and 300 draws keep it near."""
    for alpha in (0.1, 1.0, 1e9):
        shares = np.concatenate(
            [dirichlet(fifty_thousand, 100, 300, alpha, t).counts(fifty_thousand) for t in range(5)]
        )
        p2 = (alpha + 1) / (10 * (10 * alpha + 1))
        observed = (shares / 300) ** 2
        # A count of n draws adds p (1 - p) / n to the mean square.
        assert abs(observed.mean() - (p2 + (0.1 - p2) / 300)) < 0.004


def test_classes_are_taken_at_random_from_their_pool(fifty_thousand: Task) -> None:
    """Uniform places between 0 and 50,000: mean of 30,000 draws within five standard errors."""
    for split in (iid(fifty_thousand, 100), dirichlet(fifty_thousand, 100)):
        assert abs(split.indices.mean() - 25_000) < 5 * 50_000 / np.sqrt(12 * 30_000)
        assert abs(split.test.mean() - 5_000) < 5 * 10_000 / np.sqrt(12 * 1_000)


def test_trial_alone_decides(fifty_thousand: Task) -> None:
    for split in (iid, dirichlet):
        assert split(fifty_thousand, 20).digest() == split(fifty_thousand, 20, trial=0).digest()
        assert split(fifty_thousand, 20).digest() != split(fifty_thousand, 20, trial=1).digest()
    assert (iid(fifty_thousand, 20, trial=4).test == dirichlet(fifty_thousand, 7, trial=4).test).all()
    assert (iid(fifty_thousand, 20, trial=4).test == held_out(fifty_thousand, 4)).all()


def test_default_samples() -> None:
    assert (iid(task_of([0, 1] * 700), 4).sizes == 300).all()
    assert (iid(task_of([0, 1] * 700), 100).sizes == 14).all()


def test_small_test_sets_are_used_whole() -> None:
    assert iid(task_of([0, 1], test=3), 2).test.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("clients", "samples", "alpha", "sentence"),
    [
        (0, None, 0.1, "clients = 0: needs at least 1"),
        (21, None, 0.1, "clients = 21: toy has samples for 1 to 20 clients"),
        (4, 6, 0.1, "samples = 6: toy has 1 to 5 for each of 4 clients"),
        (4, 0, 0.1, "samples = 0: needs at least 1"),
        (4, 5, 0.0, "alpha = 0.0: needs a number from 1e-06 to 1,000,000,000"),
        (4, 5, float("nan"), "alpha = nan: needs a number from 1e-06 to 1,000,000,000"),
    ],
)
def test_bad_numbers(clients: int, samples: int | None, alpha: float, sentence: str) -> None:
    with pytest.raises(InputError) as raised:
        dirichlet(task_of([0, 1] * 10), clients, samples, alpha)
    assert str(raised.value) == sentence
