"""Estimators against a quadratic problem whose constants are known in closed form."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations, product

import numpy as np
import pytest
import torch

from pipecycle import InputError, plan
from pipecycle.policies import FedAvg, PipeCycle
from pipecycle.theory import estimate
from pipecycle.train.problems import Problem, Training, problem
from pipecycle.train.sessions import LocalSGD

CLIENTS, EACH, SIZE = 6, 40, 5


class Quadratic:
    """f(x; s) = (x - c_s)' H (x - c_s) / 2: gradients are H (x - mean c), whatever the samples."""

    def __init__(self, values: tuple[float, ...] = (0.1, 0.5, 1.0, 2.0, 7.0)) -> None:
        draw = np.random.default_rng(5)
        turn, _ = np.linalg.qr(draw.normal(size=(SIZE, SIZE)))
        self.H = torch.from_numpy(turn @ np.diag(values) @ turn.T)
        middle = np.repeat(draw.normal(size=(CLIENTS, SIZE)), EACH, axis=0)
        self.c = torch.from_numpy(middle + draw.normal(size=(CLIENTS * EACH, SIZE)))
        self.holds = torch.arange(CLIENTS * EACH).split(EACH)

    def loss(self, x: torch.Tensor, samples: torch.Tensor) -> torch.Tensor:
        gap = x - self.c[samples]
        return torch.einsum("si,ij,sj->s", gap, self.H, gap).mean() / 2

    def pull(self, samples: torch.Tensor) -> torch.Tensor:
        """The part of the gradient that depends on the samples."""
        return -self.H @ self.c[samples].mean(0)


GROUPS = np.array([[1, 1, 0, 0, 0, 0], [0, 0, 1, 1, 1, 0], [0, 0, 0, 0, 0, 1.0]])


@pytest.fixture(scope="module")
def quadratic() -> Quadratic:
    return Quadratic()


@pytest.fixture(scope="module")
def points() -> list[torch.Tensor]:
    return list(torch.from_numpy(np.random.default_rng(6).normal(size=(4, SIZE))))


@pytest.mark.parametrize(
    ("values", "magnitude", "top"),
    [
        ((0.1, 0.5, 1.0, 2.0, 7.0), 7.0, 7.0),
        ((0.1, 0.5, 3.0, -1.0, -4.0), 4.0, 3.0),  # the largest in magnitude is negative
        ((2.0, 2.0, 2.0, 2.0, 2.0), 2.0, 2.0),
        ((0.0, 0.0, 0.0, 0.0, 0.0), 0.0, 0.0),
    ],
)
def test_curvature(values: tuple[float, ...], magnitude: float, top: float, points: list[torch.Tensor]) -> None:
    problem = Quadratic(values)
    for x in points:
        found = estimate.curvature(problem, x, problem.holds[0], torch.ones(SIZE).double())
        assert (found.magnitude, found.top) == pytest.approx((magnitude, top), rel=1e-9, abs=1e-9)
        assert found.residual < 1e-9
    # Stopped early it may be too small, never too large, and says by how much.
    early = estimate.curvature(problem, x, problem.holds[0], torch.ones(SIZE).double(), vectors=2)
    assert early.magnitude <= magnitude + 1e-9
    assert early.top <= top + 1e-9
    for value in (early.magnitude, early.top):
        assert min(abs(abs(true) - abs(value)) for true in values) <= early.residual + 1e-9


class Diagonal:
    """x' diag(values) x / 2, turned by a reflection so that no coordinate is an eigenvector."""

    def __init__(self, values: np.ndarray, dtype: torch.dtype) -> None:  # type: ignore[type-arg]
        self.values = torch.from_numpy(values).to(dtype)
        mirror = torch.from_numpy(np.random.default_rng(8).normal(size=len(values))).to(dtype)
        self.mirror = mirror / mirror.norm()
        self.holds = [torch.arange(1)]

    def loss(self, x: torch.Tensor, samples: torch.Tensor) -> torch.Tensor:
        turned = x - 2 * self.mirror * (self.mirror @ x)
        return (self.values * turned.square()).sum() / 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("trial", range(3))
def test_curvature_at_the_size_of_networks(trial: int, dtype: torch.dtype) -> None:
    """Where a power iteration stops on a plateau: a random start has 1 / sqrt(n) along each eigenvector."""
    bulk = np.random.default_rng(9).normal(size=20_000)
    cases = (
        (np.concatenate([[-2.0, 1.5], 0.02 * bulk[:4808]]), 2.0, 1.5),
        (np.concatenate([[-2.0, 1.5], 0.02 * bulk[:1998]]), 2.0, 1.5),
        (np.concatenate([[-2.0, 1.9999], 0.02 * bulk[:2998]]), 2.0, 1.9999),  # signs that nearly balance
        (np.concatenate([[2.0], np.ones(19_999)]), 2.0, 2.0),
        (np.concatenate([[-2.0], -np.ones(19_999)]), 2.0, -1.0),
        (np.concatenate([[7.0, 6.9, 6.8, -6.7], 0.5 * np.abs(bulk[:4806])]), 7.0, 7.0),
    )
    for values, magnitude, top in cases:
        problem, x = Diagonal(values, dtype), torch.zeros(len(values), dtype=dtype)
        found = estimate.curvature(problem, x, problem.holds[0], estimate._direction(trial, x))
        assert (found.magnitude, found.top) == pytest.approx((magnitude, top), rel=2e-3)
        assert found.residual <= 1e-3 * magnitude


def test_a_spectrum_that_does_not_settle_says_so() -> None:
    """Evenly spread eigenvalues have no gap to converge by: the result is below the truth, and the residual shows."""
    problem, x = Diagonal(np.linspace(0, 1, 5000), torch.float64), torch.zeros(5000).double()
    found = estimate.curvature(problem, x, problem.holds[0], estimate._direction(0, x), vectors=12)
    assert 1e-3 < found.residual < 0.1
    assert 0.9 < found.top < 1.0
    more = estimate.curvature(problem, x, problem.holds[0], estimate._direction(0, x))
    assert found.top < more.top <= 1.0 + 1e-12


def test_curvature_where_nothing_is_finite() -> None:
    problem = Diagonal(np.ones(10), torch.float64)
    x = torch.full((10,), float("nan")).double()
    problem.values = problem.values * float("nan")
    assert np.isnan(estimate.curvature(problem, x, problem.holds[0], torch.ones(10).double()).magnitude)


def test_gradients(quadratic: Quadratic, points: list[torch.Tensor]) -> None:
    for x in points:
        losses, slopes = estimate.client_gradients(quadratic, x)
        for client, mine in enumerate(quadratic.holds):
            assert torch.allclose(slopes[client], quadratic.H @ x + quadratic.pull(mine))
            assert losses[client] == pytest.approx(float(quadratic.loss(x, mine)))


def test_all_constants(quadratic: Quadratic, points: list[torch.Tensor]) -> None:
    """Known: L = 7; sigma^2 of batches without replacement, alpha and beta from the clients' centres."""
    batch = 8
    looks = [estimate.take_snapshot(quadratic, x, GROUPS, (0, 4), batch, trial=0) for x in points]
    found = estimate.estimates(looks, np.array([1 / 2, 1 / 3, 1.0]))

    each = torch.stack([quadratic.pull(mine) for mine in quadratic.holds])
    rows = torch.from_numpy(GROUPS)
    means = [each[row > 0].mean(0) for row in rows]
    alpha = max(float((each[row > 0] - mean).norm(dim=1).max()) for row, mean in zip(rows, means, strict=True))
    beta = max(float((mean - each.mean(0)).norm()) for mean in means)
    sigma2 = []
    for client in (0, 4):
        spread = quadratic.c[quadratic.holds[client]]
        single = ((spread - spread.mean(0)) @ quadratic.H).square().sum(1).mean()
        sigma2.append(float(single) / batch * (EACH - batch) / (EACH - 1))

    assert found["L"].value == pytest.approx(7.0, rel=1e-3)
    assert found["L"].error == pytest.approx(0.0, abs=0.01)
    assert found["alpha"].value == pytest.approx(alpha, rel=1e-9)
    assert found["beta"].value == pytest.approx(beta, rel=1e-9)
    assert found["beta"].error == pytest.approx(0.0, abs=1e-9)  # the same at every model
    assert found["sigma2"].mean == pytest.approx(np.mean(sigma2))
    assert found["sigma2"].value == pytest.approx(max(sigma2))  # what holds everywhere, and no more
    assert found["omega2"].value == 1.0
    assert found["omega2"].mean == pytest.approx(11 / 18)
    losses = [np.mean([float(quadratic.loss(x, mine)) for mine in quadratic.holds]) for x in points]
    assert found["f0_gap"].value == pytest.approx(losses[0] - min(losses))
    # The true minimum lies between the two readings of f*.
    centre = torch.cat([quadratic.c[mine] for mine in quadratic.holds]).mean(0)
    truth = losses[0] - np.mean([float(quadratic.loss(centre, mine)) for mine in quadratic.holds])
    gap = found["f0_gap"]
    assert gap.mean - gap.error <= truth <= gap.mean + gap.error
    for one, x in zip(looks, points, strict=True):
        assert one.gradient2 == pytest.approx(float((quadratic.H @ x + each.mean(0)).square().sum()))
        assert one.curvature == pytest.approx(7.0, rel=1e-3)


def test_the_noise_of_a_batch(quadratic: Quadratic, points: list[torch.Tensor]) -> None:
    """Against every batch of two out of five samples, with and without replacement; a batch of all has no noise."""
    x, five = points[0], torch.arange(5)
    _, slope = estimate.gradient(quadratic, x, five)

    def mean(batches: Iterable[tuple[int, ...]]) -> float:
        slopes = [estimate.gradient(quadratic, x, torch.tensor(batch))[1] for batch in batches]
        return float(np.mean([float((one - slope).square().sum()) for one in slopes]))

    def noise(batch: int, replacement: bool = False) -> float:
        return estimate.noise(quadratic, x, five, slope, batch, replacement)

    assert noise(2) == pytest.approx(mean(combinations(range(5), 2)))
    assert noise(2, replacement=True) == pytest.approx(mean(product(range(5), repeat=2)))
    assert noise(5) == noise(7) == 0.0
    assert estimate.noise(quadratic, x, five[:1], slope, 1, False) == 0.0


def test_printed_sums_are_not_what_is_measured(quadratic: Quadratic) -> None:
    """Equal clients have no heterogeneity; the printed sum over a group would give |G| - 1 gradients of it."""
    slopes = torch.ones(CLIENTS, SIZE)
    alpha, beta = estimate.heterogeneity(slopes, GROUPS)
    assert alpha.max() == beta.max() == 0.0
    assert len(alpha) == 6
    assert len(beta) == 3


@pytest.fixture(scope="module")
def digits() -> Problem:
    return problem("digits", "mlp", clients=20)


def test_the_objective_is_what_clients_descend(digits: Problem) -> None:
    """One session of one step on a client's whole data is x - lr * gradient, weight decay included."""
    from pipecycle.train.loop import Loop
    from pipecycle.train.problems import on_device

    sgd = LocalSGD(lr=0.1, weight_decay=0.3)
    learnt = Problem(digits.task, digits.split, digits.module, 0, Training(sgd))
    images, labels = on_device(digits.task.x_train, digits.task.y_train, torch.device("cpu"), torch.float32)
    loop = Loop(learnt.module, images, labels, 10, sgd)
    after = loop.run(learnt.initial[None], torch.from_numpy(digits.split[3])[None, None]).parameters[0]
    objective = estimate.Learnt(learnt, torch.device("cpu"))
    _, slope = estimate.gradient(objective, learnt.initial, objective.holds[3])
    assert torch.allclose(after, learnt.initial - 0.1 * slope, atol=1e-6)


def test_curvature_of_a_network_against_its_whole_hessian() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(3)
        module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    small = problem("digits", module, clients=20)
    objective = estimate.Learnt(small, torch.device("cpu"), torch.float64)
    x, mine = small.initial.double(), objective.holds[0]
    whole = torch.autograd.functional.hessian(lambda at: objective.loss(at, mine), x)
    truth = float(torch.linalg.eigvalsh(whole).abs().max())
    found = estimate.curvature(objective, x, mine, torch.linspace(-1, 1, len(x)).double().sin())
    assert found.magnitude == pytest.approx(truth, rel=1e-3)
    assert found.magnitude <= truth * (1 + 1e-12)


def test_groups_and_weights_of_a_schedule() -> None:
    schedule = plan(PipeCycle(groups=2), 0.2, clients=10, slots=400, session=5)
    member = estimate.memberships(schedule)
    assert member.sum(1).astype(int).tolist() == schedule.ancestry.group_sizes.tolist()
    assert estimate.squared_weights(schedule) == pytest.approx(1 / member.sum(1))
    unequal = plan(PipeCycle(groups=1), 1.0, clients=2, slots=60, session=5, samples=[30, 10])
    assert estimate.squared_weights(unequal).max() == 1.0
    together = plan(FedAvg(), 1.0, clients=2, slots=100, session=5, samples=[30, 10])
    assert estimate.squared_weights(together).min() <= 0.75**2 + 0.25**2


def test_too_many_clients_to_measure() -> None:
    objective = Quadratic()
    objective.holds = [torch.arange(1)] * 400_000
    with pytest.raises(InputError, match=r"400,000 clients take .* GiB"):
        estimate.take_snapshot(objective, torch.zeros(2000), GROUPS, (), 8, trial=0)
