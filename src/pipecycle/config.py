"""Everything that decides the outcome of a run, in sections; its text is the run's identity."""

from __future__ import annotations

import hashlib
import tomllib
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
from attrs import field, frozen
from attrs.validators import optional

from pipecycle.checks import at_least, one_of
from pipecycle.data.augment import FORMS, augmentation
from pipecycle.data.scale import SCALES
from pipecycle.errors import InputError
from pipecycle.files import reason
from pipecycle.registry import build, convert, defaults, nearest, parameters, policy_class, revision
from pipecycle.serving import served

FORMAT = 1
BY_THE_MODEL = ("upload_ratio",)
"""Settings that a run takes from its model unless they are given."""


def _note(text: str) -> dict[str, str]:
    return {"note": text}


def _augment(value: str | None) -> str | None:
    made = augmentation(value)
    return None if made is None else str(made)


@frozen
class World:
    """Clients, batteries and weather."""

    clients: int = field(default=100, validator=at_least(1), metadata=_note("how many clients"))
    session: int = field(default=20, validator=at_least(1), metadata=_note("slots and units of one session (B)"))
    slots: int = field(default=15_000, validator=at_least(1), metadata=_note("horizon in slots"))
    harvest: str = field(default="bernoulli:0.5", metadata=_note("where energy comes from"))
    trial: int = field(default=0, validator=at_least(0), metadata=_note("picks weather, split and every random choice"))
    capacity: float = field(default=1e6, metadata=_note("units that a battery holds"))
    initial: float = field(default=0.0, metadata=_note("units in every battery before slot 0"))
    budget: float | None = field(default=None, metadata=_note("units after which the run ends"))


@frozen
class Data:
    """What is learnt and who holds what."""

    name: str = field(default="digits", metadata=_note("digits, fashion-mnist, cifar10 or an .npz file"))
    alpha: float | None = field(default=None, metadata=_note("Dirichlet concentration of the labels; none is IID"))
    samples: int | None = field(
        default=None, validator=at_least(1), metadata=_note("samples per client; min(300, all / clients) if not given")
    )
    split: str | None = field(default=None, metadata=_note("a saved split, instead of alpha and samples"))
    scale: str | None = field(
        default=None,
        validator=optional(one_of(*SCALES)),
        metadata=_note("of bytes: standard, unit [0, 1], half [-1, 1] or centre [-.5, .5]; none is the set's own"),
    )


@frozen
class Train:
    """The model and what a client does in a step."""

    model: str = field(default="mlp", metadata=_note("mlp, lenet, cnn64, wide or module:factory"))
    lr: float = field(default=0.05, metadata=_note("learning rate"))
    momentum: float = field(default=0.0, metadata=_note("within a session"))
    weight_decay: float = field(default=0.0, metadata=_note("pull towards zero"))
    proximal: float = field(default=0.0, metadata=_note("pull towards the reference (FedProx)"))
    lr_decay: float = field(default=1.0, metadata=_note("factor on the learning rate per 1,000 slots"))
    batch: int = field(default=15, validator=at_least(1), metadata=_note("samples per step"))
    replacement: bool = field(default=False, metadata=_note("draw batches independently instead of in passes"))
    distillation: float = field(default=0.1, metadata=_note("FLDA: weight of the teacher's term"))
    precision: str = field(
        default="fp32",
        validator=one_of("fp32", "tf32", "bf16"),
        metadata=_note("of products on a GPU; weights are fp32"),
    )
    augment: str | None = field(
        default=None,
        converter=_augment,
        metadata=_note(f"random views of images: {FORMS}; none trains on images as they are"),
    )


@frozen
class Look:
    """When models are evaluated."""

    every: int = field(default=150, validator=at_least(1), metadata=_note("slots between two evaluations"))
    clients_every: int | None = field(
        default=None, validator=at_least(1), metadata=_note("slots between two means over all clients' own models")
    )
    early_stop: str = field(
        default="off",
        validator=one_of("off", "literal", "late"),
        metadata=_note("the paper's rule, as printed or armed late"),
    )
    served: str | None = field(
        default=None,
        validator=served,
        metadata=_note("look at a mean, of all live chains (chains) or of the last K published models (mean:K)"),
    )


@frozen
class Config:
    """A run: a policy with its settings, and the sections."""

    policy: str = "pipecycle"
    settings: Mapping[str, Any] = field(factory=dict)
    world: World = field(factory=World)
    data: Data = field(factory=Data)
    train: Train = field(factory=Train)
    look: Look = field(factory=Look)

    def __attrs_post_init__(self) -> None:
        build(self.policy, self.settings)  # refuses unknown policies and settings by name

    def text(self) -> str:
        """The whole configuration as TOML."""
        lines = [f"format = {FORMAT}", "", "[policy]", f"name = {toml(self.policy)}"]
        lines += [f"revision = {number}" for number in [self._revision()] if number > 1]
        lines += [f"{key} = {toml(value)}" for key, value in sorted(self.stated().items())]
        for section in SECTIONS:
            lines += ["", f"[{section}]"]
            values = attrs.asdict(getattr(self, section))
            lines += [f"{key} = {toml(value)}" for key, value in values.items() if value is not None]
        return "\n".join(lines) + "\n"

    def stated(self) -> dict[str, Any]:
        """The policy's settings that say something else than its defaults do."""
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
        """With some fields replaced: `world.slots`, `train.lr`, or a setting of the policy by its bare name."""
        config = self
        for key, value in options.items():
            config = config._with(key, value)
        return config

    def _with(self, key: str, value: Any) -> Config:
        section, dot, name = key.partition(".")
        if not dot:
            return attrs.evolve(self, settings={**self.settings, **self._setting(key, value)})
        if section == "policy":
            return attrs.evolve(self, settings={**self.settings, **self._setting(name, value)})
        if section not in SECTIONS:
            raise InputError(f"{key}: {nearest(section, dict.fromkeys(['policy', *SECTIONS]))}")
        kind = SECTIONS[section]
        hints = typing.get_type_hints(kind)
        if name not in hints:
            raise InputError(f"{key}: {nearest(name, hints)}")
        changed = attrs.evolve(getattr(self, section), **{name: _checked(key, value, hints[name])})
        return attrs.evolve(self, **{section: changed})

    def _setting(self, key: str, value: Any) -> dict[str, Any]:
        allowed = parameters(policy_class(self.policy))
        if key not in allowed:
            raise InputError(f"setting {key!r} of {self.policy}: {nearest(key, allowed)}")
        return {key: _checked(key, value, allowed[key])}


SECTIONS: dict[str, Any] = {"world": World, "data": Data, "train": Train, "look": Look}


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file, or one sentence."""
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({reason(error)})") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: is not TOML ({error})") from None


@frozen
class Recorded(Config):
    """A configuration that a run has left: its policy and settings are text, and no code is imported to read them.  It
    is of the revision of its policy that it names, 1 if it names none; what a user writes is about the present one."""

    revision: int = 1

    def __attrs_post_init__(self) -> None:
        pass

    def stated(self) -> dict[str, Any]:
        return dict(self.settings)

    def _revision(self) -> int:
        return self.revision

    def _setting(self, key: str, value: Any) -> dict[str, Any]:
        return {key: value}


def read_config(path: Path) -> Config:
    """A configuration file; unknown keys and wrong types are refused by name."""
    return sections(read_toml(path), str(path))


def read_recorded(path: Path) -> Recorded:
    """The configuration in a run's folder."""
    from pipecycle.policies import REGISTRY

    values = read_toml(path)
    policy, settings, number = _policy(values, str(path))
    number = 1 if number is None else number
    if policy in REGISTRY:
        policy, settings = _present(policy, settings, number, str(path))
        number = revision(REGISTRY[policy])
    config = Recorded(policy, settings, revision=number).changed(_options(values, str(path)))
    assert isinstance(config, Recorded)
    return config


def sections(values: dict[str, Any], path: str) -> Config:
    """A configuration from the sections of a file; `path` is for the messages."""
    policy, settings, number = _policy(values, path)
    policy, settings = _present(policy, settings, number, path)
    config = Config(policy=policy).changed({f"policy.{key}": value for key, value in settings.items()})
    return config.changed(_options(values, path))


def _policy(values: dict[str, Any], path: str) -> tuple[str, dict[str, Any], Any]:
    """Takes the policy, its settings and its revision (None if it is not said) out of a file's sections."""
    made_for = values.pop("format", FORMAT)
    if made_for != FORMAT:
        raise InputError(f"{path}: is a configuration of format {made_for}, this version reads format {FORMAT}")
    settings = dict(values.pop("policy", {}))
    return str(settings.pop("name", "pipecycle")), settings, settings.pop("revision", None)


def _options(values: dict[str, Any], path: str) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for section, fields in values.items():
        if not isinstance(fields, dict):
            raise InputError(f"{path}: {section}: {nearest(section, dict.fromkeys(['policy', *SECTIONS]))}")
        options |= {f"{section}.{key}": value for key, value in fields.items()}
    return options


def _present(policy: str, settings: dict[str, Any], number: Any, path: str) -> tuple[str, dict[str, Any]]:
    """A policy as it was at a revision, in the words of today."""
    now = revision(policy_class(policy))
    former = getattr(policy_class(policy), "former", None)
    if number is None or number == now:
        return policy, settings
    if number != 1 or former is None:
        raise InputError(f"{path}: is about revision {number} of {policy}, this version has revision {now}")
    return former[0], {**former[1], **settings}


def _checked(key: str, value: Any, kind: Any) -> Any:
    """A value of the declared type, from text or from TOML."""
    if isinstance(value, str):
        return convert(key, value, kind)
    allowed = typing.get_args(kind) or (kind,)
    if value is None and type(None) in allowed:
        return value
    if isinstance(value, bool):
        if bool in allowed:
            return value
    elif isinstance(value, int) and int in allowed:
        return value
    elif isinstance(value, int | float) and float in allowed:
        return float(value)
    raise InputError(f"{key} = {value}: needs {' or '.join(getattr(one, '__name__', str(one)) for one in allowed)}")


def toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        return f'"{escaped}"'
    return repr(value)
