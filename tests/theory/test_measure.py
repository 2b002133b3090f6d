"""A real run against the theory: figures that are checked against independent computations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from pipecycle import InputError
from pipecycle.results import Metrics
from pipecycle.runs.config import Config
from pipecycle.runs.records import Record, read
from pipecycle.runs.run import RunFolder, problem_of, train_folders
from pipecycle.theory import bounds, expected_events
from pipecycle.theory.estimate import constants
from pipecycle.theory.measure import Measured, blew_up, measure
from pipecycle.theory.study import families
from pipecycle.train.analysis import evaluate, version_recipe

BASE = Config(settings={"groups": 3}).changed({"world.clients": 20, "world.slots": 600, "look.every": 60})


def finished(path: Path, config: Config = BASE) -> Record:
    train_folders([RunFolder(path, config)], device="cpu")
    return read(path)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Record:
    return finished(tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture(scope="module")
def found(run: Record) -> Measured:
    return measure(run, "run", models=5, clients=3, device="cpu")


def test_events_and_depth(run: Record, found: Measured) -> None:
    ancestry = run.schedule.ancestry
    assert found.events["measured"] == ancestry.events
    assert found.events["printed"] == expected_events(found.system)
    assert found.depth <= found.system.d_max == 30
    assert found.ancestry_max <= found.system.G == 3
    assert next(point.event for point in found.points) == 0
    assert found.points[-1].event == ancestry.events
    assert all(point.others + point.depth == point.event for point in found.points)


def test_models_and_perturbations_are_the_runs_own(run: Record, found: Measured) -> None:
    """Loss and gradient of x_tau and z_tau once more, in doubles and by plain autograd over all samples."""
    learnt = problem_of(BASE)
    ancestry, last = run.schedule.ancestry, found.points[-1]
    recipes = [version_recipe(int(ancestry.event_versions[last.event])), ancestry.virtual(last.event)]
    x, z = evaluate(run.schedule, learnt, recipes, device="cpu").double()
    assert last.perturbation2 == pytest.approx(float((z - x).square().sum()), rel=1e-4)
    module = learnt.module.double()
    images = torch.from_numpy(learnt.task.x_train).double()
    labels = torch.from_numpy(learnt.task.y_train)
    for vector, loss, gradient2 in ((x, last.loss, last.gradient2), (z, last.virtual_loss, last.virtual_gradient2)):
        torch.nn.utils.vector_to_parameters(vector, module.parameters())
        module.zero_grad()
        parts = [torch.nn.functional.cross_entropy(module(images[mine]), labels[mine]) for mine in learnt.split]
        whole = torch.stack(parts).mean()
        whole.backward()
        slope = torch.cat([parameter.grad.reshape(-1) for parameter in module.parameters()])  # type: ignore[union-attr]
        assert float(whole.detach()) == pytest.approx(loss, rel=1e-4)
        assert float(slope.square().sum()) == pytest.approx(gradient2, rel=1e-3)


def test_the_lemmas_hold_and_are_loose(found: Measured) -> None:
    assert found.applies
    known = constants(found.constants)
    for point in found.points[1:]:
        assert point.lemma_1 is not None
        assert point.lemma_2 is not None
        assert 0 < point.update2 < point.lemma_1
        assert point.lemma_2["counted"] <= point.lemma_2["consistent"]
        if point.others:
            assert 0 < point.perturbation2 < point.lemma_2["counted"]
        # Even without its last term, the gradient's, the first lemma is above the update.
        assert point.update2 < bounds.gamma_squared(found.system, known) < point.lemma_1
    assert found.theorem.vacuous is not None  # at the paper's step size there is no bound
    assert found.gradient2 < found.points[0].gradient2


def test_constants_make_sense_on_digits(found: Measured) -> None:
    known = {name: estimate.value for name, estimate in found.constants.items()}
    assert 1.0 < known["L"] < 100.0  # step sizes beyond 2 / L would diverge, and 0.05 does not
    assert max(found.curvatures) <= known["L"] * 1.2  # f is a mean of the f_i
    assert known["omega2"] >= 1 / found.system.n_G
    assert 2.0 < found.start_loss < 2.6  # ten classes: log 10
    assert 0 < known["f0_gap"] < found.start_loss
    for estimate in found.constants.values():
        assert estimate.error >= 0
        assert "over" in estimate.kind or "f*" in estimate.kind
        assert estimate.which == "largest seen" or estimate is found.constants["f0_gap"]
    gap = found.constants["f0_gap"]
    assert gap.value == pytest.approx(gap.mean - gap.error, rel=1e-12)  # the smallest end; a difference is rounded once
    assert all(point.residual < 0.01 * known["L"] for point in found.points)


def test_measuring_twice_gives_the_same(run: Record, found: Measured) -> None:
    assert measure(run, "run", models=5, clients=3, device="cpu") == found


def test_stale_updates_blow_up_where_the_limit_says(tmp_path: Path) -> None:
    """CyCP with energy in every slot: lag 1 is stable at any curvature, lag 9 not even at that of x_0."""
    outcome = {}
    for groups in (2, 10):
        config = Config("cycp", {"groups": groups}).changed(
            {"world.slots": 900, "world.harvest": "always", "world.clients": 20, "look.every": 30}
        )
        outcome[groups] = measure(finished(tmp_path / str(groups), config), "run", models=4, clients=1, device="cpu")
    calm, wild = outcome[2], outcome[10]
    assert max(calm.curvatures) < calm.stable_curvature
    assert not calm.blew_up
    assert wild.curvatures[0] > wild.stable_curvature
    assert wild.blew_up
    assert wild.accuracy < calm.accuracy - 20
    assert not wild.applies
    assert wild.points[-1].lemma_2 is None
    assert wild.points[-1].perturbation2 == pytest.approx(0.0, abs=1e-6)  # one model: z is x


def test_a_run_that_diverges_is_measured_up_to_there(tmp_path: Path) -> None:
    record = finished(tmp_path / "run", BASE.changed({"train.lr": 1e4}))
    assert record.ended == "diverged"
    found = measure(record, "run", models=6, clients=1, device="cpu")
    assert np.isfinite([point.loss for point in found.points]).all()
    assert found.blew_up


def recorded(loss: list[float], accuracy: list[float]) -> Metrics:
    nothing = np.zeros(len(loss))
    return Metrics(nothing, nothing, np.array(accuracy), np.array(loss), nothing, nothing, nothing)


@pytest.mark.parametrize(
    ("loss", "accuracy", "training", "expected"),
    [
        ([2.3, 1.2, 1.9, 3.0], [10, 60, 66, 64], [2.3, 1.0, 0.1], False),  # overfits: the test loss rises, no more
        ([2.3, 1.2, 1.9, 3.0], [10, 60, 66, 12], [2.3, 1.0, 3.1], True),
        ([2.3, 1.2, 3.0, 0.4], [10, 69, 36, 92], [2.3, 1.0, 0.2], True),  # thrown out, and came back
        ([2.3, 1.2, 2.2, 0.4], [10, 69, 36, 92], [2.3, 1.0, 0.2], False),  # worse, but not than it began
        ([3.1, 2.6, 1.2, 0.4], [10, 10, 40, 80], [2.3, 2.9, 0.3], False),  # a rough first step
        ([2.5, 3.0, 4.0], [10, 10, 10], [2.3, 2.9, 4.0], True),  # never learnt
        ([2.3, float("nan")], [40, 10], [2.3, 1.0], True),
        ([1.0, 0.5], [40, 80], [2.3, float("nan")], True),
    ],
)
def test_what_blowing_up_is(loss: list[float], accuracy: list[float], training: list[float], expected: bool) -> None:
    assert blew_up(recorded(loss, accuracy), training) is expected


def test_families_and_what_cannot_be_measured(run: Record, tmp_path: Path) -> None:
    (family,) = families([run.path])
    assert family.groups == [3]
    assert list(family.runs) == ["G = 3"]
    run.schedule.save(tmp_path / "lone.npz")
    with pytest.raises(InputError, match="needs finished runs"):
        families([tmp_path / "lone.npz"])
    with pytest.raises(InputError, match="not a finished run"):
        measure(read(tmp_path / "lone.npz"), "lone")
    idle = finished(tmp_path / "idle", BASE.changed({"world.slots": 15}))
    with pytest.raises(InputError, match="no aggregation"):
        measure(idle, "idle")
