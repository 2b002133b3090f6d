"""A run in a folder: configuration, schedule, metrics, model, and a checkpoint while it is not finished."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
from attrs import frozen

from pipecycle.checks import seconds
from pipecycle.errors import InputError, shown
from pipecycle.files import tidy, using, write
from pipecycle.policies.registry import policy_class, revision
from pipecycle.runs import folders as disk
from pipecycle.runs.config import Config, TrainSection, read_recorded
from pipecycle.runs.contents import changes, sealed
from pipecycle.runs.planning import judged_of, plan_of, planned_ahead
from pipecycle.schedule.schedule import Schedule
from pipecycle.schedule.summary import summarise
from pipecycle.stopping import Interrupted, Stop
from pipecycle.words import some

if TYPE_CHECKING:
    from pipecycle.train.engine import Engine
    from pipecycle.train.job import Job, Watch
    from pipecycle.train.problems import Problem, Training

CONTENTS = "\n[contents]\n"
Show = Callable[["Engine"], None]
Begun = Callable[[Sequence["RunFolder"]], None]
Failed = Callable[["RunFolder", BaseException], None]


@frozen
class Pace:
    """How fast runs were trained."""

    device: str
    runs: int
    steps: int
    seconds: float
    """From the first stack to the last evaluation; planning is not in it."""


def job_of(config: Config) -> Job:
    """The job of a configuration; nothing is written."""
    from pipecycle.train.job import Job

    learnt = problem_of(config)  # what is wrong with data and model is said before time is spent on planning
    return Job(plan_of(config), learnt, watch(config), name=config.policy)


def problem_of(config: Config) -> Problem:
    """What a configuration learns."""
    task, split = judged_of(config)  # what is wrong with them is said before torch is imported
    from pipecycle.train.problems import problem

    train, trial = config.train, config.world.trial
    return problem(task, train.model, trial=trial, split=split, training=training_of(train))


def training_of(train: TrainSection) -> Training:
    """How every client trains."""
    from pipecycle.train.problems import Training
    from pipecycle.train.sessions import LocalSGD

    sgd = LocalSGD(lr=train.lr, momentum=train.momentum, weight_decay=train.weight_decay, proximal=train.proximal)
    return Training(sgd, train.batch, train.replacement, train.lr_decay, train.distillation, train.augment)


def watch(config: Config) -> Watch:
    """When the models of a run are looked at."""
    from pipecycle.train.job import Watch

    return Watch(**attrs.asdict(config.look), budget=config.world.budget)


class RunFolder:
    """A run on disk: `begin` gives its job, new or resumed, `save` and `finish` write what comes out."""

    def __init__(self, path: Path, config: Config) -> None:
        self.path, self.config = path, sealed(config)
        self.schedule: Schedule | None = None
        """The plan, where somebody has made it already."""
        self.resumed: int | None = None
        """The slot of the last evaluation in the checkpoint that the run was resumed from."""
        self.note: str | None = None
        """What the user should know about the run that the folder holds."""
        self.checkpoint = path / disk.CHECKPOINT
        self.lock = disk.Lock(path)
        if self.outdated:
            self._compare(config)

    @property
    def outdated(self) -> bool:
        """Whether the folder holds a run with other code or data."""
        known = self.path / "config.toml"
        return known.exists() and known.read_text(errors="replace") != self.config.text()

    def _compare(self, given: Config) -> None:
        """Refuse a folder with another configuration; note one with other code or data."""
        known = self.path / "config.toml"
        text, mine = known.read_text(errors="replace"), self.config.text()
        if text.partition(CONTENTS)[0].rstrip() == mine.partition(CONTENTS)[0].rstrip():
            before = read_recorded(known).contents
            if before or not disk.finished(self.path):
                why = changes(before, self.config.contents) if before else "it does not say with which files it began"
                self.note = f"{self.path}: {why}, so the run starts again"
            else:  # made before contents were recorded: it may be up to date, so its result is kept
                listed = ", ".join(sorted(self.config.contents)[:3])
                self.note = f"{self.path}: does not record with which {listed} it was made (--fresh trains it again)"
                self.config = given
            return
        number = revision(policy_class(self.config.policy))
        former = text == mine.replace(f"revision = {number}\n", "", 1)
        earlier = f"of an earlier {self.config.policy}, which was another algorithm"
        other = earlier if former else f"with another configuration{_difference(known, self.config)}"
        raise InputError(f"{self.path}: holds a run {other}; choose another folder, or --fresh")

    @property
    def finished(self) -> bool:
        return disk.finished(self.path, self.config.text())

    @property
    def damage(self) -> str | None:
        """Why the result cannot be used, if there is one that cannot."""
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
        """Lock the folder (`Busy` if another process holds it); false if the run is finished."""
        self.lock.take()
        if self.finished:
            self.checkpoint.unlink(missing_ok=True)  # whoever finished it was killed before it could do so
            self.release()
            return False
        tidy(self.path)
        tidy(self.checkpoint.parent)
        return True

    def release(self) -> None:
        self.lock.release()

    def tidy(self) -> None:
        """Remove what a process has left that was killed when it had just finished the run."""
        if (self.checkpoint.exists() or self.lock.path.exists()) and self.finished:
            with suppress(disk.Busy):
                self.take()

    def begin(self, planned: Callable[[], Schedule], device: str) -> Job | None:
        """The run's job, at the point that its checkpoint holds if there is one; None if the run is finished."""
        # An existing folder is locked first; a new one is made only once the run is known to be sound.
        if self.path.exists() and not self.take():
            return None
        learnt, schedule = problem_of(self.config), self.schedule or planned()
        import torch

        from pipecycle.train.checkpoint import load_job
        from pipecycle.train.engine import pick_device
        from pipecycle.train.job import Job

        like = torch.empty(0, device=pick_device(device))
        job = Job(schedule, learnt, watch(self.config), name=self.path.name)
        with using(self.path, "written"):
            self.checkpoint.parent.mkdir(parents=True, exist_ok=True)
        if not self.take():
            return None
        (self.path / "result.json").unlink(missing_ok=True)  # it is damaged, or of other code or data
        if self.outdated:
            for name in (disk.CHECKPOINT, "metrics.csv", "model.safetensors"):
                (self.path / name).unlink(missing_ok=True)
        write(self.path / "config.toml", self.config.text())
        schedule.save(self.path / "schedule.npz")
        self.identity = f"{self.config.identity()}/{schedule.digest()}"
        if self.checkpoint.exists():
            load_job(job, self.checkpoint, self.identity, like)
            self.resumed = job.history.final.slot if job.history.rows else 0
        return job

    def save(self, job: Job) -> None:
        """Write the checkpoint and the metrics so far."""
        from pipecycle.train.checkpoint import save_job

        self.lock.check()
        save_job(job, self.checkpoint, self.identity)
        write(self.path / "metrics.csv", job.history.csv())

    def finish(self, job: Job) -> None:
        """Write the results, remove the checkpoint and release the folder."""
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
    failed: Failed | None = None,
    planners: int = 1,
    stop: Stop | None = None,
    begun: Begun | None = None,
) -> Pace:
    """Finish all runs, stacked, saving every `save_every` seconds and when asked to stop: by `stop`, or without
    it by Ctrl-C and SIGTERM.

    A run that cannot begin, whatever the reason (`Busy`: another process has it), is handed to `failed`, if there is
    one, and does not stop the others.  `begun` is given those that could, each with the slot that it resumes from.
    `planners` is how many processes plan.  Returns how fast it went."""
    seconds.of("save_every", save_every)
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
            for folder, planned in zip(folders, plans, strict=True):
                try:
                    job = folder.begin(planned, device)
                except (Exception, SystemExit) as error:
                    folder.release()
                    if failed is None:
                        raise
                    failed(folder, error)
                else:
                    jobs += [(folder, job)] if job is not None else []
        if begun is not None:
            begun([folder for folder, _ in jobs])
        import torch

        from pipecycle.train.engine import pick_device, train_many

        place = pick_device(device)
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


def _difference(file: Path, mine: Config) -> str:
    """Where a run's recorded configuration differs from this one, in brackets; nothing if it cannot be read."""
    try:
        theirs = read_recorded(file)
    except InputError:
        return ""
    held, asked = ({"policy": it.policy, **it.stated(), **it.fields()} for it in (theirs, mine))
    keys = [key for key in {**held, **asked} if held.get(key) != asked.get(key)]
    words = [f"no {key}" if held.get(key) is None else f"{key} = {shown(held[key])}" for key in keys]
    return f" ({some(words, 3)})" if words else ""


@cache
def source() -> str:
    """A digest of the package's files, 12 letters: equal for runs made by the same code."""
    home = Path(__file__).parents[1]
    whole = hashlib.sha256()
    for path in sorted(home.rglob("*.py"), key=lambda path: path.relative_to(home).as_posix()):
        whole.update(path.relative_to(home).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return whole.hexdigest()[:12]


def result(job: Job) -> dict[str, Any]:
    """The closing figures of a job."""
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
    by_class = attrs.filters.exclude("by_class")
    rows = {"final": job.history.final, "at_budget": job.history.at_budget}
    return figures | {name: attrs.asdict(row, filter=by_class) for name, row in rows.items()}
