"""What a live run and a node are told: flat scalars, as Flower's run and node configuration carry them.

What a live run has in common with a simulated one is described and checked by `pipecycle.runs.config` alone."""

from __future__ import annotations

import json
import tomllib
import typing
from collections.abc import Mapping
from functools import lru_cache
from math import ceil, isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import attrs
from attrs import field, frozen

from pipecycle import checks
from pipecycle.checks import at_least, flag, one_of
from pipecycle.errors import InputError, shown
from pipecycle.policies.registry import convert, nearest
from pipecycle.runs.config import Config, Data, Look, Train, World, sections
from pipecycle.runs.run import problem_of, training_of
from pipecycle.world.specs import parse_harvest

if TYPE_CHECKING:
    from pipecycle.train.problems import Problem, Training

Scalar = bool | int | float | str
FOREIGN = ("num-partitions",)
"""Keys that Flower's engines add by themselves."""
SECTIONS: dict[type, str] = {World: "world", Data: "data", Train: "train", Look: "look"}


def _harvest(instance: object, attribute: Any, value: Any) -> None:
    if value:
        parse_harvest(value)


def _partition(instance: object, attribute: Any, value: Any) -> None:
    kind, colon, number = str(value).partition(":")
    if value != "iid" and not (kind == "dirichlet" and colon and _is_number(number)):
        raise InputError(f"partition = {shown(value)}: needs iid or dirichlet:ALPHA")


def _absolute(instance: object, attribute: Any, value: Any) -> None:
    if value != "":
        checks.text.of(attribute.name, value)
    if value and not Path(value).is_absolute():
        raise InputError(
            f"{attribute.name} = {shown(value)}: needs an absolute path, since Flower starts apps anywhere"
        )


def _battery(instance: object, attribute: Any, value: Any) -> None:
    kind, _, path = str(value).partition(":")
    if value in ("emulated", "machine") or (kind == "gauge" and path):
        return
    raise InputError(f"battery = {shown(value)}: needs emulated, gauge:FILE or machine")


_CLOCK = one_of("logical", "wall")
_INITIAL = checks.number(most=checks.MOST_UNITS)


def _setting(default: Scalar, note: str, validator: Any = None) -> Any:
    """A setting of live runs or nodes alone."""
    return field(default=default, validator=validator, metadata={"note": note})


def _shared(section: type, name: str, default: Scalar | None = None, note: str = "") -> Any:
    """A setting that the configuration of a simulated run has too; "" or 0 stands for one that is not given."""
    source = attrs.fields_dict(section)[name]
    if default is None:
        default = "" if source.default is None else source.default
    about = note or f"{source.metadata['note'][0].upper()}{source.metadata['note'][1:]}."
    given = {"note": about, "place": (SECTIONS[section], name), "optional": source.default is None}
    return field(default=default, converter=_unset if default == "" else None, metadata=given)


def _unset(value: str) -> str:
    return "" if value == "none" else value


class _Flat:
    """To and from a flat mapping with keys like `slot-seconds`."""

    @classmethod
    def of(cls, values: Mapping[str, Any], *, strict: bool = True) -> Self:
        """From a configuration; an unknown key or a wrong type is refused by name.  Not `strict`, keys that are not
        ours are passed over: a user's own app has some of its own."""
        hints = typing.get_type_hints(cls)
        names = {attribute.name.replace("_", "-"): attribute.name for attribute in attrs.fields(cls)}  # type: ignore[arg-type]
        given = {}
        for key, value in values.items():
            if key in FOREIGN or (not strict and key not in names):
                continue
            if key not in names:
                raise InputError(f"{shown(key)} = {shown(value)}: {nearest(key, names)}")
            given[names[key]] = convert(key, value, hints[names[key]])
        return cls(**given)

    def flat(self) -> dict[str, Scalar]:
        """For `--run-config` or `--node-config`.  Shared text that is not given is left out: apps and checkpoints made
        before there was such a setting do not know it."""
        fields = attrs.fields(type(self))  # type: ignore[arg-type]
        values = {attribute: getattr(self, attribute.name) for attribute in fields}
        return {
            attribute.name.replace("_", "-"): value
            for attribute, value in values.items()
            if value != "" or not attribute.metadata.get("optional")
        }

    @classmethod
    def notes(cls) -> dict[str, str]:
        """What each setting means, by its key."""
        fields = attrs.fields(cls)  # type: ignore[arg-type]
        return {attribute.name.replace("_", "-"): attribute.metadata["note"] for attribute in fields}


@frozen
class RunSettings(_Flat):
    """A live run.  The defaults are a small federation on the embedded digits."""

    policy: str = _setting("pipecycle", "A policy by name, or a user's own as module:Class.")
    policy_settings: str = _setting("{}", 'Its settings as a JSON object, e.g. {"groups": 2}.')
    model: str = _shared(Train, "model")
    data: str = _shared(Data, "name", note="Data for nodes without their own; the server tests on its test part.")
    partition: str = _setting("iid", "How the named data are shared out: iid or dirichlet:ALPHA.", _partition)
    scale: str = _shared(Data, "scale")
    samples: int = _shared(Data, "samples", 0, "Samples per node in that share; 0 for min(300, all / clients).")
    clients: int = _shared(World, "clients", 4, "Nodes to wait for; their partition-ids are 0 to clients - 1.")
    clock: str = _setting("logical", "logical: a slot ends with its sessions.  wall: it lasts slot-seconds.", _CLOCK)
    slot_seconds: float = _setting(1.0, "Wall clock: how long a slot lasts.", checks.some_seconds)
    slots: int = _shared(World, "slots", 100)
    session: int = _shared(World, "session")
    slack: int = _setting(
        0, "Slots by which policies that work by the clock start sessions earlier.", at_least(0, most=checks.MOST_SLOTS)
    )
    batch: int = _shared(Train, "batch")
    augment: str = _shared(Train, "augment")
    lr: float = _shared(Train, "lr")
    momentum: float = _shared(Train, "momentum")
    weight_decay: float = _shared(Train, "weight_decay")
    proximal: float = _shared(Train, "proximal")
    distillation: float = _shared(Train, "distillation")
    trial: int = _shared(World, "trial")
    harvest: str = _shared(World, "harvest", note="What is forecast, and charges emulated batteries.")
    capacity: float = _shared(World, "capacity", note="Units that a battery holds, at most.")
    initial: float = _shared(World, "initial", note="Units in an emulated battery that names no initial charge.")
    deadline: float = _setting(
        0.0, "Seconds for a session; 0 for 300, or (wall) its slots, slack and 30 s.", checks.seconds
    )
    margin: float = _setting(15.0, "Seconds after the deadline for which a message stays alive.", checks.seconds)
    roll_call: float = _setting(
        180.0, "Seconds to wait for all clients; the run begins with those who came.", checks.some_seconds
    )
    pin_nodes: bool = _setting(
        False, "Whether a client is held to its first Flower node; only with registered keys.", flag
    )
    evaluate_every: int = _shared(Look, "every", 20)
    out: str = _setting("", "Absolute folder of the run; empty writes nothing.", _absolute)
    resume: bool = _setting(False, "Resume from the checkpoint in `out`.", flag)
    device: str = _setting("cpu", "Where nodes train and the server evaluates.", one_of("cpu"))

    def __attrs_post_init__(self) -> None:
        self.config()  # refuses what is shared with a simulated run, by name
        if self.policy == "isolated":
            raise InputError("policy = isolated: clients that train alone need no federation")
        if self.initial > self.capacity:
            raise InputError(f"initial = {self.initial:g}: needs at most the capacity of {self.capacity:g}")
        if self.resume and not self.out:
            raise InputError("resume = true: needs `out`, the folder that holds the checkpoint")

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
        """What a node is given to answer in."""
        if self.deadline:
            return self.deadline
        return 300.0 if self.clock == "logical" else ceil((self.session + self.slack) * self.slot_seconds) + 30.0

    @property
    def lifetime(self) -> float:
        """Seconds for which a message to a node is alive."""
        return self.seconds + self.margin

    def config(self) -> Config:
        """The same as the configuration of a simulated run, so that reports read both."""
        values: dict[str, dict[str, Any]] = {name: {} for name in SECTIONS.values()}
        for attribute in attrs.fields(RunSettings):
            if "place" in attribute.metadata:
                section, name = attribute.metadata["place"]
                value = getattr(self, attribute.name)
                values[section][name] = value or None if attribute.metadata["optional"] else value
        if self.partition != "iid":
            values["data"]["alpha"] = float(self.partition.partition(":")[2])
        built = {name: section(**values[name]) for section, name in SECTIONS.items()}
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


@frozen
class NodeSettings(_Flat):
    """One node.  What is left empty comes from the run's settings."""

    partition_id: int = _setting(0, "Which client it is, from 0.", at_least(0))
    data: str = _setting("", "Its own data: an .npz file with x and y, or a folder of x.npy and y.npy.", _absolute)
    ledger: str = _setting(
        "", "File of its energy ledger and answers; without one Flower's memory holds them.", _absolute
    )
    battery: str = _setting("emulated", "Where the level comes from: emulated, gauge:FILE or machine.", _battery)
    harvest: str = _setting("", "Emulated battery: where energy comes from.", _harvest)
    capacity: float = _setting(0.0, "Units that its battery holds; 0 for the run's capacity.", checks.units)
    initial: float = _setting(-1.0, "Emulated battery: units at the very beginning; negative for the run's.", _INITIAL)
    pace: float = _setting(0.0, "Seconds per step at least, to emulate a slow device.", checks.seconds)


def _is_number(text: str) -> bool:
    try:
        return isfinite(float(text))
    except ValueError:
        return False
