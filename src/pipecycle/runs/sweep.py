"""Many runs from one file: a matrix of settings."""

from __future__ import annotations

import itertools
import math
import typing
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
from attrs import field, frozen

from pipecycle.checks import MOST_RUNS, text
from pipecycle.data import CATALOGUE
from pipecycle.errors import InputError, shown
from pipecycle.files import read_toml
from pipecycle.policies import REGISTRY
from pipecycle.policies.registry import build, did_you_mean, nearest, parameters, policy_class, settings, stated
from pipecycle.policies.spec import Spec
from pipecycle.runs.config import Config, TrainSection, meant, sections, whole_name
from pipecycle.runs.planning import check_learning, planning
from pipecycle.runs.run import RunFolder

TEACHING = "train.distillation"
"""The field that is for policies with a teacher alone."""


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

    `[[parts]]` are several matrices in one file, each with a name; what stands above them holds for all, but for the
    `trials` of a part that has its own.  `extends` names a configuration file beside this one whose sections `[base]`
    builds on.  `trials` given here wins over the file's.  Nothing of a file is used unless
    all of it is right."""
    values = read_toml(path)
    parts = _tables(values.pop("parts", []), f"{path}: parts")
    below = _base(values, path)
    whole = _part(values, str(path), part=False)
    own = [(shown(part.pop("name", number)), part) for number, part in enumerate(parts, 1)]
    named = {name: _part(part, f"{path}: part {name}") for name, part in own}
    if len(named) < len(parts):
        raise InputError(f"{path}: parts: two of them have the same name")
    known_keys = {"policy", *whole["matrix"], *(key for part in named.values() for key in part["matrix"])}
    for table in (whole, *named.values()):
        for rule in (*table["exclude"], *table["when"]):
            for key in rule.wanted:
                if key not in known_keys:
                    raise InputError(f"{path}: a rule about {key}: {nearest(key, dict.fromkeys(known_keys))}")
    try:
        base = sections(below, str(path))
        runs: dict[str, Config] = {}
        members: dict[str, list[str]] = {}
        for name, part in (named or {"": _part({}, "")}).items():
            matrix = {**whole["matrix"], **part["matrix"]}
            rules = {key: [*whole[key], *part[key]] for key in ("exclude", "when")}
            numbers = next((some for some in (trials, part["trials"], whole["trials"]) if some is not None), None)
            expanded = expand(base, matrix, numbers, **rules).runs
            known = {config.identity(): run for run, config in runs.items()}
            members[name] = [known.get(config.identity(), run) for run, config in expanded.items()]
            runs |= {run: config for run, config in expanded.items() if config.identity() not in known}
        for rule in (rule for table in (whole, *named.values()) for key in ("exclude", "when") for rule in table[key]):
            if not rule.met:
                raise InputError(f"the rule for {shown(rule.wanted)}: describes no run")
        check_effects(runs.values())
    except InputError as error:
        raise InputError(f"{path}: {str(error).removeprefix(f'{path}: ')}") from None
    return Sweep(runs, members if named else {})


def _base(values: dict[str, Any], path: Path) -> dict[str, Any]:
    """The sections of a sweep's `[base]`, on top of those of the file that it extends."""
    own = _table(values.pop("base", {}), f"{path}: base")
    extended = values.pop("extends", None)
    if extended is None:
        return dict(own)
    text.of("extends", extended)
    below = read_toml(path.parent / extended)
    tables = [key for key in below if isinstance(below[key], dict) and isinstance(own.get(key), dict)]
    return {**below, **own, **{key: below[key] | own[key] for key in tables}}


def _part(values: dict[str, Any], path: str, *, part: bool = True) -> dict[str, Any]:
    """The arguments of `expand` in a file's table."""
    out = {
        "matrix": _table(values.pop("matrix", {}), f"{path}: matrix"),
        "trials": values.pop("trials", None),
        "exclude": [Rule(table) for table in _tables(values.pop("exclude", []), f"{path}: exclude")],
        "when": [Rule(table) for table in _tables(values.pop("when", []), f"{path}: when")],
    }
    if values:
        key = next(iter(values))
        raise InputError(f"{path}: {shown(key)}: {nearest(key, out if part else ('base', 'extends', *out, 'parts'))}")
    if out["trials"] is not None:
        _numbers(out["trials"], path)
    return out


def _table(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"{what} = {shown(value)}: needs to be a table, with keys and values")
    return value


def _tables(value: Any, what: str) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        raise InputError(
            f"{what} = {shown(value)}: needs to be a list of tables, each under [[{what.rpartition(' ')[2]}]]"
        )
    return [_table(entry, what) for entry in value]


def _numbers(trials: Any, path: str = "") -> list[int]:
    """A count is that many from 0; a list is itself."""
    if isinstance(trials, int) and not isinstance(trials, bool) and 1 <= trials <= MOST_RUNS:
        return list(range(trials))
    if isinstance(trials, list | tuple | range) and trials:
        numbers = [trial for trial in trials if isinstance(trial, int) and not isinstance(trial, bool) and trial >= 0]
        if len(set(numbers)) == len(trials):
            return numbers
    where = f"{path}: " if path else ""
    given = repr(shown(trials)) if isinstance(trials, str) else shown(trials)
    raise InputError(f"{where}trials = {given}: needs 1 to {MOST_RUNS:,}, or a list of different trials such as [0, 5]")


def expand(
    base: Config,
    matrix: Mapping[str, Sequence[Any]],
    trials: int | Sequence[int] | None = None,
    exclude: Iterable[Rule | Mapping[str, Any]] = (),
    when: Iterable[Rule | Mapping[str, Any]] = (),
) -> Sweep:
    """Every combination.  A setting that a policy does not have (such as groups) does not multiply that policy.  A
    policy may be a spec such as `pipecycle(groups=2)`: what it says itself wins over the matrix.

    `exclude` drops the cells that a rule describes; `when` gives those that it describes what stands in its `set`.
    Trials are a count or a list, or a key of the matrix, or the base's; one of these, never two."""
    dropped, special = [Rule.of(rule) for rule in exclude], [Rule.of(rule) for rule in when]
    if not all(rule.given for rule in special):
        raise InputError("[[when]]: needs a table called set")
    _check_matrix(matrix)
    own = [key for key in (*matrix, *(key for rule in special for key in rule.given)) if _target(key) == "world.trial"]
    numbers = _trials(base, own, trials)
    size = math.prod(len(choices) for choices in matrix.values()) * len(numbers or [0])
    if size > MOST_RUNS:
        raise InputError(f"the matrix has {size:,} combinations: needs at most {MOST_RUNS:,}")
    bare = {key for key in matrix if key != "policy" and (is_setting(key) or key == TEACHING)}
    unused = set(matrix) - {"policy"}
    runs: dict[str, Config] = {}
    for values in itertools.product(*matrix.values()):
        cell = dict(zip(matrix, values, strict=True))
        spec = Spec.of(cell.pop("policy", base.policy))
        policy = spec.policy
        own_values = {key if is_setting(key) else f"policy.{key}": value for key, value in spec.settings.items()}
        own_values |= spec.fields
        owned = _owned(policy)
        mine = {_target(key) for key in own_values}
        if "world.trial" in mine:
            raise InputError(f"{spec}: a trial is for all policies, not for one of them")
        cell = {
            key: value
            for key, value in cell.items()
            if (key not in bare or _target(key) in owned) and _target(key) not in mine
        }
        unused -= set(cell)
        cell |= own_values
        described = {"policy": policy, **cell}
        if [rule for rule in dropped if rule.describes(described)]:  # all are asked, so that all know whether they do
            continue
        given: dict[str, Any] = {}
        for rule in special:
            if rule.describes(described):
                given |= rule.given
        start = base if policy == base.policy else attrs.evolve(base, policy=policy, settings={})
        config = start.changed(given | cell)
        for trial in numbers or [config.world.trial]:
            run = config.changed({"world.trial": trial})
            words = [policy, *(f"{key}-{value}" for key, value in cell.items() if key not in own), f"trial-{trial}"]
            runs.setdefault(_folder_name(words, run), run)
    if unused:
        raise _without_effect(min(unused), base, matrix)
    if not runs:
        raise InputError("the sweep is empty: everything is excluded")
    return Sweep(runs)


def _check_matrix(matrix: Mapping[str, Sequence[Any]]) -> None:
    targets: dict[str, str] = {}
    for key, choices in matrix.items():
        if not isinstance(choices, list | tuple) or not choices:
            raise InputError(f"matrix.{key} = {shown(choices)}: needs a list of values")
        if (other := targets.setdefault(_target(key), key)) != key:
            raise InputError(f"matrix.{other} and matrix.{key}: are the same setting, give one of them")


def _trials(base: Config, own: Sequence[str], trials: int | Sequence[int] | None) -> list[int] | None:
    """The trials of every cell; None if the cells say it themselves, by the keys `own`."""
    if trials is None:
        return None if own else [base.world.trial]
    if own or base.world.trial != 0:
        what = own[0] if own else f"world.trial = {base.world.trial}"
        raise InputError(f"{what} and trials = {trials}: give one of them, not both")
    return _numbers(trials)


def _folder_name(words: Sequence[str], config: Config) -> str:
    """What a cell says, as far as a file's name may be long; the identity tells runs apart."""
    name = "_".join(words).replace("/", "-").replace(" ", "")
    return f"{name.encode()[:200].decode(errors='ignore')}_{config.identity()[:8]}"


class Rule:
    """Which cells a table of an `exclude` or `when` list describes; a value may be a list of alternatives."""

    def __init__(self, table: Mapping[str, Any]) -> None:
        self.given = _table(table.get("set", {}), "[[when]]: set")
        self.wanted = {
            key: value if isinstance(value, list) else [value] for key, value in table.items() if key != "set"
        }
        self.met = False
        """Whether there was such a cell."""

    @staticmethod
    def of(table: Rule | Mapping[str, Any]) -> Rule:
        return table if isinstance(table, Rule) else Rule(table)

    def describes(self, cell: Mapping[str, Any]) -> bool:
        met = all(key in cell and cell[key] in values for key, values in self.wanted.items())
        self.met = self.met or met
        return met


def _target(key: str) -> str:
    """The field or setting that a key of a matrix is about."""
    return whole_name(key, 0.5)[0].removeprefix("policy.")


def is_setting(key: str) -> bool:
    """Whether a key is about the policy, not about a field."""
    return key.startswith("policy.") or "." not in whole_name(key, 0.5)[0]


def _without_effect(key: str, base: Config, matrix: Mapping[str, Sequence[Any]]) -> InputError:
    """About a key of a matrix that no run uses."""
    specs = [Spec.of(policy) for policy in matrix.get("policy", [base.policy])]
    having = [spec for spec in specs if _target(key) in _owned(spec.policy)]
    everybody = ", ".join(str(spec) for spec in having or specs)
    if key == TEACHING and not having:
        return InputError(f"{key}: has no effect, {everybody} has no teacher (flda has one)")
    if having or not is_setting(key):
        return InputError(f"{key}: has no effect, {everybody} say their own")
    if close := did_you_mean(key, ["policy"]):
        return InputError(f"{shown(key)}: {close}")
    known = {name: None for spec in specs for name in parameters(policy_class(spec.policy))}
    return InputError(f"setting {shown(key)!r} of {everybody}: {meant(key, known)}")


def _owned(policy: str) -> list[str]:
    """The settings of a policy, and the field that is for it if it has a teacher; a user's own may have one."""
    teaches = policy not in REGISTRY or getattr(REGISTRY[policy], "teaches", False)
    return [*parameters(policy_class(policy)), *([TEACHING] if teaches else [])]


def check_effects(configs: Iterable[Config]) -> None:
    """Refuse a weight for teachers that no run with a teacher uses."""
    runs = list(configs)
    taught = [run for run in runs if TEACHING in _owned(run.policy)]
    used = {TrainSection().distillation, *(run.train.distillation for run in taught)}
    for run in runs:
        if (weight := run.train.distillation) not in used:
            raise InputError(
                f"train.distillation = {weight:g}: has no effect, {run.policy} has no teacher (flda has one)"
            )


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
        entry = CATALOGUE.get(config.data.name)
        try:
            if config.data.split is None or entry is None or entry.cached():
                check_learning(config)
                run = planning(config)
                run.policy.setup(run.world)
        except InputError as error:
            raise InputError(f"run {name}: {error}") from error


def flat(config: Config) -> dict[str, Any]:
    """Everything that a configuration says, one column each: policy, settings, then `world.slots` and so on."""
    out: dict[str, Any] = {"policy": config.policy}
    policy = build(config.policy, config.settings)
    kinds, said = parameters(type(policy)), stated(policy)
    for key in settings(policy):
        # What may be a number or a word is text: a column of a file has one type.
        mixed = {float, str} <= set(typing.get_args(kinds[key]))
        out[f"policy.{key}"] = str(said[key]) if mixed and key in said else said.get(key)
    return out | config.fields()
