"""The constants of the bounds from a real problem: smoothness, noise, heterogeneity, along models of a real run.

Assumptions 1 to 3 bound quantities over all models and clients.  What can be measured is the largest value at those
models that were looked at: a lower bound of the constant, so bounds that are built on it are, if anything, too small.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from math import isfinite, nan
from typing import Protocol

import numpy as np
import torch
from attrs import frozen
from torch import Tensor

from pipecycle.errors import InputError
from pipecycle.results import standard_error
from pipecycle.schedule.schedule import Schedule
from pipecycle.theory.system import Constants
from pipecycle.train.models import split as unflatten
from pipecycle.train.problems import Problem, on_device
from pipecycle.words import plural
from pipecycle.world.streams import Floats, streams, unit

SAMPLES = 1024
"""The global curvature is taken on this many samples at most."""
MEMORY = 2 << 30
"""Bytes that the gradients of all clients may take."""
VECTORS = 40
"""Hessian-vector products for a curvature, at most ..."""
LEAST = 8
"""... and before residuals are believed: that of a random direction is small wherever nearly all eigenvalues agree."""
LARGEST = "largest seen"
Step = Callable[[], None]


class Objective(Protocol):
    """f_1 .. f_N: a differentiable mean loss over samples, and who holds which."""

    @property
    def holds(self) -> Sequence[Tensor]:
        """The samples of every client."""

    def loss(self, x: Tensor, samples: Tensor) -> Tensor: ...


class Learnt:
    """The objective that the clients of a problem descend: cross-entropy, plus weight decay if there is any.

    It is about images as they are.  Where clients train on random views of them, that noise is not counted: what is
    found is still at most the true constant."""

    def __init__(self, problem: Problem, device: torch.device, dtype: torch.dtype = torch.float32) -> None:
        self._images, self._labels = on_device(problem.task.x_train, problem.task.y_train, device, dtype)
        self._module = deepcopy(problem.module).to(device=device, dtype=dtype)
        self._names = [name for name, _ in self._module.named_parameters()]
        self._decay = problem.training.sgd.weight_decay
        self.holds = [torch.from_numpy(mine).to(device) for mine in problem.split]

    def loss(self, x: Tensor, samples: Tensor) -> Tensor:
        weights = dict(zip(self._names, unflatten(self._module, x), strict=True))
        logits = torch.func.functional_call(self._module, weights, (self._images[samples],))
        mean = torch.nn.functional.cross_entropy(logits, self._labels[samples])
        return mean + self._decay / 2 * x.square().sum() if self._decay else mean


@frozen
class Constant:
    """A constant, with an error bar."""

    value: float
    """What the bounds take ..."""
    which: str
    """... and which of the values seen that is."""
    mean: float
    error: float
    """Of the mean and not of `value`; `kind` says which."""
    kind: str


@frozen(eq=False)
class Snapshot:
    """What one model shows; heterogeneity as (largest, mean) over the groups, the others over clients."""

    loss: float
    gradient2: float
    """||grad f||^2."""
    smoothness: tuple[float, float]
    """Of the clients that were drawn."""
    curvature: float
    """The largest eigenvalue of the Hessian of f itself, on `SAMPLES` of all samples where there are more: close to
    that of f, and not a bound of it to either side."""
    residual: float
    """The largest of these eigenvalues' residuals: by how much they may miss an eigenvalue."""
    sigma2: tuple[float, float]
    alpha: tuple[float, float]
    beta: tuple[float, float]


def gradient(objective: Objective, x: Tensor, samples: Tensor) -> tuple[float, Tensor]:
    """The mean loss over some samples, and its gradient."""
    x = x.detach().requires_grad_()
    loss = objective.loss(x, samples)
    (slope,) = torch.autograd.grad(loss, x)
    return float(loss.detach()), slope


@frozen
class Curvature:
    """The ends of a Hessian's spectrum, from below."""

    magnitude: float
    """Of the eigenvalue that is largest in magnitude."""
    top: float
    """The largest eigenvalue."""
    residual: float
    """||H u - theta u|| of the worse of the two: there is an eigenvalue that close to what is given."""


def curvature(
    objective: Objective, x: Tensor, samples: Tensor, start: Tensor, *, vectors: int = VECTORS, tolerance: float = 1e-3
) -> Curvature:
    """The largest eigenvalues of the Hessian, by Lanczos' method with Hessian-vector products.

    That is a power iteration which forgets nothing: the same H v, H^2 v, ..., kept orthogonal, and of their span (the
    Krylov space) the best directions instead of the last.  The iteration alone lingers where eigenvalues of either sign
    compete or one stands out of many, and its size does not tell that from convergence: what stops here are residuals.
    More vectors can only raise the result."""
    x = x.detach().requires_grad_()
    (slope,) = torch.autograd.grad(objective.loss(x, samples), x, create_graph=True)
    vectors = min(vectors, x.numel())
    basis = torch.empty(vectors, x.numel(), dtype=x.dtype, device=x.device)
    basis[0] = start / start.norm()
    inner = np.zeros((vectors, vectors))
    noise = 10 * torch.finfo(x.dtype).eps
    for last in range(vectors):
        (h,) = torch.autograd.grad(slope, x, basis[last], retain_graph=True)
        inner[last, last] = float(h @ basis[last])
        for _ in range(2):  # once leaves what rounding put back
            h = h - basis[: last + 1].T @ (basis[: last + 1] @ h)
        rest = float(h.norm())
        if not (isfinite(inner[last, last]) and isfinite(rest)):
            return Curvature(nan, nan, nan)
        values, directions = np.linalg.eigh(inner[: last + 1, : last + 1])
        widest = int(np.argmax(np.abs(values)))
        ends = Curvature(
            magnitude=float(abs(values[widest])),
            top=float(values[-1]),
            residual=rest * float(np.abs(directions[-1, [widest, -1]]).max()),
        )
        settled = last >= LEAST and ends.residual <= tolerance * ends.magnitude
        if settled or rest <= noise * ends.magnitude or last + 1 == vectors:
            break
        basis[last + 1] = h / rest
        inner[last, last + 1] = inner[last + 1, last] = rest
    return ends


def client_gradients(objective: Objective, x: Tensor) -> tuple[Floats, Tensor]:
    """f_i(x) and grad f_i(x) of every client, one row each."""
    pairs = [gradient(objective, x, mine) for mine in objective.holds]
    return np.array([loss for loss, _ in pairs]), torch.stack([slope for _, slope in pairs])


def heterogeneity(gradients: Tensor, member: Floats) -> tuple[Floats, Floats]:
    """||grad f_i - group mean|| for every member of every group, and ||group mean - grad f|| for every group.

    `member` has a row per group with 1 for its members.  Group means, not the printed sums (docs/theory.md)."""
    wide = gradients.double()
    wide = wide - wide.mean(0)  # all differences are the same, and less is cancelled below
    gram = (wide @ wide.T).cpu().numpy()
    share = member / member.sum(1, keepdims=True)
    crossed = share @ gram
    mean2 = (crossed * share).sum(1)
    within = np.diag(gram) - 2 * crossed + mean2[:, None]
    return np.sqrt(np.maximum(within[member > 0], 0.0)), np.sqrt(np.maximum(mean2, 0.0))


def noise(objective: Objective, x: Tensor, samples: Tensor, slope: Tensor, batch: int, replacement: bool) -> float:
    """E ||g - grad f_i||^2 of a batch out of some samples, exactly: from the gradients of the single samples.

    Trying some batches instead would be right on average, but the largest of many such figures is too large."""
    total, count = 0.0, len(samples)
    for single in samples.split(1):
        total += float((gradient(objective, x, single)[1] - slope).square().sum())
    if replacement:
        return total / count / batch
    width = min(batch, count)
    return total / count / width * (count - width) / max(1, count - 1)


def memberships(schedule: Schedule) -> Floats:
    """A row per aggregation, with 1 for every client whose update it took in."""
    event = schedule.ancestry.event_of_session
    used = np.flatnonzero(event)
    member = np.zeros((schedule.ancestry.events, schedule.clients))
    member[event[used] - 1, schedule.sessions.client[used]] = 1.0
    return member[member.any(1)]


def squared_weights(schedule: Schedule) -> Floats:
    """Sum of w^2 for every aggregation: 1 / group size where all have the same number of samples."""
    versions, ancestry = schedule.versions, schedule.ancestry
    event, weight = ancestry.event_of_session[versions.update], np.abs(versions.weight)
    total = np.bincount(event, weight, ancestry.events + 1)[1:]
    squares = np.bincount(event, weight**2, ancestry.events + 1)[1:]
    return np.asarray(squares[total > 0] / total[total > 0] ** 2)


def take_snapshot(
    objective: Objective,
    x: Tensor,
    member: Floats,
    some: Sequence[int],
    batch: int,
    trial: int,
    *,
    replacement: bool = False,
    step: Step = lambda: None,
) -> Snapshot:
    """Everything about one model; noise (of batches of so many samples) and smoothness are those of some clients."""
    clients, size = len(objective.holds), x.numel()
    if 4 * clients * size > MEMORY:
        need = 4 * clients * size / (1 << 30)
        raise InputError(f"the gradients of {clients:,} clients take {need:.1f} GiB: measuring needs at most 2 GiB")
    losses, slopes = client_gradients(objective, x)
    step()
    alpha, beta = heterogeneity(slopes, member)
    start = _direction(trial, x)
    smooth, rough = [], []
    for client in some:
        mine = objective.holds[client]
        smooth.append(curvature(objective, x, mine, start))
        rough.append(noise(objective, x, mine, slopes[client], batch, replacement))
        step()
    everybody = torch.cat(list(objective.holds))
    if len(everybody) > SAMPLES:
        drawn = streams(trial)("theory-samples").permutation(len(everybody))[:SAMPLES]
        everybody = everybody[torch.from_numpy(drawn).to(x.device)]
    whole = curvature(objective, x, everybody, start)
    step()
    return Snapshot(
        loss=float(losses.mean()),
        gradient2=float(slopes.mean(0).double().square().sum()),
        smoothness=_spread([end.magnitude for end in smooth]),
        curvature=whole.top,
        residual=max(end.residual for end in (whole, *smooth)),
        sigma2=_spread(rough),
        alpha=_spread(alpha),
        beta=_spread(beta),
    )


def estimates(snapshots: Sequence[Snapshot], squares: Floats) -> dict[str, Constant]:
    """The constants by the names of `Constants`; the first look is at x_0, `squares` as from `squared_weights`.

    All are the largest seen but f(x_0) - f*, which is the smallest it can be: f* is at most the lowest loss seen.  At a
    model nothing is left to chance: L is from below, the others are exact.  So each is at most the true constant, which
    holds for all models and clients, and the bounds are too small if anything."""
    known: dict[str, Constant] = {}
    for name, field in (("L", "smoothness"), ("sigma2", "sigma2"), ("alpha", "alpha"), ("beta", "beta")):
        pairs = np.array([getattr(snapshot, field) for snapshot in snapshots])
        error = _standard_error(pairs[:, 1])
        kind = f"standard error over {plural(len(snapshots), 'model')}"
        known[name] = Constant(float(pairs[:, 0].max()), LARGEST, float(pairs[:, 1].mean()), error, kind)
    kind = f"standard error over {plural(len(squares), 'group')}"
    known["omega2"] = Constant(float(squares.max()), LARGEST, float(squares.mean()), _standard_error(squares), kind)
    first, least = snapshots[0].loss, min(snapshot.loss for snapshot in snapshots)
    which, kind = f"smallest: f* = {least:.3g}, the lowest loss seen", "half the way to f* = 0, the lowest possible"
    known["f0_gap"] = Constant(first - least, which, first - least / 2, least / 2, kind)
    return known


def constants(known: dict[str, Constant]) -> Constants:
    """As the bounds take them."""
    return Constants(**{name: estimate.value for name, estimate in known.items()})


def _direction(trial: int, x: Tensor) -> Tensor:
    words = streams(trial)("theory-direction").words(x.numel() + 64)[64:]
    return torch.from_numpy(2.0 * unit(words) - 1.0).to(x)


def _spread(values: Sequence[float] | Floats) -> tuple[float, float]:
    return (float(np.max(values)), float(np.mean(values))) if len(values) else (0.0, 0.0)


def _standard_error(values: Floats) -> float:
    error = standard_error(values)
    return nan if error is None else error
