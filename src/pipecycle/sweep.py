"""Many runs from one file: a matrix of settings, executed on whatever there is."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
from attrs import field, frozen

from pipecycle.checks import MOST_RUNS, at_least
from pipecycle.config import SECTIONS, Config, read_toml, sections
from pipecycle.errors import InputError, shown
from pipecycle.registry import build, convert, nearest, parameters, policy_class, settings
from pipecycle.runs import RunFolder, planning

if TYPE_CHECKING:
    import pandas

ALIASES = {"data": "data.name", "alpha": "data.alpha", "model": "train.model", "trial": "world.trial"}
WORDS = ("clients", "session", "slots", "budget", "harvest", "capacity", "initial")


@frozen
class Sweep:
    """Configurations by the name of their folder."""

    runs: Mapping[str, Config]
    parts: Mapping[str, Sequence[str]] = field(factory=dict)
    """Names of the runs of each part of a file that has parts; a run may belong to several."""

    def folders(self, home: Path) -> list[RunFolder]:
        return [RunFolder(home / name, config) for name, config in self.runs.items()]

    def __len__(self) -> int:
        return len(self.runs)


def read_sweep(path: Path, trials: Sequence[int] | None = None) -> Sweep:
    """A file with `[base]` sections, a `[matrix]` of lists, `trials`, and `[[exclude]]` and `[[when]]` tables.

    `[[parts]]` are several matrices in one file, each with a name; what stands above them holds for all.  `trials`
    given here wins over the file's."""
    values = read_toml(path)
    parts = _tables(values.pop("parts", []), f"{path}: parts")
    base = sections(_table(values.pop("base", {}), f"{path}: base"), str(path))
    whole = _part(values, str(path), trials)
    own_keys = (key for part in parts for key in _table(part.get("matrix", {}), f"{path}: matrix"))
    known_keys = {"policy", *whole["matrix"], *own_keys}
    for rule in [*whole["exclude"], *whole["when"], *(rule for part in parts for rule in _rules(part))]:
        for key in rule:
            if key != "set" and key not in known_keys:
                raise InputError(f"{path}: a rule about {key}: {nearest(key, dict.fromkeys(known_keys))}")
    if not parts:
        return expand(base, **whole)
    runs: dict[str, Config] = {}
    members: dict[str, list[str]] = {}
    for number, part in enumerate(parts, 1):
        name = str(part.pop("name", number))
        own = _part(part, f"{path}: part {name}", None)
        matrix = {**whole["matrix"], **own["matrix"]}
        rules = {key: [*whole[key], *own[key]] for key in ("exclude", "when")}
        found = expand(base, matrix, whole["trials"], **rules).runs
        known = {config.identity(): run for run, config in runs.items()}
        members[name] = [known.get(config.identity(), run) for run, config in found.items()]
        runs |= {run: config for run, config in found.items() if config.identity() not in known}
    return Sweep(runs, members)


def _rules(part: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [*_tables(part.get("exclude", []), "exclude"), *_tables(part.get("when", []), "when")]


def _table(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"{where} = {shown(value)}: needs a table")
    return value


def _tables(value: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise InputError(f"{where} = {shown(value)}: needs tables, each under [[{where.rpartition(' ')[2]}]]")
    return value


def _part(values: dict[str, Any], path: str, trials: Sequence[int] | None) -> dict[str, Any]:
    """The arguments of `expand` in a file's table."""
    out = {
        "matrix": _table(values.pop("matrix", {}), f"{path}: matrix"),
        "trials": values.pop("trials", 1),
        "exclude": _tables(values.pop("exclude", []), f"{path}: exclude"),
        "when": _tables(values.pop("when", []), f"{path}: when"),
    }
    if values:
        raise InputError(
            f"{path}: {shown(next(iter(values)))}: needs one of base, matrix, trials, exclude, when, parts"
        )
    return out if trials is None else {**out, "trials": trials}


def expand(
    base: Config,
    matrix: Mapping[str, Sequence[Any]],
    trials: int | Sequence[int] = 1,
    exclude: Iterable[Mapping[str, Any]] = (),
    when: Iterable[Mapping[str, Any]] = (),
) -> Sweep:
    """Every combination.  A setting that a policy does not have (such as groups) does not multiply that policy.

    `exclude` drops the cells that a rule describes; `when` gives those that it describes what stands in its `set`."""
    for key, choices in matrix.items():
        if not isinstance(choices, list | tuple) or not choices:
            raise InputError(f"matrix.{key} = {shown(choices)}: needs a list of values")
    numbers = _trials(trials, prod(len(choices) for choices in matrix.values()))
    dropped = [_Rule(rule) for rule in exclude]
    special = [_Rule(rule) for rule in when]
    for rule in special:
        if not rule.given:
            raise InputError("[[when]]: needs a table called set")
    bare = {key for key in matrix if key != "policy" and "." not in key and key != "delta" and _field(key) is None}
    known: set[str] = set()
    runs: dict[str, Config] = {}
    for values in itertools.product(*matrix.values()):
        cell = dict(zip(matrix, values, strict=True))
        policy = cell.pop("policy", base.policy)
        owned = set(parameters(policy_class(policy)))
        known |= owned
        cell = {key: value for key, value in cell.items() if key not in bare or key in owned}
        described = {"policy": policy, **cell}
        if any(rule.describes(described) for rule in dropped):
            continue
        given: dict[str, Any] = {}
        for rule in special:
            if rule.describes(described):
                given |= rule.given
        start = base if policy == base.policy else attrs.evolve(base, policy=policy, settings={})
        config = start.changed(dict(_key(key, value) for key, value in (given | cell).items()))
        for trial in numbers:
            one = config.changed({"world.trial": trial})
            words = [policy, *(f"{key}-{value}" for key, value in cell.items()), f"trial-{trial}", one.identity()[:8]]
            runs.setdefault("_".join(words).replace("/", "-").replace(" ", ""), one)
    for key in bare - known:
        raise InputError(f"matrix.{key}: is neither a field nor a setting of any policy in the matrix")
    if not runs:
        raise InputError("the sweep is empty: everything is excluded")
    return Sweep(runs)


def _trials(given: Any, cells: int) -> Sequence[int]:
    """The trials of every cell: a count, or a list; together there must not be more runs than anybody waits for."""
    numbers: Sequence[Any] = given if isinstance(given, list | tuple | range) else ()
    if isinstance(given, int) and not isinstance(given, bool):
        numbers = range(min(given, MOST_RUNS + 1))
    if not numbers:
        raise InputError(f"trials = {shown(given)}: needs at least 1, or a list of trials")
    for number in numbers if isinstance(numbers, list | tuple) else ():
        at_least(0).of("trials", number)
    if cells * len(numbers) > MOST_RUNS:
        raise InputError(f"the matrix has {cells:,} cells of {len(numbers):,} trials: needs at most {MOST_RUNS:,} runs")
    return numbers


class _Rule:
    """Which cells a table of an `exclude` or `when` list describes; a value may be a list of alternatives."""

    def __init__(self, table: Mapping[str, Any]) -> None:
        self.given: dict[str, Any] = dict(_table(table.get("set", {}), "[[when]] set"))
        self._wanted = {
            key: value if isinstance(value, list) else [value] for key, value in table.items() if key != "set"
        }

    def describes(self, cell: Mapping[str, Any]) -> bool:
        return all(key in cell and cell[key] in values for key, values in self._wanted.items())


def _field(key: str) -> str | None:
    return ALIASES.get(key) or (f"world.{key}" if key in WORDS else None)


def _key(key: str, value: Any) -> tuple[str, Any]:
    if key == "delta":
        return "world.harvest", f"bernoulli:{convert('delta', value, float)!r}"
    if key == "alpha" and value in ("iid", "none"):
        return "data.alpha", None
    return _field(key) or key, value


def check_runs(sweep: Sweep) -> None:
    """Refuse the whole sweep if one of its runs could not begin: what its policy, world and files do not allow."""
    seen: set[str] = set()
    for name, config in sweep.runs.items():
        key = attrs.evolve(config, world=attrs.evolve(config.world, trial=0)).text()
        if key in seen:
            continue
        seen.add(key)
        for file in (config.data.name, config.data.split):
            if file is not None and file.endswith((".npz", ".json")) and not Path(file).is_file():
                raise InputError(f"run {name}: {file}: there is no such file")
        if config.data.split is None:  # else the file says how many clients there are
            try:
                run = planning(config)
                run.policy.setup(run.world)
            except InputError as error:
                raise InputError(f"run {name}: {error}") from error


def flat(config: Config) -> dict[str, Any]:
    """Everything that a configuration says, one column each: policy, settings, then `world.slots` and so on."""
    out: dict[str, Any] = {"policy": config.policy}
    out |= {f"policy.{key}": value for key, value in settings(build(config.policy, config.settings)).items()}
    for section in SECTIONS:
        out |= {f"{section}.{key}": value for key, value in attrs.asdict(getattr(config, section)).items()}
    return out


def collect(folders: Sequence[RunFolder]) -> pandas.DataFrame:
    """All checkpoints of all finished runs, tidy: one row each, with the run's configuration and plan beside it."""
    import pandas

    frames = []
    for folder in folders:
        if folder.finished:
            frame = pandas.read_csv(folder.path / "metrics.csv")
            result, config = folder.result(), folder.config
            about = {"run": folder.path.name, "identity": config.identity(), "ended": result["ended"]}
            about |= {"steps": result["steps"], "test_samples": result.get("test_samples"), **flat(config)}
            about |= plan_columns(result.get("plan", {}))
            head = pandas.DataFrame({key: [value] * len(frame) for key, value in about.items()})
            frames.append(pandas.concat([head, frame], axis=1).dropna(axis=1, how="all"))
    return pandas.concat(frames, ignore_index=True) if frames else pandas.DataFrame()


def plan_columns(figures: Mapping[str, Any], prefix: str = "plan") -> dict[str, Any]:
    """The figures of a schedule that its configuration does not say, one column each: `plan.lag.mean` and so on."""
    out: dict[str, Any] = {}
    for key, value in figures.items():
        if isinstance(value, Mapping):
            if key != "settings":
                out |= plan_columns(value, f"{prefix}.{key}")
        elif key not in ("policy", "harvest", "clients", "trial", "budget"):
            out[f"{prefix}.{key}"] = value
    return out
