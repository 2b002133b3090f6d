"""Everything that decides the outcome of a run, in sections; its text is the run's identity."""

from __future__ import annotations

import hashlib
import json
import typing
from collections.abc import Mapping
from functools import cache
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import attrs
from attrs import field, frozen

from pipecycle import checks
from pipecycle.checks import at_least, flag, number, one_of, setting, share, some_clients, some_slots
from pipecycle.data.augment import FORMS, augmentation
from pipecycle.data.catalogue import CATALOGUE
from pipecycle.data.partition import ALPHA
from pipecycle.data.scale import SCALES
from pipecycle.errors import InputError, shown
from pipecycle.files import read_toml
from pipecycle.policies.registry import (
    build,
    check_model,
    convert,
    defaults,
    did_you_mean,
    nearest,
    parameters,
    policy_class,
    revision,
    typed,
)
from pipecycle.train.history import Look
from pipecycle.world.devices_file import examples, parted
from pipecycle.world.devices_file import load as load_fleet
from pipecycle.world.specs import FORMS as HARVESTS
from pipecycle.world.specs import check_harvest

FORMAT = 1
BY_THE_MODEL = ("upload_ratio",)
"""Settings that a run takes from its model unless they are given."""
SHORT = {
    "data": "data.name",
    "alpha": "data.alpha",
    "scale": "data.scale",
    "model": "train.model",
    "augment": "train.augment",
    "delta": "world.harvest",
    **{key: f"world.{key}" for key in ("trial", "clients", "session", "slots", "budget", "harvest")},
    **{key: f"world.{key}" for key in ("capacity", "initial", "fleet")},
}
"""Fields that have a name without their section.  A policy's own setting of the same name is `policy.NAME`."""


def _harvest(instance: object, attribute: Any, value: Any) -> None:
    check_harvest(value)


def _model(instance: object, attribute: Any, value: Any) -> None:
    check_model(value)


def _data(instance: object, attribute: Any, value: Any) -> None:
    """Checks the name alone: the file may have been moved when somebody reads a run's configuration."""
    checks.text.of("data", value)
    if value not in CATALOGUE and not value.endswith(".npz"):
        raise InputError(f"data = {shown(value)}: {nearest(value, CATALOGUE, 'an .npz file')}")


def _split(instance: object, attribute: Any, value: Any) -> None:
    if value is not None:
        checks.text.of("split", value)
        if not value.endswith((".npz", ".json")):
            raise InputError(f"split = {shown(value)}: needs a .npz or .json file")


def _augment(value: str | None) -> str | None:
    made = augmentation(value)
    return None if made is None else str(made)


_SAMPLES = at_least(1, "sample", most=10**9)


@frozen
class WorldSection:
    """Clients, batteries and weather."""

    clients: int = setting(100, "how many clients", some_clients)
    session: int = setting(20, "training slots of a session, one step in each (B)", some_slots)
    slots: int = setting(15_000, "how many slots, at most", some_slots)
    harvest: str = setting("bernoulli:0.5", f"where energy comes from: a rate, {HARVESTS}", _harvest)
    trial: int = setting(0, "picks weather, split and every other random choice", at_least(0))
    capacity: float = setting(1e6, "units that a battery holds", checks.some_units)
    initial: float = setting(0.0, "units in every battery before slot 0", checks.units)
    budget: float | None = setting(None, "units after which the run ends", checks.some_units)
    fleet: str | None = setting(None, f"a file of devices (.toml or .csv), or {', '.join(examples())}", checks.text)

    def __attrs_post_init__(self) -> None:
        if self.clients * self.slots > checks.MOST_CLIENT_SLOTS:
            raise InputError(
                f"clients = {self.clients} for slots = {self.slots}: needs at most {checks.MOST_CLIENT_SLOTS:,} "
                "client-slots"
            )

    def resolved(self) -> WorldSection:
        """With the digest of its fleet's meaning, and as many clients as the fleet has."""
        if self.fleet is None or parted(self.fleet)[1]:
            return self
        devices = load_fleet(self.fleet)
        return attrs.evolve(self, fleet=f"{self.fleet}#{devices.digest}", clients=devices.clients(self.clients))


@frozen
class DataSection:
    """The data set, and how it is divided between clients."""

    name: str = setting("digits", "the data: digits, fashion-mnist, cifar10 or an .npz file", _data, key="data")
    alpha: float | None = setting(None, "Dirichlet concentration of the labels, or iid", ALPHA)
    samples: int | None = setting(None, "samples per client; min(300, all / clients) if not given", _SAMPLES)
    split: str | None = setting(None, "a saved split, instead of alpha and samples", _split)
    scale: str | None = setting(
        None,
        "scaling of byte images: standard, unit [0, 1], half [-1, 1] or centre [-.5, .5]; if not set, the data "
        "set's own",
        one_of(*SCALES),
    )
    validation: int | None = setting(None, "training samples held back, to choose settings by", _SAMPLES)


@frozen
class TrainSection:
    """The model, and how clients train it."""

    model: str = setting("mlp", "the model: mlp, lenet, cnn64, wide, cnn64-gn, resnet8-gn or module:factory", _model)
    lr: float = setting(0.05, "learning rate", checks.rate)
    momentum: float = setting(0.0, "momentum of SGD, from zero in every session", number(least=0, below=1))
    weight_decay: float = setting(0.0, "weight decay: pull towards zero", checks.factor)
    proximal: float = setting(0.0, "pull towards the reference (FedProx)", checks.factor)
    lr_decay: float = setting(1.0, "factor on the learning rate per 1,000 slots", share)
    batch: int = setting(15, "samples per step", at_least(1, "sample", most=checks.MOST_BATCH))
    replacement: bool = setting(False, "draw batches independently instead of in passes", flag)
    distillation: float = setting(0.1, "FLDA: weight of the teacher's term", checks.factor)
    precision: str = setting("fp32", "precision of products on a GPU; weights are fp32", one_of("fp32", "tf32", "bf16"))
    augment: str | None = field(
        default=None,
        converter=_augment,
        metadata={"note": f"random views of images: {FORMS}; none trains on images as they are"},
    )


@frozen
class Config:
    """A run: a policy with its settings, and the sections."""

    policy: str = "pipecycle"
    settings: Mapping[str, Any] = field(factory=dict)
    world: WorldSection = field(factory=WorldSection)
    data: DataSection = field(factory=DataSection)
    train: TrainSection = field(factory=TrainSection)
    look: Look = field(factory=Look)
    contents: Mapping[str, str] = field(factory=dict)
    """Digests of the user's files that it depends on, by name; `pipecycle.runs.contents.sealed` fills them in."""

    def __attrs_post_init__(self) -> None:
        values = typed(policy_class(self.policy), self.policy, self.settings)
        build(self.policy, values)  # refuses by name what the policy does not take
        object.__setattr__(self, "settings", values)
        object.__setattr__(self, "world", self.world.resolved())
        if self.look.on == "validation" and self.data.validation is None:
            raise InputError("look.on = validation: needs data.validation, the number of samples to hold back")

    def text(self) -> str:
        """The whole configuration as TOML."""
        lines = [f"format = {FORMAT}", "", "[policy]", f"name = {toml(self.policy)}"]
        lines += [f"revision = {number}" for number in [self._revision()] if number > 1]
        lines += [f"{key} = {toml(value)}" for key, value in sorted(self.stated().items())]
        for section in SECTIONS:
            lines += ["", f"[{section}]"]
            values = attrs.asdict(getattr(self, section))
            lines += [f"{key} = {toml(value)}" for key, value in values.items() if value is not None]
        if self.contents:
            lines += ["", "[contents]", *(f"{toml(key)} = {toml(self.contents[key])}" for key in sorted(self.contents))]
        return "\n".join(lines) + "\n"

    def fields(self) -> dict[str, Any]:
        """All fields by their whole names, `world.slots` and so on."""
        values = {section: attrs.asdict(getattr(self, section)) for section in SECTIONS}
        return {f"{section}.{key}": value for section, fields in values.items() for key, value in fields.items()}

    def stated(self) -> dict[str, Any]:
        """The policy's settings that differ from its defaults."""
        usual = defaults(policy_class(self.policy))
        return {
            key: value
            for key, value in self.settings.items()
            if value is not None and (key in BY_THE_MODEL or value != usual.get(key))
        }

    def _revision(self) -> int:
        return revision(policy_class(self.policy))

    def identity(self) -> str:
        """What makes two runs the same run."""
        return hashlib.sha256(self.text().encode()).hexdigest()

    def changed(self, options: Mapping[str, Any]) -> Config:
        """With some fields replaced: `world.slots`, `train.lr`, a short name such as `slots`, or a setting of the
        policy by its bare name."""
        changes: dict[str, dict[str, Any]] = {}
        for key, value in (whole_name(*option) for option in options.items()):
            section, name, kind = self._field(key)
            changes.setdefault(section, {})[name] = convert(key, value, kind)
        settings = {**self.settings, **changes.pop("policy", {})}
        parts: dict[str, Any] = {name: attrs.evolve(getattr(self, name), **values) for name, values in changes.items()}
        return attrs.evolve(self, settings=settings, **parts)

    def _field(self, key: str) -> tuple[str, str, Any]:
        """The section, name and type of a field or setting."""
        section, dot, name = key.partition(".")
        if not dot or section == "policy":
            name = name if dot else key
            allowed = parameters(policy_class(self.policy))
            if name not in allowed:
                raise InputError(f"setting {shown(name)!r} of {self.policy}: {meant(name, allowed)}")
            return "policy", name, allowed[name]
        if section not in SECTIONS:
            raise InputError(f"{shown(key)}: {nearest(section, dict.fromkeys(['policy', *SECTIONS]))}")
        hints = _hints(SECTIONS[section])
        if name not in hints:
            raise InputError(f"{shown(key)}: {nearest(name, hints, section=f'{section}.')}")
        return section, name, hints[name]


SECTIONS: dict[str, Any] = {"world": WorldSection, "data": DataSection, "train": TrainSection, "look": Look}
_hints = cache(typing.get_type_hints)


def whole_name(key: str, value: Any) -> tuple[str, Any]:
    """A short name as the field that it stands for; `delta`, or a harvest that is a bare number, is the rate of a
    Bernoulli harvest, and `iid` is no alpha."""
    name = SHORT.get(key, key)
    if name == "world.harvest":
        try:
            value = f"bernoulli:{convert(key, value, float)!r}"
        except InputError:
            if key == "delta":
                raise
    iid = name == "data.alpha" and isinstance(value, str) and value.lower() == "iid"
    return name, "none" if iid else value


def counted(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Fields by their whole names, with as many clients as their fleet's file counts: who names a fleet has not asked
    for a default number of clients."""
    if options.get("world.fleet") is None or "world.clients" in options:
        return options
    counts = load_fleet(options["world.fleet"]).counts
    return options if counts is None else {**options, "world.clients": int(counts.sum())}


def meant(name: str, allowed: Mapping[str, Any]) -> str:
    """What somebody may have meant by a setting that the policy does not have: a field, or another setting."""
    fields = [f"{section}.{name}" for section, kind in SECTIONS.items() if name in _hints(kind)]
    if fields:
        return f"unknown, did you mean {fields[0]!r}?"
    if close := did_you_mean(name, {**allowed, **SHORT}):
        return close
    own = f"needs a setting ({', '.join(allowed)}) or" if allowed else "it has no settings, needs"
    return f"unknown, {own} a field of the run ({', '.join(SHORT)}, or any in `pipecycle config`)"


@frozen
class Recorded(Config):
    """The configuration in a run's folder.  No code is imported to read it, so its policy and settings are not checked.
    Without a `revision` it is about revision 1 of its policy; a file that a user writes is about the present one."""

    revision: int = 1

    def __attrs_post_init__(self) -> None:
        pass

    def stated(self) -> dict[str, Any]:
        return dict(self.settings)

    def _revision(self) -> int:
        return self.revision


def read_config(path: Path) -> Config:
    """A configuration file; unknown keys and wrong types are refused by name."""
    return sections(read_toml(path), str(path))


def read_recorded(path: Path) -> Recorded:
    """The configuration in a run's folder."""
    from pipecycle.policies import REGISTRY

    tables = _sections(read_toml(path), str(path))
    contents = tables.pop("contents", {})
    for key, value in contents.items():
        checks.text.of(f"{path}: contents.{key}", value)
    policy, settings, number = _policy(tables, str(path))
    number = 1 if number is None else number
    if policy in REGISTRY:
        policy, settings = _present(policy, settings, number, str(path))
        number = revision(REGISTRY[policy])
    config = Recorded(policy, settings, contents=contents, revision=number).changed(_options(tables))
    assert isinstance(config, Recorded)
    return config


def sections(values: Mapping[str, Any], path: str) -> Config:
    """A configuration from the sections of a file; `path` is for the messages.  The `contents` that a run's own file
    records are left out: what is given to run is about the files as they are now."""
    tables = _sections(values, path)
    tables.pop("contents", None)
    policy, settings, number = _policy(tables, path)
    policy, settings = _present(policy, settings, number, path)
    config = Config(policy=policy).changed({f"policy.{key}": value for key, value in settings.items()})
    return config.changed(_options(tables))


def _sections(values: Mapping[str, Any], path: str) -> dict[str, dict[str, Any]]:
    """The tables of a file of our format."""
    made_for = values.get("format", FORMAT)
    if made_for != FORMAT:
        raise InputError(f"{path}: is a configuration of format {shown(made_for)}, this version reads format {FORMAT}")
    return {key: table(value, key, path) for key, value in values.items() if key != "format"}


def _policy(tables: dict[str, dict[str, Any]], path: str) -> tuple[str, dict[str, Any], Any]:
    """Take the policy, its settings and its revision (None if the file names none) out of a file's tables."""
    settings = tables.pop("policy", {})
    name = settings.pop("name", Config().policy)
    if not isinstance(name, str):
        raise InputError(f"{path}: policy.name = {shown(name)}: needs text")
    return name, settings, settings.pop("revision", None)


def _options(tables: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {f"{section}.{key}": value for section, fields in tables.items() for key, value in fields.items()}


def _present(policy: str, settings: dict[str, Any], number: Any, path: str) -> tuple[str, dict[str, Any]]:
    """A policy of an earlier revision as the policy and settings that do the same today."""
    now = revision(policy_class(policy))
    former = getattr(policy_class(policy), "former", None)
    if number is None or number == now:
        return policy, settings
    if number != 1 or former is None:
        raise InputError(f"{path}: is about revision {shown(number)} of {policy}, this version has revision {now}")
    return former[0], {**former[1], **settings}


def table(value: Any, key: str, path: str) -> dict[str, Any]:
    """A table of a file."""
    if not isinstance(value, dict):
        known = ["policy", *SECTIONS]
        needs = "needs a table" if key in known else nearest(key, dict.fromkeys(known))
        raise InputError(f"{path}: {shown(key)} = {shown(value)}: {needs}")
    return dict(value)


def toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Integral | Real):
        return repr(int(value) if isinstance(value, Integral) else float(value))  # numpy's would say their type
    return repr(value)
