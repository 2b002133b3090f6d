"""One run in progress: its graph, its live weights and its history."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from attrs import asdict, evolve, field, frozen
from torch import Tensor

from pipecycle.checks import some_units
from pipecycle.errors import InputError, shown
from pipecycle.schedule.ancestry import owners
from pipecycle.schedule.averages import serve
from pipecycle.schedule.schedule import Schedule
from pipecycle.train.graph import Graph
from pipecycle.train.history import Checkpoint, History, Look, Row, Score, checkpoints, current_sessions
from pipecycle.train.pool import Pool
from pipecycle.train.problems import Problem, session_numbers
from pipecycle.train.recipes import evaluate, tabulate
from pipecycle.train.teachers import LogitTable
from pipecycle.world.lineage import Kind
from pipecycle.world.streams import Floats, Ints


class Probe(Protocol):
    """Sees updates and versions as they are made."""

    sessions: Ints
    versions: Ints

    def session(self, session: int, update: Tensor) -> None: ...

    def version(self, version: int, row: Tensor) -> None: ...


@frozen
class Watch(Look):
    """What is evaluated, and when."""

    budget: float | None = field(default=None, validator=some_units)
    """Units; adds a checkpoint at the end of the last slot within them."""

    @property
    def facts(self) -> dict[str, Any]:
        """What a report says of it."""
        values = {f"look.{key}": value for key, value in asdict(self).items() if key != "budget"}
        return values if self.budget is None else {"world.budget": self.budget, **values}


class Job:
    """A schedule to be executed on a problem."""

    def __init__(
        self,
        schedule: Schedule,
        problem: Problem,
        watch: Watch | None = None,
        *,
        name: str = "",
        probe: Probe | None = None,
    ) -> None:
        for what, given, kind, maker in (
            ("schedule", schedule, Schedule, "plan() makes one"),
            ("problem", problem, Problem, "problem() makes one"),
            ("watch", watch or Watch(), Watch, "Watch(every=100), say"),
        ):
            if not isinstance(given, kind):
                raise InputError(f"{what} = {shown(given)}: needs a {kind.__name__} ({maker})")
        if schedule.clients != len(problem.split):
            raise InputError(f"the schedule has {schedule.clients} clients and the split {len(problem.split)}")
        used = problem.samples(schedule.length)
        if schedule.samples.ndim == 0 and used.min() < used.max():
            raise InputError(
                f"the schedule was planned without samples, so that all updates count alike, but sessions use "
                f"{used.min():,} to {used.max():,}: give plan() samples=problem.samples(session), or ones"
            )
        self.problem, self.watch = problem, watch or Watch()
        self.name = name or schedule.policy
        self.probe = probe
        watch = self.watch
        points = checkpoints(schedule, watch.every, watch.budget, watch.clients_every)
        plan = schedule
        if watch.served is not None:
            schedule, versions = serve(schedule, watch.served, [point.slot for point in points])
            points = [evolve(point, version=version) for point, version in zip(points, versions, strict=True)]
        self.schedule = schedule
        horizon = int(schedule.meta.get("horizon", schedule.slots))  # a budget may have cut the schedule short
        self.history = History(points, watch.early_stop, horizon, schedule=plan, facts=problem.facts | watch.facts)
        self._current = {point.slot: current_sessions(schedule, point.slot) for point in points if point.clients}
        self.observed = np.unique(np.concatenate([[-1], *self._current.values()]))[1:]
        observed_start = bool(self._current) and any((last < 0).any() for last in self._current.values())
        wanted = np.unique([point.version for point in points] + [0] * observed_start)
        extra = (self.observed, None) if probe is None else (np.union1d(self.observed, probe.sessions), probe.versions)
        self.graph = Graph(schedule, wanted, *extra)
        self.numbers = session_numbers(schedule)
        self.lengths = np.broadcast_to(schedule.length, (schedule.clients,))
        self.steps_total = self._steps(np.flatnonzero(self.graph.session_needed))
        self.steps_done = 0
        self.scores: dict[int, Score] = {}  # of versions
        self.client_scores: dict[int, float] = {}  # accuracy of sessions' own models
        self.snapshots: dict[int, Tensor] = {}  # versions that were looked at and are not recorded yet
        self.model: Tensor | None = None
        """What was served at the last checkpoint, once the job is over."""
        self._points = iter(points)
        self._next: Checkpoint | None = next(self._points)

    def begin(self, like: Tensor) -> None:
        """Put the initial model on the device; everything starts from it."""
        self.versions, self.updates = Pool(self.problem.size, like), Pool(self.problem.size, like)
        self.tables: dict[int, LogitTable] = {}
        self.logits: dict[int, tuple[Tensor, Tensor]] = {}  # sums and counts of sessions that wait for their table
        record = self.schedule.versions
        self.coefficients = torch.from_numpy(record.coefficient * self._present_rates()).to(like)
        self.weights = torch.from_numpy(record.weight.copy()).to(like)
        self.versions.put([0], self.problem.initial.to(like)[None])
        if self.probe is not None:
            self.probe.version(0, self.versions[0])

    def steps_of(self, session: int) -> int:
        return int(self.lengths[self.schedule.sessions.client[session]])

    def kind(self, session: int) -> tuple[int, bool, bool]:
        """What decides by which operations a session is computed: its steps, whether it has a teacher, and whether its
        logits are collected."""
        taught = self.graph.teacher[session] >= 0 and self.problem.training.distillation != 0.0
        return self.steps_of(session), bool(taught), bool(self.graph.table[session] >= 0)

    def _steps(self, sessions: Ints) -> int:
        return int(self.lengths[self.schedule.sessions.client[sessions]].sum())

    def lr_of(self, session: int) -> float:
        training = self.problem.training
        return float(training.sgd.lr * training.lr_decay ** (int(self.schedule.sessions.start[session]) / 1000))

    def _present_rates(self) -> Floats:
        """A factor on every coefficient: remembered updates count at the present learning rate (Gu et al. 2021 store
        update / lr and multiply by the lr of the round), which is that of a session that is received now."""
        record, decay = self.schedule.versions, self.problem.training.lr_decay
        factors = np.ones(len(record.base))
        terms = np.flatnonzero(record.kind[record.base] == Kind.MEMORY)
        if decay != 1.0 and len(terms):
            user = owners(record.base_at)[terms]
            session = record.update[record.update_at[record.base[terms]]]  # a memory is one update
            age = record.made[user] - self.lengths.max() - self.schedule.sessions.start[session]
            factors[terms] = decay ** (np.maximum(age, 0) / 1000)
        return factors

    @property
    def over(self) -> bool:
        """Whether nothing is left to do: a probe may want sessions that no checkpoint depends on."""
        return self.history.ended is not None and (self.probe is None or not self.graph.remaining)

    @property
    def progress(self) -> float:
        return self.steps_done / max(1, self.steps_total)

    # What has been computed comes in here.

    def trained(self, sessions: list[int], updates: Tensor, logits: tuple[Tensor, Tensor] | None) -> None:
        """The updates of some sessions, one row each, and their logits by label if they were asked for."""
        self.updates.put(sessions, updates)
        if self.probe is not None:
            for session, row in zip(sessions, updates, strict=True):
                self.probe.session(session, row)
        for index, session in enumerate(sessions):
            if logits is not None and self.graph.table[session] >= 0:
                self.logits[session] = (logits[0][index], logits[1][index])
            self.steps_done += self.steps_of(session)
            version, table, reference_used = self.graph.session_trained(session)
            if not reference_used:
                self.versions.drop([int(self.graph.reference[session])])
            maker = int(self.graph.maker[session])
            if maker < 0 or not self.graph.version_needed[maker]:
                self.updates.drop([session])
            if version is not None:
                self.make(version)
            if table is not None:
                self.tabulate(table)

    def catch_up(self) -> None:
        """Make what only waits to be made."""
        for version in self.graph.makeable():
            if not self.graph.version_done[version]:
                self.make(version)

    def make(self, version: int) -> None:
        """Compute a version by its recipe, and then those that only waited for it."""
        waiting = [version]
        while waiting:
            version = waiting.pop(0)
            row = self._evaluate(version)
            self.versions.put([version], row[None])
            if self.probe is not None:
                self.probe.version(version, row)
            updates = self.schedule.versions.update
            at = self.schedule.versions.update_at
            self.updates.drop(updates[at[version] : at[version + 1]].tolist())
            followers, free = self.graph.version_made(version)
            self.versions.drop(free)
            waiting += followers
            if not self.graph.version_users[version]:
                self.versions.drop([version])

    def _evaluate(self, version: int) -> Tensor:
        record = self.schedule.versions
        bases = slice(int(record.base_at[version]), int(record.base_at[version + 1]))
        terms = slice(int(record.update_at[version]), int(record.update_at[version + 1]))
        return evaluate(
            self.versions,
            record.base[bases].tolist(),
            self.coefficients[bases],
            self.updates,
            record.update[terms].tolist(),
            self.weights[terms],
            plain=bases.stop - bases.start == 1 and record.coefficient[bases.start] == 1.0,
        )

    def tabulate(self, table: int) -> None:
        follower: int | None = table
        record, sessions = self.schedule.tables, self.schedule.sessions
        while follower is not None:
            table = follower
            mine = record.session[record.session_at[table] : record.session_at[table + 1]].tolist()
            clients = torch.from_numpy(sessions.client[mine].astype(np.int64))
            logits = [self.logits.pop(session) for session in mine]
            self.tables[table] = tabulate(self.tables.get(table - 1), self.schedule.clients, clients, logits)
            follower = self.graph.table_made(table)
        self._forget_tables()

    def _forget_tables(self) -> None:
        """Keep the newest, which the next one builds on, and those that sessions are still to learn from."""
        newest = max(self.tables)
        open_sessions = self.graph.session_needed & ~self.graph.session_done
        used = set(np.unique(self.graph.teacher[open_sessions]).tolist()) | {newest}
        self.tables = {table: value for table, value in self.tables.items() if table in used}

    # Looking.

    def to_see(self) -> list[int]:
        """Versions that exist, are wanted and have not been looked at."""
        graph = self.graph
        return np.flatnonzero(graph.unseen & graph.version_done).tolist()

    def looked(self, versions: list[int], rows: Tensor) -> None:
        """Some of them are being evaluated: their rows are kept until the checkpoint is recorded."""
        for version, row in zip(versions, rows, strict=True):
            self.snapshots[version] = row
            if not self.graph.seen(version):
                self.versions.drop([version])

    def report(self) -> None:
        """Record the checkpoints whose figures are there, in order; stop where a rule says so."""
        while self.history.ended is None and self._next is not None and self._next.version in self.scores:
            point, clients = self._next, None
            if point.clients:
                last = self._current[point.slot]
                if not all(session < 0 or session in self.client_scores for session in last.tolist()):
                    return
                clients = self._clients_accuracy(last)
            self.history.record(point, self.scores[point.version], clients)
            self._next = next(self._points, None)
            if self.history.ended is not None:
                self.model = self.snapshots[point.version].clone()
                self.snapshots.clear()
            elif self._next is not None and self._next.version != point.version:
                self.snapshots.pop(point.version, None)

    def recall(self, rows: list[Row], ended: str | None) -> None:
        """What was recorded before a resume."""
        self.history.rows, self.history.ended = rows, ended
        for _ in rows:
            self._next = next(self._points, None)

    def _clients_accuracy(self, last: Ints) -> float:
        initial = self.scores[0].accuracy if (last < 0).any() else 0.0
        values = [initial if session < 0 else self.client_scores[session] for session in last.tolist()]
        return float(np.mean(values))
