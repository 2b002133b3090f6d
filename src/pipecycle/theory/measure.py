"""A finished run against the theory: constants along its models, the lemmas, event counts, and its stability.

The weights of a run are not kept, so it is trained once more, to the same bits, with a probe at a few models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, isfinite
from typing import Any

import attrs
import numpy as np
from attrs import frozen
from torch import Tensor

from pipecycle.errors import InputError
from pipecycle.results import Metrics, sampling_error
from pipecycle.runs.records import Record
from pipecycle.runs.run import problem_of
from pipecycle.schedule.ancestry import mean
from pipecycle.schedule.schedule import Schedule
from pipecycle.theory import bounds, rates
from pipecycle.theory.estimate import (
    Constant,
    Learnt,
    Snapshot,
    client_gradients,
    constants,
    estimates,
    memberships,
    squared_weights,
    take_snapshot,
)
from pipecycle.theory.plans import SUBJECT, system_of
from pipecycle.theory.rates import KINDS
from pipecycle.theory.stability import stable_curvature, steps
from pipecycle.theory.system import System
from pipecycle.train.analysis import evaluate, version_recipe
from pipecycle.train.engine import Engine, pick_device
from pipecycle.train.sessions import steady
from pipecycle.world.lineage import Recipe
from pipecycle.world.streams import streams

Progress = Callable[[str, float], None]
"""What is being done, and how much of it (0 to 1)."""
RISE, KEPT = 1.05, 0.75
"""A loss is clearly above the initial one from here on, and accuracy is lost that is below this part of the best."""


@frozen
class Point:
    """One event: the model x_tau that it made, against what the lemmas allow."""

    event: int
    slot: int
    depth: int
    """Aggregations on its line of descent."""
    others: int
    """Aggregations before it that are not: |A'(tau)|."""
    loss: float
    gradient2: float
    curvature: float
    residual: float
    """Of the eigenvalues that curvature and L are made of: there is a true one that close to each."""
    update2: float
    """||mean update of the group||^2 ..."""
    lemma_1: float | None
    """... and its bound."""
    perturbation2: float
    """||z_tau - x_tau||^2 ..."""
    lemma_2: dict[str, float] | None
    """... and its bound: as_printed, consistent, and counted, with |A'(tau)| instead of d_max (G - 1).  Its
    gradient is the largest at the models looked at so far; that of all models may be larger, and so may the bound."""
    virtual_loss: float
    virtual_gradient2: float
    """f and ||grad f||^2 at z_tau, which the theorem is about; no run ever uses it."""


@frozen
class Measured:
    """What one run shows."""

    label: str
    policy: str
    trial: int
    system: System
    applies: bool
    """Whether the bounds are about this run at all: PipeCycle as in the paper, plain SGD."""
    constants: dict[str, Constant]
    points: tuple[Point, ...]
    events: dict[str, float]
    """measured; printed and corrected where the paper's rates are about the policy."""
    depth: int
    ancestry_max: int
    lag: float
    staleness: float
    """Mean lag of updates that are added to another model than the one they started from, at their publication."""
    step: float
    """How much of them is added, in the mean."""
    accuracy: float
    accuracy_error: float
    """Standard error by the number of test samples."""
    start_loss: float
    peak_loss: float
    """The largest of the test losses that were recorded and the training losses that were measured; infinite if the
    run diverged."""
    blew_up: bool
    """As `blew_up` says."""

    @property
    def stable_curvature(self) -> float:
        """The largest curvature at which updates this stale, with this step, are stable."""
        return stable_curvature(self.staleness, self.system.B, self.system.gamma, self.step)

    @property
    def curvatures(self) -> list[float]:
        return [point.curvature for point in self.points]

    @property
    def theorem(self) -> bounds.Bound:
        """Theorem 1 with the constants and events of this run."""
        known = constants(self.constants)
        if known.f0_gap == 0:
            return bounds.Bound(inf, inf, bounds.UNLEARNT)
        return bounds.theorem(self.system, known, self.events["measured"])

    @property
    def compared(self) -> bool:
        """Whether there is anything to hold against the lemmas: they are about the models after x_0."""
        return self.applies and len(self.points) > 1

    @property
    def gradient2(self) -> float:
        """The smallest squared gradient norm among the models looked at."""
        return min(point.gradient2 for point in self.points)

    def figures(self) -> dict[str, Any]:
        """For `--json`."""
        out: dict[str, Any] = attrs.asdict(self)
        limit = self.stable_curvature
        bound = self.theorem
        out["system"]["d_max"] = self.system.d_max
        out["theorem"] = {"value": bound.value, "vacuous": bound.vacuous, "measured": self.gradient2}
        out["stability"] = {"limit": limit, "start": self.curvatures[0], "largest": max(self.curvatures)}
        return out


def measure(
    record: Record,
    label: str,
    *,
    models: int = 9,
    clients: int = 5,
    device: str = "auto",
    progress: Progress = lambda what, share: None,
) -> Measured:
    """Snapshot at `models` models of a run, x_0 and the last included; noise and smoothness are those of `clients`
    clients, drawn again for each model."""
    if record.config is None or record.metrics is None or record.ended is None:
        raise InputError(f"{record.path}: is not a finished run, so there is nothing to measure")
    schedule, train = record.schedule, record.config.train
    events = _events(schedule, int(record.metrics.slot[-1]), models)
    if len(events) < 2:
        raise InputError(f"{record.path}: has no aggregation, so there is nothing to measure")
    learnt = problem_of(record.config)
    ancestry = schedule.ancestry
    recipes: list[Recipe] = []
    for event in events:
        recipes += [version_recipe(int(ancestry.event_versions[event])), *_of_event(schedule, event)]

    def tick(engine: Engine) -> None:
        progress(f"training {label} again", engine.steps_done / max(1, engine.steps_total))

    rows = evaluate(schedule, learnt, recipes, device=device, precision=train.precision, tick=tick)
    rows = rows.view(len(events), 4, -1)
    with steady("fp32", rows):
        objective = Learnt(learnt, pick_device(device))
        member = memberships(schedule)
        snapshots, views = [], []
        done, total = 0, len(events) * (clients + 4)

        def step(count: int = 1) -> None:
            nonlocal done
            done += count
            progress(f"looking at {label}", done / total)

        for event, (x, reference, perturbation, update) in zip(events, rows, strict=True):
            order = streams(schedule.trial)("theory-clients", event).permutation(schedule.clients)
            snapshot = take_snapshot(
                objective,
                x,
                member,
                order[:clients].tolist(),
                learnt.training.batch,
                schedule.trial,
                replacement=learnt.training.replacement,
                step=step,
            )
            if not (isfinite(snapshot.loss) and isfinite(snapshot.gradient2) and isfinite(snapshot.smoothness[0])):
                break  # it has diverged: the remaining models hold no finite numbers
            snapshots.append(snapshot)
            views.append((_whole(objective, reference), _whole(objective, x + perturbation), perturbation, update))
            step(2)
    events = events[: len(snapshots)]
    known = estimates(snapshots, squared_weights(schedule))
    system = system_of(schedule, record.config)
    plain = learnt.training.sgd.plain and train.lr_decay == 1.0
    applies = plain and schedule.policy == "pipecycle" and schedule.meta["settings"].get("relay_mix", 1.0) == 1.0
    predicted = {kind: rates.expected_events(system, kind) for kind in KINDS}
    metrics = record.metrics
    accuracy = float(metrics.accuracy[metrics.at_budget])
    taken = steps(schedule)
    losses = [snapshot.loss for snapshot in snapshots]
    return Measured(
        label=label,
        policy=schedule.policy,
        trial=schedule.trial,
        system=system,
        applies=applies,
        constants=known,
        points=tuple(_points(schedule, system, known, events, snapshots, views, applies)),
        events={"measured": float(ancestry.events)} | (predicted if schedule.policy in SUBJECT else {}),
        depth=int(ancestry.depths.max()),
        ancestry_max=int(ancestry.ancestry_max or 0),
        lag=float(ancestry.lags.mean()),
        staleness=mean(taken.update_lag) or 0.0,
        step=mean(taken.step) or 1.0,
        accuracy=accuracy,
        accuracy_error=sampling_error(accuracy, len(learnt.split.test)),
        start_loss=snapshots[0].loss,
        peak_loss=inf if record.ended == "diverged" else max(float(np.nanmax(metrics.loss, initial=0.0)), *losses),
        blew_up=record.ended == "diverged" or blew_up(metrics, losses),
    )


def blew_up(metrics: Metrics, losses: Sequence[float]) -> bool:
    """Whether a run got clearly worse than it began; `losses` are training losses, x_0's first.

    Either it ended there, by the training loss, or it was there on its way: a test loss above the initial one, and with
    it a quarter of the best accuracy so far gone.  A test loss alone says nothing: where a model overfits it rises as
    well, but accuracy stays."""
    bar = RISE * losses[0]
    worse = ~(metrics.loss <= bar)  # no number is worse, too
    lost = metrics.accuracy < KEPT * np.maximum.accumulate(metrics.accuracy)
    return not losses[-1] <= bar or bool(np.any(worse & lost))


def _events(schedule: Schedule, slots: int, models: int) -> list[int]:
    """x_0, the last event before the run ended, and others between them at equal ratios: most happens early."""
    last = int(np.searchsorted(schedule.ancestry.event_slots, slots)) - 1
    between = np.geomspace(max(1, last), 1, max(1, models - 1)).round().astype(int)
    return [0, *sorted(set(between[between <= last].tolist()))]


def _of_event(schedule: Schedule, event: int) -> list[Recipe]:
    """The group's reference, the perturbation and the group's update, as recipes."""
    ancestry, versions = schedule.ancestry, schedule.versions
    nothing = (np.empty(0, np.int64), np.empty(0))
    if event == 0:
        return [version_recipe(0), Recipe(*nothing, *nothing), Recipe(*nothing, *nothing)]
    mine = ancestry.event_of_session[versions.update] == event
    sessions, weights = versions.update[mine].astype(np.int64), versions.weight[mine]
    reference = int(schedule.sessions.reference[sessions].min())
    return [version_recipe(reference), ancestry.perturbation(event), Recipe(*nothing, sessions, weights)]


def _whole(objective: Learnt, x: Tensor) -> tuple[float, float]:
    """f(x) and ||grad f(x)||^2."""
    losses, slopes = client_gradients(objective, x)
    return float(losses.mean()), float(slopes.mean(0).double().square().sum())


def _points(
    schedule: Schedule,
    system: System,
    estimated: dict[str, Constant],
    events: list[int],
    snapshots: list[Snapshot],
    views: list[tuple[tuple[float, float], tuple[float, float], Tensor, Tensor]],
    applies: bool,
) -> list[Point]:
    ancestry, known = schedule.ancestry, constants(estimated)
    points, largest = [], 0.0
    for event, snapshot, (reference, virtual, perturbation, update) in zip(events, snapshots, views, strict=True):
        depth = int(ancestry.depths[ancestry.event_versions[event]])
        largest = max(largest, snapshot.gradient2, reference[1])
        lemma_2 = {
            "as_printed": bounds.lemma_2(system, known, largest),
            "consistent": bounds.lemma_2(system, known, largest, "consistent"),
            "counted": bounds.lemma_2(system, known, largest, "consistent", event - depth),
        }
        points.append(
            Point(
                event=event,
                slot=int(ancestry.event_slots[event]),
                depth=depth,
                others=event - depth,
                loss=snapshot.loss,
                gradient2=snapshot.gradient2,
                curvature=snapshot.curvature,
                residual=snapshot.residual,
                update2=float(update.double().square().sum()),
                lemma_1=bounds.lemma_1(system, known, reference[1]) if applies and event else None,
                perturbation2=float(perturbation.double().square().sum()),
                lemma_2=lemma_2 if applies and event else None,
                virtual_loss=virtual[0],
                virtual_gradient2=virtual[1],
            )
        )
    return points
