"""The settings of a live run: flat scalars, as Flower's run configuration carries them.

What a live run has in common with a simulated one is described and checked by `pipecycle.runs.config` alone."""

from __future__ import annotations

import json
import tomllib
import typing
from collections.abc import Mapping, Set
from functools import cache, lru_cache
from math import ceil, isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import attrs
from attrs import field, frozen

from pipecycle import checks
from pipecycle.checks import at_least, flag, one_of, setting
from pipecycle.errors import InputError, shown
from pipecycle.policies.registry import convert, nearest
from pipecycle.runs.config import SECTIONS, Config, sections
from pipecycle.runs.run import problem_of, training_of

if TYPE_CHECKING:
    from pipecycle.train.problems import Problem, Training

Scalar = bool | int | float | str
CHANGEABLE = ("slots", "roll-call", "deadline", "margin", "pin-nodes", "norm-bound", "evaluate-clients")
"""What a run that is resumed may change: none of it has any effect on slots that are over."""
FOREIGN = ("num-partitions",)
"""Keys that Flower's engines add by themselves."""
PREFIX = "pipecycle."
"""Of our keys beside those of a user's own app: a table `pipecycle` in TOML."""
MARKS = frozenset({"policy-settings", "slots", "slot-seconds"})
"""Names that are hardly anybody else's: a run's settings from before there was a prefix have one of them."""


def ours(values: Mapping[str, Any], *, strict: bool = True, marks: Set[str] = frozenset()) -> dict[str, Any]:
    """Our keys of a configuration, without the prefix.  In a user's own app (not `strict`) only keys that carry the
    prefix are ours, except in configurations from before there was one, in which no key carries it; they have one of
    the `marks`, if any are given."""
    prefixed = {key.removeprefix(PREFIX): value for key, value in values.items() if key.startswith(PREFIX)}
    plain = {key: value for key, value in values.items() if not key.startswith(PREFIX)}
    if strict or (not prefixed and (not marks or plain.keys() & marks)):
        return {**plain, **prefixed}
    return {**{key: value for key, value in plain.items() if key == "partition-id"}, **prefixed}


def _shared(place: str, default: Scalar | None = None, note: str = "") -> Any:
    """A setting that the configuration of a simulated run has too, at `place`; "" or 0 stands for none."""
    section, _, name = place.partition(".")
    source = attrs.fields_dict(SECTIONS[section])[name]
    if default is None:
        default = "" if source.default is None else source.default
    about = note or f"{source.metadata['note'][0].upper()}{source.metadata['note'][1:]}."
    metadata = {"note": about, "place": place, "optional": source.default is None}
    return field(default=default, converter=_without_none if default == "" else None, metadata=metadata)


def _without_none(value: str) -> str:
    return "" if value == "none" else value


def absolute(instance: object, attribute: Any, value: Any) -> None:
    """Validates a path: empty, or absolute."""
    if value != "":
        checks.text.of(attribute.name, value)
        if not Path(value).is_absolute():
            raise InputError(
                f"{attribute.name} = {shown(value)}: needs an absolute path, since Flower starts apps anywhere"
            )


def _partition(instance: object, attribute: Any, value: Any) -> None:
    try:
        kind, _, alpha = str(value).partition(":")
        valid = value == "iid" or (kind == "dirichlet" and isfinite(float(alpha)))
    except ValueError:
        valid = False
    if not valid:
        raise InputError(f"partition = {shown(value)}: needs iid or dirichlet:ALPHA")


_hints = cache(typing.get_type_hints)


class FlatSettings:
    """To and from a flat mapping with keys like `slot-seconds`."""

    @classmethod
    def fields(cls) -> dict[str, attrs.Attribute[Any]]:
        """The fields by their keys."""
        return {attribute.name.replace("_", "-"): attribute for attribute in attrs.fields(cls)}  # type: ignore[arg-type]

    @classmethod
    def notes(cls) -> dict[str, str]:
        """What each setting means, by its key."""
        return {key: attribute.metadata["note"] for key, attribute in cls.fields().items()}

    @classmethod
    def of(cls, values: Mapping[str, Any], *, strict: bool = True) -> Self:
        """From a configuration; an unknown key or a wrong type is refused by name.  Not `strict`, unknown keys are
        ignored: a user's own app has keys of its own."""
        hints, fields = _hints(cls), cls.fields()  # type: ignore[arg-type]
        given = {}
        for key, value in values.items():
            if key in fields:
                given[fields[key].name] = convert(key, value, hints[fields[key].name])
            elif strict and key not in FOREIGN:
                raise InputError(f"{shown(key)} = {shown(value)}: {nearest(key, fields)}")
        return cls(**given)

    def flat(self) -> dict[str, Scalar]:
        """For `--run-config` or `--node-config`.  Shared text that is not given is left out: apps and checkpoints of
        versions that did not have the setting stay valid."""
        values = {key: (attribute, getattr(self, attribute.name)) for key, attribute in self.fields().items()}
        return {
            key: value
            for key, (attribute, value) in values.items()
            if value != "" or not attribute.metadata.get("optional")
        }


@frozen
class RunSettings(FlatSettings):
    """A live run.  The defaults are a small federation on the embedded digits."""

    policy: str = setting("pipecycle", "A policy by name, or a user's own as module:Class.")
    policy_settings: str = setting("{}", 'Its settings as a JSON object, e.g. {"groups": 2}.')
    model: str = _shared("train.model")
    data: str = _shared("data.name", note="Data for nodes without their own; the server tests on its test part.")
    partition: str = setting("iid", "How the named data are shared out: iid or dirichlet:ALPHA.", _partition)
    scale: str = _shared("data.scale")
    samples: int = _shared("data.samples", 0, "Samples per node in that share; 0 for min(300, all / clients).")
    clients: int = _shared("world.clients", 4, "Nodes to wait for; their partition-ids are 0 to clients - 1.")
    clock: str = setting(
        "logical",
        "logical: a slot ends with its sessions.  wall: it lasts slot-seconds.",
        one_of("logical", "wall"),
    )
    slot_seconds: float = setting(1.0, "Wall clock: how long a slot lasts.", checks.some_seconds)
    slots: int = _shared("world.slots", 100)
    session: int = _shared("world.session")
    slack: int = setting(
        0, "Slots that policies with a fixed cycle allow for a late reply.", at_least(0, most=checks.MOST_SLOTS)
    )
    batch: int = _shared("train.batch")
    augment: str = _shared("train.augment")
    lr: float = _shared("train.lr")
    momentum: float = _shared("train.momentum")
    weight_decay: float = _shared("train.weight_decay")
    proximal: float = _shared("train.proximal")
    distillation: float = _shared("train.distillation")
    trial: int = _shared("world.trial")
    harvest: str = _shared("world.harvest", note="The harvest that is forecast; it also charges emulated batteries.")
    capacity: float = _shared("world.capacity", note="The most units that a battery can hold.")
    initial: float = _shared("world.initial", note="Units in an emulated battery at first, unless its node differs.")
    deadline: float = setting(
        0.0, "Seconds for a session; 0 for 300, or (wall) its slots, slack and 30 s.", checks.seconds
    )
    margin: float = setting(15.0, "Seconds after the deadline until a message expires.", checks.seconds)
    roll_call: float = setting(
        180.0, "Seconds to wait for all clients; then the run starts with those present.", checks.some_seconds
    )
    pin_nodes: bool = setting(
        False, "Whether a client must stay the same Flower node; only with registered keys.", flag
    )
    norm_bound: float = setting(
        20.0, "An update's norm may be so many times the median of the latest; 0 for no bound.", checks.units
    )
    evaluate_every: int = _shared("look.every", 20)
    evaluate_clients: int = setting(
        0, "How many clients evaluate, with your own app's @app.evaluate; 0: the server does.", at_least(0)
    )
    out: str = setting("", "Absolute folder of the run; empty writes nothing.", absolute)
    resume: bool = setting(False, "Resume from the checkpoint in `out`.", flag)
    device: str = setting("cpu", "Where nodes train and the server evaluates.", one_of("cpu"))

    def __attrs_post_init__(self) -> None:
        self.config()  # refuses what is shared with a simulated run, by name
        at_least(1, "node", most=checks.MOST_NODES).of("clients", self.clients)
        if self.policy == "isolated":
            raise InputError("policy = isolated: clients that train alone need no federation")
        if self.initial > self.capacity:
            raise InputError(f"initial = {self.initial:g}: needs at most the capacity of {self.capacity:g}")
        if self.evaluate_clients > self.clients:
            raise InputError(f"evaluate-clients = {self.evaluate_clients}: needs at most the {self.clients} clients")
        if self.resume and not self.out:
            raise InputError("resume = true: needs `out`, the folder that holds the checkpoint")

    def decisive(self) -> dict[str, Scalar]:
        """What must be equal for a run and its continuation."""
        return {key: value for key, value in self.flat().items() if key not in ("resume", "out", *CHANGEABLE)}

    def check_continues(self, before: Mapping[str, Any]) -> None:
        """Refuse, by name, what differs from the settings that a run was started with."""
        started, now = RunSettings.of(before, strict=False).decisive(), self.decisive()
        for key in sorted(started.keys() | now.keys()):
            if started.get(key) != now.get(key):
                values = [shown(values.get(key, "none")) for values in (now, started)]
                allowed = ", ".join(CHANGEABLE)
                raise InputError(
                    f"{key} = {values[0]}: the run was started with {values[1]}; resumed, it may change only {allowed}"
                )

    @property
    def options(self) -> dict[str, Any]:
        """The policy's settings."""
        try:
            values = json.loads(self.policy_settings or "{}")
        except (TypeError, ValueError, RecursionError):
            values = None
        if not isinstance(values, dict):
            raise InputError(
                f'policy-settings = {shown(self.policy_settings)}: needs a JSON object such as {{"groups": 2}}'
            )
        return values

    @property
    def seconds(self) -> float:
        """How long a node has for its reply."""
        if self.deadline:
            return self.deadline
        return 300.0 if self.clock == "logical" else ceil((self.session + self.slack) * self.slot_seconds) + 30.0

    @property
    def lifetime(self) -> float:
        """Seconds after which a message to a node expires."""
        return self.seconds + self.margin

    def config(self) -> Config:
        """The same as the configuration of a simulated run, so that reports read both."""
        values: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
        for attribute in self.fields().values():
            if "place" in attribute.metadata:
                section, _, name = attribute.metadata["place"].partition(".")
                value = getattr(self, attribute.name)
                values[section][name] = value or None if attribute.metadata["optional"] else value
        if self.partition != "iid":
            values["data"]["alpha"] = float(self.partition.partition(":")[2])
        built = {section: SECTIONS[section](**given) for section, given in values.items()}
        return Config(policy=self.policy, settings=self.options, **built)

    def training(self) -> Training:
        """How nodes train."""
        return training_of(self.config().train)

    def problem(self) -> Problem:
        """The task, its split and the initial model, as the simulator makes them."""
        return _problem(self.config().text())


@lru_cache(4)
def _problem(text: str) -> Problem:
    return problem_of(sections(tomllib.loads(text), "settings"))
