"""A run in a folder: configuration, schedule, metrics, model, and a checkpoint while it is not finished."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
from attrs import frozen

from pipecycle.checks import seconds
from pipecycle.config import Config
from pipecycle.data import Task, load, load_split
from pipecycle.errors import InputError
from pipecycle.files import reason, write
from pipecycle.plan import Run
from pipecycle.registry import build, parameters, policy_class
from pipecycle.schedule import Schedule
from pipecycle.specs import parse_harvest
from pipecycle.streams import Ints
from pipecycle.summary import summarise

if TYPE_CHECKING:
    from torch import Tensor

    from pipecycle.train.engine import Engine
    from pipecycle.train.job import Callback, Job, Watch
    from pipecycle.train.problems import Problem

Show = Callable[["Engine"], None]
CHECKPOINT = Path("checkpoint") / "state.safetensors"


@frozen
class Pace:
    """How fast runs were trained."""

    device: str
    runs: int
    steps: int
    seconds: float
    """From the first stack to the last evaluation; planning is not in it."""


class Interrupted(Exception):
    """The run was asked to stop; its state is on disk."""

    def __init__(self, pace: Pace | None = None) -> None:
        super().__init__()
        self.pace = pace


@cache
def _task(name: str) -> Task:
    """Loaded once: runs that share their data can be stacked."""
    return load(name)


def prepare(config: Config) -> tuple[Schedule, Problem]:
    """The schedule and the problem of a configuration; nothing is written."""
    learnt = problem_of(config)
    return plan_of(config, *planning_needs(config, learnt)), learnt


def problem_of(config: Config) -> Problem:
    """What a configuration learns."""
    from pipecycle.train.problems import Recipe, problem
    from pipecycle.train.sessions import LocalSGD

    world, data, train = config.world, config.data, config.train
    sgd = LocalSGD(lr=train.lr, momentum=train.momentum, weight_decay=train.weight_decay, proximal=train.proximal)
    recipe = Recipe(sgd, train.batch, train.replacement, train.lr_decay, train.distillation)
    task = _task(data.name)
    split = None if data.split is None else load_split(Path(data.split), task, trial=world.trial)
    return problem(
        task,
        train.model,
        clients=world.clients if split is None else len(split),
        alpha=data.alpha,
        samples=data.samples,
        trial=world.trial,
        split=split,
        recipe=recipe,
    )


def planning_needs(config: Config, learnt: Problem) -> tuple[dict[str, Any], int, Ints | None]:
    """What planning has to know of the problem: the policy's settings, the clients, and samples if they differ."""
    settings = dict(config.settings)
    if "upload_ratio" in parameters(policy_class(config.policy)) and "upload_ratio" not in settings:
        # A logit table has a row and a column per class; the model is this run's.
        settings["upload_ratio"] = min(1.0, learnt.task.classes**2 / learnt.size)
    used = config.world.session * np.minimum(config.train.batch, learnt.split.sizes)
    return settings, len(learnt.split), None if (used == used[0]).all() else used


def planning(
    config: Config, settings: Mapping[str, Any] | None = None, clients: int | None = None, samples: Ints | None = None
) -> Run:
    """The planning of a configuration, to be watched step by step; it needs neither data nor torch.  What is given
    besides wins over what the configuration says."""
    world = config.world
    return Run(
        build(config.policy, config.settings if settings is None else settings),
        parse_harvest(world.harvest),
        world.clients if clients is None else clients,
        world.slots,
        session=world.session,
        budget=world.budget,
        trial=world.trial,
        capacity=world.capacity,
        initial=world.initial,
        samples=samples,
    )


def plan_of(config: Config, settings: Mapping[str, Any], clients: int, samples: Ints | None) -> Schedule:
    """The schedule of a configuration; other processes can do it."""
    run = planning(config, settings, clients, samples)
    for _ in run.steps():
        pass
    return run.schedule()


@contextmanager
def planned_ahead(configs: Sequence[Config], processes: int) -> Iterator[list[Callable[[], tuple[Schedule, Problem]]]]:
    """`prepare` for each of many configurations, with the planning done on several cores at once."""
    processes = min(processes, len(configs) // 4)
    if processes < 2:
        yield [partial(prepare, config) for config in configs]
        return
    with ProcessPoolExecutor(processes, get_context("spawn"), initializer=_deaf) as pool:

        def ahead(config: Config) -> Callable[[], tuple[Schedule, Problem]]:
            try:
                learnt = problem_of(config)
                schedule = pool.submit(plan_of, config, *planning_needs(config, learnt))
            except InputError:
                return partial(prepare, config)  # which will say it again when it is asked for
            return lambda: (schedule.result(), learnt)

        yield [ahead(config) for config in configs]


def _deaf() -> None:
    """Ctrl-C is for the process that asked for the plans."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def watch(config: Config) -> Watch:
    """When the models of a run are looked at."""
    from pipecycle.train.job import Watch

    look = config.look
    return Watch(
        look.every,
        look.clients_every,
        config.world.budget,
        look.early_stop,  # type: ignore[arg-type]
        look.served,  # type: ignore[arg-type]
    )


def clear(path: Path) -> None:
    """Remove what a run has left in a folder, and nothing else."""
    for name in ("config.toml", "schedule.npz", "metrics.csv", "model.safetensors", "result.json", CHECKPOINT):
        (path / name).unlink(missing_ok=True)


class RunFolder:
    """A run on disk: `begin` gives its job, new or resumed, `save` and `finish` write what comes out."""

    def __init__(self, path: Path, config: Config) -> None:
        self.path, self.config = path, config
        self.checkpoint = path / CHECKPOINT
        known = path / "config.toml"
        if known.exists() and known.read_text() != config.text():
            raise InputError(f"{path}: holds a run with another configuration; choose another folder, or --fresh")

    @staticmethod
    def is_finished(path: Path) -> bool:
        return (path / "result.json").exists()

    @property
    def finished(self) -> bool:
        return self.is_finished(self.path)

    def result(self) -> dict[str, Any]:
        """The closing figures of a finished run."""
        values: dict[str, Any] = json.loads((self.path / "result.json").read_text())
        return values

    def begin(
        self,
        like: Tensor,
        callbacks: tuple[Callback, ...] = (),
        prepared: Callable[[], tuple[Schedule, Problem]] | None = None,
    ) -> Job:
        """The run's job, at the point that its checkpoint holds if there is one."""
        from pipecycle.train.checkpoint import load_job
        from pipecycle.train.job import Job

        schedule, learnt = prepare(self.config) if prepared is None else prepared()
        try:
            self.checkpoint.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{self.path}: cannot be written ({reason(error)})") from None
        write(self.path / "config.toml", self.config.text())
        schedule.save(self.path / "schedule.npz")
        job = Job(schedule, learnt, watch(self.config), name=self.path.name, callbacks=callbacks)
        self.identity = f"{self.config.identity()}/{schedule.digest()}"
        if self.checkpoint.exists():
            load_job(job, self.checkpoint, self.identity, like)
        return job

    def save(self, job: Job) -> None:
        """Keep what the rest of the run depends on, and the metrics so far."""
        from pipecycle.train.checkpoint import save_job

        save_job(job, self.checkpoint, self.identity)
        write(self.path / "metrics.csv", job.history.csv())

    def finish(self, job: Job) -> None:
        """Write what came out; the checkpoint is no longer needed."""
        from safetensors.torch import save

        from pipecycle.models import split

        assert job.model is not None
        module, vector = job.problem.module, job.model.cpu()
        names = [name for name, _ in module.named_parameters()]
        weights = {name: part.contiguous().clone() for name, part in zip(names, split(module, vector), strict=True)}
        write(self.path / "model.safetensors", save(weights))
        write(self.path / "metrics.csv", job.history.csv())
        write(self.path / "result.json", json.dumps(result(job), indent=1) + "\n")
        self.checkpoint.unlink(missing_ok=True)


def train_folders(
    folders: Sequence[RunFolder],
    *,
    device: str = "auto",
    save_every: float = 60.0,
    show: Show | None = None,
    callbacks: tuple[Callback, ...] = (),
    failed: Callable[[RunFolder, InputError], None] | None = None,
    planners: int = 1,
) -> Pace:
    """Bring all runs to their end, stacked, saving every so many seconds and when asked to stop (Ctrl-C, SIGTERM).

    A run that cannot begin is handed to `failed`, if there is one, and does not stop the others.  `planners` is how
    many processes plan before the training begins.  Returns how fast it went."""
    import torch

    from pipecycle.train.engine import pick_device, train_many

    seconds.of("save_every", save_every)
    place = pick_device(device)
    jobs: list[tuple[RunFolder, Job]] = []
    with planned_ahead([folder.config for folder in folders], planners) as plans:
        for folder, prepared in zip(folders, plans, strict=True):
            try:
                jobs.append((folder, folder.begin(torch.empty(0, device=place), callbacks, prepared)))
            except InputError as error:
                if failed is None:
                    raise
                failed(folder, error)
    unfinished = {id(job): (folder, job) for folder, job in jobs}
    last = time.monotonic()

    def keep(engine: Engine) -> None:
        nonlocal last
        if show is not None:
            show(engine)
        for key, (folder, job) in list(unfinished.items()):
            if job.over:
                folder.finish(job)
                del unfinished[key]
        if unfinished and (stop.asked or time.monotonic() - last >= save_every):
            engine.settle()
            for folder, job in unfinished.values():
                folder.save(job)
            last = time.monotonic()
        if unfinished and stop.asked:
            raise Interrupted(pace())

    def pace() -> Pace:
        name = torch.cuda.get_device_name(place) if place.type == "cuda" else "CPU"
        finished = sum(job.over for _, job in jobs)
        return Pace(name, finished, sum(job.steps_done for _, job in jobs) - before, time.monotonic() - began)

    before, began = sum(job.steps_done for _, job in jobs), time.monotonic()
    for precision in sorted({folder.config.train.precision for folder, _ in jobs}):
        some = [job for folder, job in jobs if folder.config.train.precision == precision]
        with _Stop.watched() as stop:
            train_many(some, device=place, precision=precision, tick=keep)  # type: ignore[arg-type]
    taken = pace()
    for folder, job in list(unfinished.values()):
        folder.finish(job)
    return taken


def result(job: Job) -> dict[str, Any]:
    """The closing figures of a job."""
    final, budget = job.history.final, job.history.at_budget
    figures = {
        "policy": job.schedule.policy,
        "trial": job.schedule.trial,
        "ended": job.history.ended,
        "parameters": job.problem.size,
        "test_samples": len(job.problem.split.test),
        "steps": job.steps_done,
        "aggregations": job.schedule.ancestry.events,
        "plan": summarise(job.schedule),
    }
    for name, row in (("final", final), ("at_budget", budget)):
        values = attrs.asdict(row)
        values.pop("by_class")
        figures[name] = values
    return figures


class _Stop:
    """Whether somebody asked to stop.  The second Ctrl-C does not wait for a good moment."""

    def __init__(self) -> None:
        self.asked = False

    @staticmethod
    @contextmanager
    def watched() -> Iterator[_Stop]:
        stop = _Stop()

        def ask(number: int, frame: FrameType | None) -> None:
            if stop.asked:
                raise KeyboardInterrupt
            stop.asked = True

        before = {}
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                before[number] = signal.signal(number, ask)
            except ValueError:  # not in the main thread: whoever runs it there stops it otherwise
                break
        try:
            yield stop
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
