"""Runs side by side, in memory or from their folders, and many of them trained in this process."""

from __future__ import annotations

import signal
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import frozen

from pipecycle.checks import made
from pipecycle.errors import InputError, shown
from pipecycle.runs.config import Config
from pipecycle.runs.records import Group, Record, grouped, load
from pipecycle.runs.run import job_of, train_folders
from pipecycle.runs.sweep import Sweep, check_effects, expand, read_sweep
from pipecycle.schedule.schedule import Schedule
from pipecycle.screen import training
from pipecycle.showing import Shown
from pipecycle.stopping import Interrupted, Terminated
from pipecycle.train.history import History
from pipecycle.words import plural

if TYPE_CHECKING:
    import pandas

Run = History | Schedule


@frozen(eq=False, slots=False, repr=False)
class Comparison(Shown):
    """Runs that differ by scheduler or settings, each on one or more trials.

    `compare` and `sweep` return one.  `Comparison.of` takes whatever was planned or trained in Python, with devices
    that differ, say:

    >>> from pipecycle import Comparison, Watch, plan, problem, train
    >>> learnt = problem("digits", clients=8)
    >>> slow = plan("fedavg", 1.0, 8, 300, session=20)
    >>> mixed = plan("fedavg", 1.0, 8, 300, session=[10, 20] * 4, samples=[1] * 8)
    >>> runs = {"all slow": train(slow, learnt, Watch(every=100)), "half fast": train(mixed, learnt, Watch(every=100))}
    >>> result = Comparison.of(runs)
    >>> result.table()
    """

    groups: tuple[Group, ...]
    """The trials of each scheduler and setting."""

    @classmethod
    def of(cls, runs: Iterable[Run] | Mapping[str, Run | Sequence[Run]]) -> Comparison:
        """From histories or schedules; a mapping gives them names, and several trials to a name."""
        if isinstance(runs, Mapping):
            named = {name: [given] if isinstance(given, Run) else list(given) for name, given in runs.items()}
            if not all(named.values()):
                raise InputError("a comparison needs at least one run under every name")
            return cls(tuple(Group(name, _trials(name, given)) for name, given in named.items()))
        return cls(tuple(grouped(map(_record, runs))))

    @classmethod
    def load(cls, *paths: str | Path) -> Comparison:
        """From run folders, folders that hold run folders, or saved schedules."""
        return cls(tuple(load(paths)))

    def frame(self) -> pandas.DataFrame:
        """All evaluations: scheduler, trial, slot, energy, accuracy, ..., and what schedulers differ in: `policy`,
        settings by their names, and fields such as `data.alpha`."""
        import pandas

        facts = [group.facts for group in self.groups]
        keys = [key for key in dict.fromkeys(key for some in facts for key in some) if not key.startswith("contents.")]
        varied = [key for key in keys if any(some.get(key) != facts[0].get(key) for some in facts)]
        frames = []
        for group in self.groups:
            for record in group.records:
                frame = record.frame()
                frame.insert(0, "scheduler", group.label)
                frame.insert(1, "trial", record.trial)
                for key in varied:
                    frame.insert(len(frame.columns), key.removeprefix("policy."), group.facts.get(key))
                frames.append(frame)
        return pandas.concat(frames, ignore_index=True)

    def table(self) -> pandas.DataFrame:
        """A row per scheduler: accuracy at the budget (or at the end), mean and deviation over the trials, and units
        spent by then; the best first."""
        import pandas

        rows = []
        for group in self.groups:
            accuracies = list(group.accuracies.values())
            spent = [float(metrics.energy[metrics.at_budget]) for metrics in group.metrics.values()]
            rows.append(
                {
                    "scheduler": group.label,
                    "mean": np.mean(accuracies) if accuracies else np.nan,
                    "std": np.std(accuracies, ddof=1) if len(accuracies) > 1 else np.nan,
                    "energy": np.mean(spent) if spent else np.nan,
                }
            )
        return pandas.DataFrame(rows).set_index("scheduler").sort_values("mean", ascending=False)

    def __repr__(self) -> str:
        trials = len({record.trial for group in self.groups for record in group.records})
        size = f"{plural(len(self.groups), 'scheduler')}, {plural(trials, 'trial')}"
        return f"Comparison({size})\n{self.table().round(2)}"


def _record(run: Run) -> Record:
    if isinstance(run, History):
        return Record.of(run)
    if isinstance(run, Schedule):
        return Record(None, run, None, None, None)
    raise InputError(f"{shown(run)}: needs a history that train() has returned, or a schedule of plan()")


def _trials(name: str, runs: Sequence[Run]) -> tuple[Record, ...]:
    records = sorted(map(_record, runs), key=lambda record: record.trial)
    numbers = [record.trial for record in records]
    if len(set(numbers)) < len(numbers):
        raise InputError(f"{shown(name)}: has trial {max(numbers, key=numbers.count)} twice, needs one run per trial")
    return tuple(records)


def trained(configs: Collection[Config], device: str = "auto") -> Comparison:
    """Plan and train configurations in this process, stacked on one device, without files."""
    from pipecycle.train.engine import train_many

    with training(plural(len(configs), "run")) as tick:
        jobs = [(config, job_of(config)) for config in configs]
        for precision in sorted({config.train.precision for config, _ in jobs}):
            some = [job for config, job in jobs if config.train.precision == precision]
            train_many(some, device=device, precision=precision, tick=tick)  # type: ignore[arg-type]
    return Comparison(tuple(grouped(Record.of(job.history, config) for config, job in jobs)))


def sweep(
    matrix: Mapping[str, Sequence[Any]] | str | Path,
    trials: int | Sequence[int] | None = None,
    *,
    base: Config | None = None,
    out: str | Path | None = None,
    device: str = "auto",
) -> Comparison:
    """Train every combination of a matrix of settings, or of a sweep file, in this process.

    With `out`, runs are written to folders there: finished ones are not trained again, and those that Ctrl-C or a kill
    interrupted resume.
    `pipecycle sweep` uses all cores; this uses one process.

    >>> from pipecycle import sweep
    >>> matrix = {"policy": ["pipecycle+"], "groups": [2, 5], "clients": [8], "slots": [200], "delta": [1.0]}
    >>> sweep(matrix, trials=2).table()
    """
    if isinstance(matrix, str | Path):
        if base is not None:
            raise InputError("base: a sweep file has its own [base]; give one of them, not both")
        numbers = list(range(trials)) if isinstance(trials, int) else trials
        runs: Sweep = read_sweep(Path(matrix), numbers)
    else:
        made(Mapping, "{'groups': [2, 5]}, or a sweep file").of("matrix", matrix)
        runs = expand(base or Config(), matrix, trials)
        check_effects(runs.runs.values())
    if out is None:
        return trained(runs.runs.values(), device)
    folders = runs.folders(Path(out))
    with training(plural(sum(not folder.finished for folder in folders), "run")) as show:
        try:
            train_folders(folders, device=device, show=show)
        except Interrupted as stop:  # what Python users expect
            raise KeyboardInterrupt if stop.number == signal.SIGINT else SystemExit(128 + stop.number) from None
        except Terminated:  # by a second SIGTERM
            raise SystemExit(128 + signal.SIGTERM) from None
    return Comparison.load(*(folder.path for folder in folders))
