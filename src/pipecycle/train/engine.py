"""The trainer: executes the schedules of one or many jobs, stacking whatever is ready."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy

import numpy as np
import torch
from attrs import frozen
from torch import Tensor

from pipecycle.errors import InputError
from pipecycle.train.examiner import Examiner, Pending
from pipecycle.train.history import History
from pipecycle.train.job import Job
from pipecycle.train.models import hooked
from pipecycle.train.problems import on_device
from pipecycle.train.sessions import Precision, Teachers, one_thread
from pipecycle.train.stacked import Stacked, Trainer, executor

Tick = Callable[["Engine"], None]
Evaluation = tuple[Job, list[int], bool, Pending]
"""A job, the versions (or sessions, if true) of its that are being evaluated, and their scores to come."""
Runs = list[tuple[Job, list[int]]]
"""Jobs, and the sessions of each that are stacked."""


@frozen
class Engine:
    """What a watcher can see during training."""

    jobs: Sequence[Job]
    started: float
    device: torch.device
    bands: list[Band]
    steps_before: int
    """Steps that were done before, by a run that is resumed."""

    def settle(self) -> None:
        """Wait for all evaluations, so that the jobs hold a state that can be saved."""
        for band in self.bands:
            band.drain()

    @property
    def steps_done(self) -> int:
        return sum(job.steps_done for job in self.jobs)

    @property
    def steps_total(self) -> int:
        return sum(job.steps_total for job in self.jobs)


def train_many(
    jobs: Sequence[Job],
    *,
    device: str | torch.device = "auto",
    precision: Precision = "fp32",
    trainer: Trainer = "auto",
    dtype: torch.dtype = torch.float32,
    width: int | None = None,
    tick: Tick | None = None,
) -> list[History]:
    """Execute many schedules at once: the ready sessions of all jobs that share a model and data are stacked.

    `width` is how many sessions are in a stack at most; `tick` is called after each (to show progress, to save, to
    stop by an exception: the jobs then hold a state that can be saved and resumed)."""
    place = pick_device(device)
    # As the current device: memory that is pinned beside another would take some of that one's.
    with torch.cuda.device(place if place.type == "cuda" else -1), one_thread():
        bands = [Band(group, place, precision, trainer, dtype, width) for group in alike(jobs)]
        engine = Engine(jobs, time.monotonic(), place, bands, sum(job.steps_done for job in jobs))
        for band in bands:
            band.begin()
        try:
            while any(not job.over for job in jobs):
                for band in bands:
                    band.step()
                if tick is not None:
                    tick(engine)
        finally:
            for band in bands:
                band.drain()
    return [job.history for job in jobs]


def pick_device(name: str | torch.device = "auto") -> torch.device:
    """`auto` takes a GPU if there is one."""
    if isinstance(name, torch.device):
        return name
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InputError(f"device = {name}: needs auto, cpu, cuda or cuda:NUMBER") from None
    if device.type not in ("cpu", "cuda"):
        raise InputError(f"device = {name}: needs auto, cpu, cuda or cuda:NUMBER")
    if device.type == "cuda" and (not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count()):
        raise InputError(f"device = {name}: this machine has {torch.cuda.device_count()} CUDA devices")
    return device


def alike(jobs: Iterable[Job]) -> list[list[Job]]:
    """Jobs in the order given, grouped by what has to be the same in a stack."""
    groups: dict[object, list[Job]] = {}
    for job in jobs:
        key = (id(job.problem.task), fingerprint(job.problem.module), job.problem.training)
        groups.setdefault(key, []).append(job)
    return list(groups.values())


def fingerprint(module: torch.nn.Module) -> bytes:
    """Equal only for modules that compute the same function of their parameters: whatever else they hold counts."""
    whole = hashlib.sha256()
    for name, part in module.named_modules():
        whole.update(f"{name}:{type(part).__module__}.{type(part).__qualname__}".encode())
        if hooked(part):
            return id(module).to_bytes(8, "little")
        for key, value in sorted(vars(part).items()):
            if not key.startswith("_") and key != "training":
                whole.update(f"{key}={_held(value)}".encode())
    for name, value in [*module.named_parameters(), *module.named_buffers()]:
        whole.update(f"{name}:{value.dtype}:{tuple(value.shape)}".encode())
    for _, value in module.named_buffers():
        whole.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return whole.digest()


def _held(value: object) -> str:
    """Plain data by what it says, anything else by what it is."""
    if isinstance(value, bool | int | float | str | bytes | None):
        return repr(value)
    if isinstance(value, tuple | list):
        return f"({','.join(map(_held, value))})"
    return f"{type(value).__qualname__}@{id(value)}"


class Band:
    """Jobs that can be stacked together, and the executor that trains them."""

    def __init__(
        self,
        jobs: list[Job],
        device: torch.device,
        precision: Precision,
        trainer: Trainer,
        dtype: torch.dtype,
        width: int | None,
    ) -> None:
        self.jobs = jobs
        problem = jobs[0].problem
        module = deepcopy(problem.module).to(device=device, dtype=dtype)
        images, labels = on_device(problem.task.x_train, problem.task.y_train, device, dtype)
        self.like = images.new_empty(0)
        classes, sgd = problem.task.classes, problem.training.sgd
        self.executor = executor(
            module, images, labels, classes, sgd, precision=precision, frame=problem.frame, kind=trainer
        )
        stack = isinstance(self.executor, Stacked)
        self.width = width or (_stack_width(problem.size, device) if stack else 16)
        self.pending: list[Evaluation] = []
        self.examiners: dict[int, Examiner] = {}
        known: dict[bytes, Examiner] = {}  # trials share their test samples
        for job in jobs:
            test = job.problem.split.test
            if test.tobytes() not in known:
                task = job.problem.task
                samples = on_device(task.x_test[test], task.y_test[test], device, dtype)
                known[test.tobytes()] = Examiner(module, *samples, classes, precision)
            self.examiners[id(job)] = known[test.tobytes()]

    def begin(self) -> None:
        for job in self.jobs:
            if not hasattr(job, "versions"):
                job.begin(self.like)
            job.catch_up()
            self._look(job)
        self.drain()

    def step(self) -> None:
        """Train one stack of ready sessions, make what they allow, look at what is wanted."""
        runs = self._pick()
        if not runs:
            self.drain()
            return
        self._train(runs)
        earlier, self.pending = self.pending, []
        for job, _ in runs:
            self._look(job)
        self._read(earlier)  # what was launched before this stack: the device works meanwhile

    def _pick(self) -> Runs:
        """Ready sessions of one kind, the jobs furthest behind first, each job's in the order of their starts.

        Others beside it would decide by which operations a session is computed, and so its last bits."""
        runs: Runs = []
        kind, room = None, self.width
        for job in sorted((job for job in self.jobs if not job.over), key=lambda job: job.progress):
            job.graph.ready.sort()
            picked: list[int] = []
            left: list[int] = []
            for session in job.graph.ready:
                kind = kind or job.kind(session)
                fits = len(picked) < room and job.kind(session) == kind
                (picked if fits else left).append(session)
            job.graph.ready[:] = left
            room -= len(picked)
            if picked:
                runs.append((job, picked))
            if not room:
                break
        return runs

    def _train(self, runs: Runs) -> None:
        (job, sessions), *_ = runs
        steps, _, collect = job.kind(sessions[0])
        reference = torch.cat([job.versions.gather(job.graph.reference[sessions].tolist()) for job, sessions in runs])
        batches, views = _inputs(runs, steps)
        training = self.jobs[0].problem.training
        lr = None
        if training.lr_decay != 1.0:
            rates = [job.lr_of(session) for job, sessions in runs for session in sessions]
            lr = torch.tensor(rates, dtype=self.like.dtype)
        teachers = self._teachers(runs, training.distillation)
        done = self.executor.run(reference, batches, lr=lr, teachers=teachers, collect=collect, views=views)
        first = 0
        for job, sessions in runs:
            rows = slice(first, first + len(sessions))
            first += len(sessions)
            self._observe(job, sessions, done.parameters[rows])
            logits = None
            if done.sums is not None and done.counts is not None:
                logits = (done.sums[rows], done.counts[rows])
            job.trained(sessions, done.parameters[rows] - reference[rows], logits)

    def _teachers(self, runs: Runs, weight: float) -> Teachers | None:
        """What each session learns from besides its labels; no rows are valid where there is no teacher."""
        total = sum(len(sessions) for _, sessions in runs)
        taught = [job.graph.teacher[sessions] for job, sessions in runs]
        if weight == 0.0 or not any((teachers >= 0).any() for teachers in taught):
            return None
        classes = self.jobs[0].problem.task.classes
        logits = self.like.new_zeros(total, classes, classes)
        valid = torch.zeros(total, classes, dtype=torch.bool, device=self.like.device)
        first = 0
        for (job, sessions), teachers in zip(runs, taught, strict=True):
            for table in np.unique(teachers[teachers >= 0]).tolist():
                places = np.flatnonzero(teachers == table)
                clients = job.schedule.sessions.client[np.asarray(sessions)[places]].astype(np.int64)
                rows = torch.from_numpy(first + places).to(self.like.device)
                logits[rows], valid[rows] = job.tables[table].without(torch.from_numpy(clients).to(self.like.device))
            first += len(sessions)
        return Teachers(logits, valid, weight)

    def _observe(self, job: Job, sessions: list[int], parameters: Tensor) -> None:
        """The accuracy of clients' own models where a mean over the clients asks for it."""
        if not len(job.observed):
            return
        rows = np.flatnonzero(np.isin(sessions, job.observed)).tolist()
        if rows:
            pending = self.examiners[id(job)].examine(parameters[rows])
            self.pending.append((job, [sessions[row] for row in rows], True, pending))

    def _look(self, job: Job) -> None:
        versions = job.to_see()
        if versions:
            rows = job.versions.gather(versions)
            self.pending.append((job, versions, False, self.examiners[id(job)].examine(rows)))
            job.looked(versions, rows)

    def _read(self, pending: list[Evaluation]) -> None:
        for job, keys, of_clients, scores in pending:
            for key, score in zip(keys, scores.read(), strict=True):
                if of_clients:
                    job.client_scores[key] = score.accuracy
                else:
                    job.scores[key] = score
            job.report()

    def drain(self) -> None:
        """Wait for everything that is being evaluated."""
        pending, self.pending = self.pending, []
        self._read(pending)


def _inputs(runs: Runs, steps: int) -> tuple[Tensor, Tensor | None]:
    """The batches of some sessions and how their images are seen; the jobs of a band have the same augmentation."""
    batches, views = [], []
    for job, sessions in runs:
        which = job.schedule.sessions.client[sessions], job.numbers[sessions]
        batches.append(job.problem.batches(steps)(*which))
        seen = job.problem.views(steps)
        views += [] if seen is None else [seen(*which)]
    return torch.from_numpy(np.concatenate(batches)), torch.from_numpy(np.concatenate(views)) if views else None


def _stack_width(size: int, device: torch.device) -> int:
    """As many sessions as keep a GPU busy while the host prepares the next stack, and no more: beyond about a thousand
    waiting operations the host waits with them, and the two take turns instead of working side by side."""
    if device.type == "cpu":
        return 256
    return int(min(2048, max(256, 640_000_000 // (4 * size))))
