"""Many runs from one file: a matrix of settings, executed on whatever there is."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
from attrs import frozen

from pipecycle.config import Config, read_toml, sections
from pipecycle.errors import InputError
from pipecycle.registry import parameters, policy_class
from pipecycle.runs import RunFolder

if TYPE_CHECKING:
    import pandas

ALIASES = {"data": "data.name", "alpha": "data.alpha", "model": "train.model", "trial": "world.trial"}
WORDS = ("clients", "session", "slots", "budget", "harvest", "capacity", "initial")


@frozen
class Sweep:
    """Configurations by the name of their folder."""

    runs: Mapping[str, Config]

    def folders(self, home: Path) -> list[RunFolder]:
        return [RunFolder(home / name, config) for name, config in self.runs.items()]

    def __len__(self) -> int:
        return len(self.runs)


def read_sweep(path: Path) -> Sweep:
    """A file with `[base]` sections, a `[matrix]` of lists, `trials` and `[[exclude]]` tables."""
    values = read_toml(path)
    matrix, trials = values.pop("matrix", {}), values.pop("trials", 1)
    exclude, base = values.pop("exclude", []), values.pop("base", {})
    if values:
        raise InputError(f"{path}: {next(iter(values))}: needs one of base, matrix, trials, exclude")
    return expand(sections(base, str(path)), matrix, trials, exclude)


def expand(
    base: Config,
    matrix: Mapping[str, Sequence[Any]],
    trials: int | Sequence[int] = 1,
    exclude: Iterable[Mapping[str, Any]] = (),
) -> Sweep:
    """Every combination.  A setting that a policy does not have (such as groups) does not multiply that policy."""
    numbers = list(range(trials)) if isinstance(trials, int) else list(trials)
    for key, choices in matrix.items():
        if not isinstance(choices, list | tuple) or not choices:
            raise InputError(f"matrix.{key}: needs a list of values")
    if not numbers:
        raise InputError(f"trials = {trials}: needs at least 1")
    rules = [{key: rule[key] if isinstance(rule[key], list) else [rule[key]] for key in rule} for rule in exclude]
    bare = {key for key in matrix if key != "policy" and "." not in key and key != "delta" and _field(key) is None}
    known: set[str] = set()
    runs: dict[str, Config] = {}
    for values in itertools.product(*matrix.values()):
        cell = dict(zip(matrix, values, strict=True))
        policy = str(cell.pop("policy", base.policy))
        owned = set(parameters(policy_class(policy)))
        known |= owned
        cell = {key: value for key, value in cell.items() if key not in bare or key in owned}
        if any(all({"policy": policy, **cell}.get(key) in rule[key] for key in rule) for rule in rules):
            continue
        start = base if policy == base.policy else attrs.evolve(base, policy=policy, settings={})
        config = start.changed({_key(key, value)[0]: _key(key, value)[1] for key, value in cell.items()})
        for trial in numbers:
            one = config.changed({"world.trial": trial})
            words = [policy, *(f"{key}-{value}" for key, value in cell.items()), f"trial-{trial}", one.identity()[:8]]
            runs.setdefault("_".join(words).replace("/", "-").replace(" ", ""), one)
    for key in bare - known:
        raise InputError(f"matrix.{key}: is neither a field nor a setting of any policy in the matrix")
    if not runs:
        raise InputError("the sweep is empty: everything is excluded")
    return Sweep(runs)


def _field(key: str) -> str | None:
    return ALIASES.get(key) or (f"world.{key}" if key in WORDS else None)


def _key(key: str, value: Any) -> tuple[str, Any]:
    if key == "delta":
        return "world.harvest", f"bernoulli:{float(value)!r}"
    if key == "alpha" and value in ("iid", "none"):
        return "data.alpha", None
    return _field(key) or key, value


def flat(config: Config) -> dict[str, Any]:
    """Everything that a configuration says, one column each: policy, settings, then `world.slots` and so on."""
    out: dict[str, Any] = {"policy": config.policy}
    out |= {f"policy.{key}": value for key, value in config.settings.items()}
    for section in ("world", "data", "train", "look"):
        out |= {f"{section}.{key}": value for key, value in attrs.asdict(getattr(config, section)).items()}
    return out


def collect(folders: Sequence[RunFolder]) -> pandas.DataFrame:
    """All checkpoints of all finished runs, tidy: one row each, with the run's configuration beside it."""
    import pandas

    frames = []
    for folder in folders:
        if folder.finished:
            frame = pandas.read_csv(folder.path / "metrics.csv")
            about = {"run": folder.path.name, "ended": folder.result()["ended"], **flat(folder.config)}
            for position, (key, value) in enumerate(about.items()):
                frame.insert(position, key, [value] * len(frame))
            frames.append(frame.dropna(axis=1, how="all"))
    return pandas.concat(frames, ignore_index=True) if frames else pandas.DataFrame()
