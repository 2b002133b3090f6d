"""Results by cell: which run is which cell of the paper's tables, and what its trials say together."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from attrs import field, frozen

from pipecycle.errors import InputError
from pipecycle.policies.registry import convert, defaults, parameters, policy_class
from pipecycle.reproduce import grid, paper
from pipecycle.reproduce.results import Results
from pipecycle.runs.config import BY_THE_MODEL, Config
from pipecycle.train.history import saturated
from pipecycle.world.lineage import Floats

if TYPE_CHECKING:
    import pandas

Kind = Literal["budget", "best", "literal", "late"]
"""Which number of a run: at the budget, the best until then, or where the paper's early stopping ends it."""
TEST = 1_000
"""Test samples of a trial (paper L334), where the results do not say."""
LEARNT = 50.0
"""A model of this accuracy (%) has learnt something."""


@frozen
class Value:
    """The mean of some trials."""

    mean: float
    sd: float | None
    """Over trials; None for one."""
    trials: int
    error: float
    """Twice the standard error of the mean."""

    def text(self, digits: int = 1) -> str:
        return f"{self.mean:.{digits}f}" + ("" if self.sd is None else f" ± {self.sd:.{digits}f}")


@frozen(eq=False, slots=False)
class Run:
    """The history of one trial, column by column, and what its plan says."""

    trial: int
    horizon: int
    slot: Floats
    energy: Floats
    accuracy: Floats
    best: Floats
    clients: Floats
    """Mean over the clients' own models; NaN where nobody looked."""
    budget: Floats
    diverged: bool
    plan: Mapping[str, Any]
    test: int = TEST
    """Test samples."""

    @cached_property
    def at_budget(self) -> int:
        """The row at the last slot within the budget, or the last one (ALGORITHMS.md 1.8)."""
        marked = np.flatnonzero(self.budget)
        return int(marked[0]) if len(marked) else len(self.slot) - 1

    @cached_property
    def regular(self) -> Any:
        """The rows that are not the extra one at the budget."""
        return np.flatnonzero(self.budget == 0)

    def stop(self, rule: Literal["literal", "late"]) -> int | None:
        """The row at which the paper's early stopping would have ended the run, if it would have."""
        seen: list[float] = []
        for row in self.regular:
            seen.append(float(self.accuracy[row]))
            if self.slot[row] < self.slot[self.at_budget] and saturated(seen, int(self.slot[row]), self.horizon, rule):
                return int(row)
        return None

    def value(self, kind: Kind = "budget") -> float:
        if kind == "best":
            return float(self.best[self.at_budget])
        if kind != "budget" and (row := self.stop(kind)) is not None:
            return float(self.accuracy[row])
        return float(self.accuracy[self.at_budget])

    @cached_property
    def noise(self) -> float:
        """Standard error of one trial's accuracy: the drawn test samples, and how much it still moves from checkpoint
        to checkpoint at the end."""
        share = min(max(self.value() / 100, 0.0), 1.0)
        last = self.accuracy[: self.at_budget + 1][-11:]  # with the row at the budget, which may show another chain
        moves = len(last) > 2 and not self.diverged  # a model that guesses one class has come to rest
        wobble = float(np.std(np.diff(last))) / math.sqrt(2) if moves else 0.0
        return math.hypot(100 * math.sqrt(share * (1 - share) / self.test), wobble)

    @property
    def fell_apart(self) -> bool:
        """Whether it had learnt before it diverged."""
        return self.diverged and self.reaches(LEARNT) is not None

    def reaches(self, target: float) -> int | None:
        """The first row within the budget at or above an accuracy."""
        found = np.flatnonzero(self.accuracy[: self.at_budget + 1] >= target)
        return int(found[0]) if len(found) else None

    def energy_to(self, target: float) -> float | None:
        row = self.reaches(target)
        return None if row is None else float(self.energy[row])

    @property
    def spent(self) -> float:
        """Energy within the budget; a run that diverged would have spent what its plan says."""
        return float(max(self.energy[self.at_budget], (self.plan.get("energy.spent") or 0.0) if self.diverged else 0.0))

    def cost(self, target: float) -> float:
        """Energy to an accuracy; a run that never gets there counts with what it spent."""
        needed = self.energy_to(target)
        return self.spent if needed is None else needed

    def slots_to(self, target: float, metric: Literal["accuracy", "clients"] = "clients") -> float | None:
        """Slots until an accuracy, linear between checkpoints."""
        x, y = self.line("slot", metric)
        above = np.flatnonzero(y >= target)
        if not len(above):
            return None
        k = int(above[0])
        if k == 0:
            return float(x[0])
        return float(x[k - 1] + (x[k] - x[k - 1]) * (target - y[k - 1]) / (y[k] - y[k - 1]))

    def line(
        self, axis: Literal["slot", "energy"], metric: Literal["accuracy", "clients"] = "accuracy"
    ) -> tuple[Floats, Floats]:
        """Regular checkpoints at which the metric is known; a run that diverged guesses on to the end of its plan."""
        rows = self.regular if axis == "slot" else np.arange(self.at_budget + 1)  # energy: up to the budget, with it
        x, y = getattr(self, axis)[rows], getattr(self, metric)[rows]
        known = np.isfinite(y)
        if self.diverged and len(x):
            end = float(self.plan.get("slots" if axis == "slot" else "energy.spent") or x[-1])
            guess = self.accuracy[rows][-1]
            x, y = np.append(x[known], [x[-1], end]), np.append(y[known], [guess, guess])
        else:
            x, y = x[known], y[known]
        kept = np.append(np.diff(x) > 0, True)[: len(x)]  # where energy stood still, the last checkpoint counts
        return x[kept], y[kept]

    @property
    def clients_at_end(self) -> float | None:
        """The clients' mean at the last look."""
        _, y = self.line("slot", "clients")
        return float(y[-1]) if len(y) else None


@frozen(eq=False)
class Cell:
    """The trials of one configuration."""

    runs: Mapping[int, Run]

    def __iter__(self) -> Iterator[Run]:
        return iter(self.runs.values())

    def __len__(self) -> int:
        return len(self.runs)

    def accuracy(self, kind: Kind = "budget") -> Value:
        return self.average([run.value(kind) for run in self])

    @property
    def clients(self) -> Value | None:
        """The mean over all clients' own models at the end."""
        found = [one for one in (run.clients_at_end for run in self) if one is not None]
        return self.average(found) if found else None

    def plan(self, name: str) -> float | None:
        """A figure of the plan, averaged."""
        found = [float(run.plan[name]) for run in self if run.plan.get(name) is not None]
        return float(np.mean(found)) if found else None

    def average(self, found: Sequence[float]) -> Value:
        """Accuracies of some of the trials together."""
        sd = float(np.std(found, ddof=1)) if len(found) > 1 else None
        noise = float(np.mean([run.noise for run in self]))
        return Value(float(np.mean(found)), sd, len(found), 2 * max(noise, sd or 0.0) / math.sqrt(len(found)))


Key = tuple[Any, ...]


@frozen(eq=False)
class Study:
    """The paper's cells and the parts of the sensitivity study, as far as there are results."""

    cells: Mapping[Key, Cell]
    grid: Mapping[tuple[str, str, int | None, float], Key]
    """Where distribution, scheme, groups and charging probability of the tables lead."""
    parts: Mapping[str, Sequence[Config]]
    world: Mapping[str, Any]
    """What all runs have in common, by column."""
    left_out: int
    """Runs in the file that belong to another world."""
    pieces: Sequence[Mapping[str, Any]] = field(factory=list)
    precisions: Mapping[str, Mapping[Key, Cell]] = field(factory=dict)
    """The same cells from runs that differ in the precision of their products only."""
    sources: Mapping[str, int] = field(factory=dict)
    """Runs by the code that made them."""

    def cell(self, distribution: str, policy: str, groups: int | None, delta: float) -> Cell | None:
        key = self.grid.get((distribution, policy, groups, delta))
        return None if key is None else self.cells.get(key)

    def value(self, distribution: str, policy: str, groups: int | None, delta: float) -> Value | None:
        """The accuracy at the budget, if the cell was run."""
        found = self.cell(distribution, policy, groups, delta)
        return None if found is None else found.accuracy()

    @property
    def trials(self) -> tuple[int, int]:
        """The fewest and the most trials of a cell of the tables that was run at all."""
        counts = [len(self.cells[key]) for key in self.grid.values() if key in self.cells]
        return (min(counts), max(counts)) if counts else (0, 0)

    @property
    def strangers(self) -> int:
        """Runs of this world that are in none of the tables."""
        known = {*self.grid.values(), *(key_of_config(one) for part in self.parts.values() for one in part)}
        return sum(len(cell) for key, cell in self.cells.items() if key not in known)

    @property
    def rows(self) -> list[tuple[str, int | None]]:
        """Schemes and groups as tables list them: the paper's in its order, then those of ours that were run."""
        printed = [(row.policy, row.groups) for row in paper.TABLE_I]
        run = [(scheme, groups) for (_, scheme, groups, _), key in self.grid.items() if key in self.cells]
        return list(dict.fromkeys([*printed, *run]))

    @property
    def filled(self) -> int:
        """Cells of the grid with at least one trial."""
        return sum(key in self.cells for key in self.grid.values())


SAME = ("world.", "data.", "train.", "look.every", "look.early_stop")
VARIED = ("world.trial", "world.slots", "world.harvest", "data.alpha", "train.distillation")


def study(results: Results) -> Study:
    """Results sorted into cells.  A run belongs to a cell by its policy, settings, harvest and distribution; where the
    file holds runs of several worlds (data, model, precision, horizon ...), the one with most runs counts."""
    first = results.frame.drop_duplicates("identity") if len(results.frame) else results.frame
    kept, world = _one_world(first)
    histories = _histories(results.frame) if len(kept) else {}
    others = {precision: _sorted(some, histories) for precision, some in _other_precisions(first, kept).items()}
    compared = sum(len(cell) for cells in others.values() for cell in cells.values())
    wanted = grid.read(grid.experiment(grid.PAPER), "1").runs.values()
    mixed = [one.changed({"rotation": "spread", "relay_mix": 0.5}) for one in wanted if one.policy == "pipecycle"]
    places = {grid.place(one): key_of_config(one) for one in wanted}
    extra = {grid.place(one): key_of_config(one) for one in mixed}
    sweep = grid.read(grid.experiment(grid.SENSITIVITY), "1")
    parts = {name: [sweep.runs[run] for run in runs] for name, runs in sweep.parts.items()}
    left_out = len(first) - len(kept) - compared
    cells = _sorted(kept, histories)
    places |= {place: key for place, key in extra.items() if key in cells}
    return Study(cells, places, parts, world, left_out, results.pieces, others, results.sources)


def trials_by_cell(results: Results, world: Mapping[str, Any]) -> dict[Key, Cell]:
    """The cells of the runs whose columns say what `world` does."""
    first = results.frame.drop_duplicates("identity") if len(results.frame) else results.frame
    for name, value in world.items():
        column = first[name] if name in first else first["identity"].map(lambda _: None)
        first = first[column.isna() if value is None else column == value]
    histories = _histories(results.frame[results.frame["identity"].isin(first["identity"])]) if len(first) else {}
    return _sorted(first, histories)


def _sorted(runs: pandas.DataFrame, histories: Mapping[str, Mapping[str, Floats]]) -> dict[Key, Cell]:
    """Runs as trials of their cells."""
    cells: dict[Key, dict[int, Run]] = {}
    for values in runs.to_dict("records"):
        record = {str(name): value for name, value in values.items()}
        run = _run(histories[str(record["identity"])], record)
        cells.setdefault(key_of(record), {})[run.trial] = run
    return {key: Cell(dict(sorted(trials.items()))) for key, trials in cells.items()}


def key_of_config(config: Config) -> Key:
    """What makes two runs trials of the same cell, whatever the data and the size of the world."""
    settings = {key: value for key, value in config.stated().items() if key not in BY_THE_MODEL}
    distillation = config.train.distillation if config.policy == "flda" else None
    return _key(config.policy, settings, config.world.harvest, config.data.alpha, distillation, config.look.served)


def key_of(record: Mapping[str, Any]) -> Key:
    """The same of a row of results.  A setting that the results do not mention has its default."""
    policy = str(record["policy"])
    try:
        kind = policy_class(policy)
        usual, kinds = defaults(kind), parameters(kind)
    except InputError:  # a policy of somebody's own, which is not here
        usual, kinds = {}, {}
    settings = {name[7:]: _known(record, name) for name in record if name.startswith("policy.")}
    for name, value in settings.items():
        if isinstance(value, str) and name in kinds:  # a column that holds numbers and words is text
            settings[name] = convert(name, value, kinds[name])
    stated = {
        name: value
        for name, value in settings.items()
        if value is not None and name not in BY_THE_MODEL and value != usual.get(name)
    }
    distillation = _known(record, "train.distillation") if policy == "flda" else None
    place = _known(record, "world.harvest"), _known(record, "data.alpha")
    return _key(policy, stated, *place, distillation, _known(record, "look.served"))


def _key(policy: str, settings: Mapping[str, Any], *rest: Any) -> Key:
    return (policy, tuple(sorted(settings.items())), *rest)


def _known(record: Mapping[str, Any], name: str) -> Any:
    value = record.get(name)
    value = value.item() if isinstance(value, np.generic) else value
    return None if value is None or (isinstance(value, float) and math.isnan(value)) else value


def _one_world(first: pandas.DataFrame) -> tuple[pandas.DataFrame, dict[str, Any]]:
    """The runs of the world that most of them share, and what that world is."""
    import pandas

    if not len(first):
        return first, {}
    columns = [str(name) for name in first.columns if str(name).startswith(SAME) and name not in VARIED]
    kept = _most(first, columns)
    # The horizon belongs to the world too, but each distribution has its own.
    alpha = kept["data.alpha"] if "data.alpha" in kept else pandas.Series(np.nan, kept.index)
    halves = [_most(half, ["world.slots"]) for half in (kept[alpha.isna()], kept[alpha.notna()]) if len(half)]
    slots = {str(int(half["world.slots"].iloc[0])): None for half in halves}
    kept = kept[kept.index.isin([at for half in halves for at in half.index])]
    about = {name: _known(dict(kept.iloc[0]), name) for name in columns}
    return kept, {**about, "world.slots": " / ".join(slots)}


def _other_precisions(first: pandas.DataFrame, kept: pandas.DataFrame) -> dict[str, pandas.DataFrame]:
    """Runs that would be in the same world but for the precision of their products."""
    if not len(kept):
        return {}
    columns = [str(name) for name in first.columns if str(name).startswith(SAME)]
    same = [name for name in columns if name not in VARIED and name != "train.precision"]
    marks = first[same].astype(str).agg("|".join, axis=1)
    near = first[(marks == marks[kept.index[0]]) & ~first.index.isin(kept.index)]
    near = near[near["world.slots"].isin(kept["world.slots"])]
    return {str(name): some for name, some in near.groupby("train.precision") if len(some)}


def _most(frame: pandas.DataFrame, columns: Sequence[str]) -> pandas.DataFrame:
    """The rows that agree in some columns with most others; the first such where two are equally common."""
    marks = frame[list(columns)].astype(str).agg("|".join, axis=1)
    counts = marks.value_counts(sort=False)
    return frame[marks == counts.idxmax()]


COLUMNS = ("slot", "energy", "accuracy", "best", "clients_accuracy", "budget", "diverged")


def _histories(frame: pandas.DataFrame) -> dict[str, dict[str, Floats]]:
    """The metrics of every run by its identity, in the order of slots, the row at the budget after the regular one."""
    import pandas

    codes, names = pandas.factorize(frame["identity"])
    columns = {
        name: frame[name].to_numpy(np.float64, na_value=np.nan) if name in frame else np.full(len(frame), np.nan)
        for name in COLUMNS
    }
    order = np.lexsort((columns["budget"], columns["slot"], codes))
    ends = np.searchsorted(codes[order], np.arange(1, len(names) + 1))
    parts = {name: np.split(column[order], ends[:-1]) for name, column in columns.items()}
    return {str(name): {key: parts[key][place] for key in COLUMNS} for place, name in enumerate(names)}


def _run(history: Mapping[str, Floats], about: Mapping[str, Any]) -> Run:
    return Run(
        trial=int(about["world.trial"]),
        horizon=int(about["world.slots"]),
        slot=history["slot"],
        energy=history["energy"],
        accuracy=history["accuracy"],
        best=history["best"],
        clients=history["clients_accuracy"],
        budget=history["budget"],
        diverged=bool((history["diverged"] == 1).any()),
        plan={name[5:]: _known(about, name) for name in about if name.startswith("plan.")},
        test=int(_known(about, "test_samples") or TEST),
    )
