"""A run in a folder: configuration, schedule, metrics, model, and a checkpoint while it is not finished."""

from __future__ import annotations

import hashlib
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
from attrs import frozen

from pipecycle.checks import seconds
from pipecycle.data import Split, Task, dirichlet, iid, load, load_split
from pipecycle.errors import InputError
from pipecycle.files import reason, tidy, write
from pipecycle.policies.registry import build, parameters, policy_class, revision
from pipecycle.runs import folders as disk
from pipecycle.runs.config import Config, TrainSection
from pipecycle.schedule.plan import Run
from pipecycle.schedule.schedule import Schedule
from pipecycle.schedule.summary import summarise
from pipecycle.stopping import Interrupted, Stop, die_with_parent
from pipecycle.world.devices_file import load as load_fleet
from pipecycle.world.specs import parse_harvest
from pipecycle.world.streams import Ints

if TYPE_CHECKING:
    from torch import Tensor

    from pipecycle.train.engine import Engine
    from pipecycle.train.job import Callback, Job, Watch
    from pipecycle.train.problems import Problem, Recipe

Show = Callable[["Engine"], None]
Failed = Callable[["RunFolder", BaseException], None]


@frozen
class Pace:
    """How fast runs were trained."""

    device: str
    runs: int
    steps: int
    seconds: float
    """From the first stack to the last evaluation; planning is not in it."""


@cache
def _task(name: str, scale: str | None) -> Task:
    """Loaded once: runs that share their data can be stacked."""
    return load(name, scale)


@cache
def _judged_in_training(name: str, scale: str | None) -> Task:
    """The task with its training samples in the place of its test samples: validation samples are among them."""
    task = _task(name, scale)
    return attrs.evolve(task, x_test=task.x_train, y_test=task.y_train)


def prepare(config: Config) -> tuple[Schedule, Problem]:
    """The schedule and the problem of a configuration; nothing is written."""
    learnt = problem_of(config)
    return plan_of(config, *planning_needs(config, learnt)), learnt


def problem_of(config: Config) -> Problem:
    """What a configuration learns."""
    from pipecycle.train.problems import problem

    data, trial = config.data, config.world.trial
    task = _task(data.name, data.scale)
    split = split_of(config, task)
    if config.look.on == "validation":
        task, split = _judged_in_training(data.name, data.scale), attrs.evolve(split, test=split.validation)
    return problem(task, config.train.model, trial=trial, split=split, recipe=recipe_of(config.train))


def split_of(config: Config, task: Task) -> Split:
    """Who holds what, which samples test, and which are held back for choosing settings."""
    world, data = config.world, config.data
    if data.split is not None:
        split = load_split(Path(data.split), task, trial=world.trial)
        return split if data.validation is None else split.hold_back(data.validation, task, world.trial)
    held = data.validation or 0
    sizes = None if world.fleet is None else load_fleet(world.fleet).samples(world.clients)
    samples = data.samples if sizes is None else int(sizes.max())
    if data.alpha is None:
        split = iid(task, world.clients, samples, world.trial, held)
    else:
        split = dirichlet(task, world.clients, samples, data.alpha, world.trial, held)
    return split if sizes is None else split.trimmed(sizes, world.trial)


def recipe_of(train: TrainSection) -> Recipe:
    """How every client trains."""
    from pipecycle.train.problems import Recipe
    from pipecycle.train.sessions import LocalSGD

    sgd = LocalSGD(lr=train.lr, momentum=train.momentum, weight_decay=train.weight_decay, proximal=train.proximal)
    return Recipe(sgd, train.batch, train.replacement, train.lr_decay, train.distillation, train.augment)


def with_upload_ratio(config: Config, classes: int, size: int) -> dict[str, Any]:
    """The policy's settings.  What a logit table costs depends on the model: it has a row and a column per class."""
    settings = dict(config.settings)
    if "upload_ratio" in parameters(policy_class(config.policy)):
        settings.setdefault("upload_ratio", min(1.0, max(1, classes) ** 2 / size))
    return settings


def planning_needs(config: Config, learnt: Problem) -> tuple[dict[str, Any], int, Ints | None]:
    """What planning has to know of the problem: the policy's settings, the clients, and samples if they differ."""
    settings = with_upload_ratio(config, learnt.task.classes, learnt.size)
    world, clients = config.world, len(learnt.split)
    used = learnt.samples(
        world.session if world.fleet is None else load_fleet(world.fleet).lengths(clients, world.session)
    )
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
        fleet=world.fleet,
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
    with ProcessPoolExecutor(processes, get_context("spawn"), initializer=_planner) as pool:

        def ahead(config: Config) -> Callable[[], tuple[Schedule, Problem]]:
            try:
                learnt = problem_of(config)
                schedule = pool.submit(plan_of, config, *planning_needs(config, learnt))
            except (Exception, SystemExit):
                return partial(prepare, config)  # which will say it again when it is asked for

            def ready() -> tuple[Schedule, Problem]:
                try:
                    return schedule.result(), learnt
                except BrokenExecutor:  # one plan has killed the processes that make them all
                    return prepare(config)

            return ready

        yield [ahead(config) for config in configs]


def _planner() -> None:
    """Ctrl-C is for the process that asked for the plans, and nobody plans for one that is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent()


def watch(config: Config) -> Watch:
    """When the models of a run are looked at."""
    from pipecycle.train.job import Watch

    return Watch(**attrs.asdict(config.look), budget=config.world.budget)


class RunFolder:
    """A run on disk: `begin` gives its job, new or resumed, `save` and `finish` write what comes out."""

    def __init__(self, path: Path, config: Config) -> None:
        self.path, self.config = path, config
        self.checkpoint = path / disk.CHECKPOINT
        self.lock = disk.Lock(path)
        known = path / "config.toml"
        if known.exists() and known.read_text(errors="replace") != config.text():
            number = revision(policy_class(config.policy))
            former = known.read_text(errors="replace") == config.text().replace(f"revision = {number}\n", "", 1)
            other = (
                f"of an earlier {config.policy}, which was another algorithm"
                if former
                else "with another configuration"
            )
            raise InputError(f"{path}: holds a run {other}; choose another folder, or --fresh")

    @property
    def finished(self) -> bool:
        return disk.finished(self.path)

    @property
    def damage(self) -> str | None:
        """Why what claims to be a result cannot be used, if it cannot."""
        try:
            disk.result(self.path)
        except disk.Damaged as damage:
            return str(damage)
        return None

    def result(self) -> dict[str, Any]:
        """The closing figures of a finished run."""
        figures = disk.result(self.path)
        if figures is None:
            raise InputError(f"{self.path}: has not finished")
        return figures

    def take(self) -> bool:
        """Have the folder to ourselves (`Busy` if somebody else does); false if there is nothing left to do in it."""
        self.lock.take()
        if self.finished:
            self.release()
            return False
        (self.path / "result.json").unlink(missing_ok=True)  # it was damaged
        tidy(self.path)
        tidy(self.checkpoint.parent)
        return True

    def release(self) -> None:
        self.lock.release()

    def begin(
        self,
        like: Tensor,
        callbacks: tuple[Callback, ...] = (),
        prepared: Callable[[], tuple[Schedule, Problem]] | None = None,
    ) -> Job | None:
        """The run's job, at the point that its checkpoint holds if there is one; None if the run is finished."""
        from pipecycle.train.checkpoint import load_job
        from pipecycle.train.job import Job

        # A folder that is there is taken first, a new one is made only when nothing is wrong with the run.
        if self.path.exists() and not self.take():
            return None
        schedule, learnt = prepare(self.config) if prepared is None else prepared()
        job = Job(schedule, learnt, watch(self.config), name=self.path.name, callbacks=callbacks)
        try:
            self.checkpoint.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{self.path}: cannot be written ({reason(error)})") from None
        if not self.take():
            return None
        write(self.path / "config.toml", self.config.text())
        schedule.save(self.path / "schedule.npz")
        self.identity = f"{self.config.identity()}/{schedule.digest()}"
        if self.checkpoint.exists():
            load_job(job, self.checkpoint, self.identity, like)
        return job

    def save(self, job: Job) -> None:
        """Keep what the rest of the run depends on, and the metrics so far."""
        from pipecycle.train.checkpoint import save_job

        self.lock.check()
        save_job(job, self.checkpoint, self.identity)
        write(self.path / "metrics.csv", job.history.csv())

    def finish(self, job: Job) -> None:
        """Write what came out; the checkpoint is no longer needed, and nobody writes here again."""
        from safetensors.torch import save

        from pipecycle.train.models import split

        assert job.model is not None
        module, vector = job.problem.module, job.model.cpu()
        names = [name for name, _ in module.named_parameters()]
        weights = {name: part.contiguous().clone() for name, part in zip(names, split(module, vector), strict=True)}
        metrics = job.history.csv()
        self.lock.check()
        write(self.path / "model.safetensors", save(weights))
        write(self.path / "metrics.csv", metrics)
        write(self.path / "result.json", disk.result_text(result(job), metrics))
        self.checkpoint.unlink(missing_ok=True)
        self.release()


def train_folders(
    folders: Sequence[RunFolder],
    *,
    device: str = "auto",
    save_every: float = 60.0,
    show: Show | None = None,
    callbacks: tuple[Callback, ...] = (),
    failed: Failed | None = None,
    planners: int = 1,
    stop: Stop | None = None,
) -> Pace:
    """Bring all runs to their end, stacked, saving every so many seconds and when asked to stop: by `stop`, or without
    it by Ctrl-C and SIGTERM.

    A run that cannot begin, whatever the reason (`Busy`: another process has it), is handed to `failed`, if there is
    one, and does not stop the others.  `planners` is how many processes plan before the training begins.  Returns how
    fast it went."""
    import torch

    from pipecycle.train.engine import pick_device, train_many

    seconds.of("save_every", save_every)
    place = pick_device(device)
    jobs: list[tuple[RunFolder, Job]] = []
    unfinished: dict[int, tuple[RunFolder, Job]] = {}
    last = time.monotonic()

    def keep(engine: Engine) -> None:
        nonlocal last
        if show is not None:
            show(engine)
        for key, (folder, job) in list(unfinished.items()):
            if job.over:
                folder.finish(job)
                del unfinished[key]
        if unfinished and (asker.asked or time.monotonic() - last >= save_every):
            engine.settle()
            for folder, job in unfinished.values():
                folder.save(job)
            last = time.monotonic()
        if unfinished and asker.asked:
            raise Interrupted(asker.asked, pace())

    def pace() -> Pace:
        name = torch.cuda.get_device_name(place) if place.type == "cuda" else "CPU"
        finished = sum(job.over for _, job in jobs)
        return Pace(name, finished, sum(job.steps_done for _, job in jobs) - before, time.monotonic() - began)

    try:
        with planned_ahead([folder.config for folder in folders], planners) as plans:
            for folder, prepared in zip(folders, plans, strict=True):
                try:
                    job = folder.begin(torch.empty(0, device=place), callbacks, prepared)
                except (Exception, SystemExit) as error:
                    folder.release()
                    if failed is None:
                        raise
                    failed(folder, error)
                else:
                    jobs += [(folder, job)] if job is not None else []
        unfinished |= {id(job): (folder, job) for folder, job in jobs}
        before, began = sum(job.steps_done for _, job in jobs), time.monotonic()
        for precision in sorted({folder.config.train.precision for folder, _ in jobs}):
            some = [job for folder, job in jobs if folder.config.train.precision == precision]
            with Stop.watched() if stop is None else nullcontext(stop) as asker, asker.while_training():
                train_many(some, device=place, precision=precision, tick=keep)  # type: ignore[arg-type]
        taken = pace()
        for folder, job in list(unfinished.values()):
            folder.finish(job)
        return taken
    finally:
        for folder in folders:
            folder.release()


@cache
def source() -> str:
    """Twelve letters that tell whether two runs were made by the same code: a digest of the package's files."""
    home = Path(__file__).parents[1]
    whole = hashlib.sha256()
    for path in sorted(home.rglob("*.py"), key=lambda path: path.relative_to(home).as_posix()):
        whole.update(path.relative_to(home).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return whole.hexdigest()[:12]


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
        "source": source(),
        "plan": summarise(job.schedule),
    }
    for name, row in (("final", final), ("at_budget", budget)):
        values = attrs.asdict(row)
        values.pop("by_class")
        figures[name] = values
    return figures
