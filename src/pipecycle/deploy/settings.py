"""What a live run and a node are told: flat scalars, as Flower's run and node configuration carry them."""

from __future__ import annotations

import json
import typing
from collections.abc import Mapping
from math import ceil, isfinite
from pathlib import Path
from typing import Any, Self

import attrs
from attrs import field, frozen

from pipecycle import checks
from pipecycle.checks import at_least, flag, one_of
from pipecycle.config import Config, Data, Look, Train, World
from pipecycle.errors import InputError, shown
from pipecycle.registry import convert, nearest
from pipecycle.specs import parse_harvest

Scalar = bool | int | float | str
FOREIGN = ("num-partitions",)
"""Keys that Flower's engines add by themselves."""


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


def _unset(value: str) -> str:
    return "" if value == "none" else value


class _Flat:
    """To and from a flat mapping with keys like `slot-seconds`."""

    @classmethod
    def of(cls, values: Mapping[str, Any], *, strict: bool = True) -> Self:
        """From a configuration; an unknown key or a wrong type is refused by name.  Not `strict`, keys that are not
        ours are passed over: a user's own app has some of its own."""
        hints = typing.get_type_hints(cls)
        names = {one.name.replace("_", "-"): one.name for one in attrs.fields(cls)}  # type: ignore[arg-type]
        given = {}
        for key, value in values.items():
            if key in FOREIGN or (not strict and key not in names):
                continue
            if key not in names:
                raise InputError(f"{shown(key)} = {shown(value)}: {nearest(key, names)}")
            given[names[key]] = convert(key, value, hints[names[key]])
        return cls(**given)

    def flat(self) -> dict[str, Scalar]:
        """For `[tool.flwr.app.config]`, `--run-config` or `--node-config`."""
        return {key.replace("_", "-"): value for key, value in attrs.asdict(self).items()}  # type: ignore[arg-type]


@frozen
class RunSettings(_Flat):
    """A live run.  The defaults are a small federation on the embedded digits.

    What a simulated run has too is checked by `pipecycle.config`."""

    policy: str = "pipecycle"
    """A policy by name, or a user's own as module:Class."""
    policy_settings: str = "{}"
    """Its settings as a JSON object, e.g. {"groups": 2}."""
    model: str = "mlp"
    """mlp, lenet, cnn64, wide or module:factory; the same on the server and on every node."""
    data: str = "digits"
    """A named set or an .npz file.  The server uses its test part; nodes without data of their own their share."""
    partition: str = field(default="iid", validator=_partition)
    """How the named data are shared out: iid or dirichlet:ALPHA."""
    scale: str = field(default="", converter=_unset)
    """How bytes become numbers: standard, unit, half or centre; empty for the data set's own."""
    samples: int = field(default=0, validator=at_least(0))
    """Samples per node in that share; 0 for min(300, all / clients)."""
    clients: int = 4
    """Nodes to wait for; they are numbered by their partition-id, 0 to clients - 1."""
    clock: str = field(default="logical", validator=one_of("logical", "wall"))
    """logical: slots follow each other as sessions end, reproducible.  wall: a slot lasts slot-seconds."""
    slot_seconds: float = field(default=1.0, validator=checks.some_seconds)
    """Wall clock: how long a slot lasts."""
    slots: int = 100
    """Slots to run."""
    session: int = 20
    """Steps of a session, each of which takes a unit of energy (B)."""
    slack: int = field(default=0, validator=at_least(0, most=checks.MOST_SLOTS))
    """Slots that a report may take beyond the session itself: policies that work by the clock begin so much earlier."""
    batch: int = 15
    """Samples per step."""
    augment: str = field(default="", converter=_unset)
    """Random views of the images: flip, crop:N or crop:N+flip; empty trains on images as they are."""
    lr: float = 0.05
    """Learning rate."""
    momentum: float = 0.0
    """Within a session."""
    weight_decay: float = 0.0
    """Pull towards zero."""
    proximal: float = 0.0
    """Pull towards the reference (FedProx)."""
    distillation: float = 0.1
    """FLDA: weight of the teacher's term."""
    trial: int = 0
    """Picks the split, the initial weights, every batch and every random choice."""
    harvest: str = field(default="bernoulli:0.5", validator=_harvest)
    """What the server forecasts between reports, and what emulated batteries meet that name no harvest."""
    capacity: float = 1e6
    """Units that a battery holds, at most: a report above it is refused."""
    initial: float = 0.0
    """Units in an emulated battery that names no initial charge."""
    deadline: float = field(default=0.0, validator=checks.seconds)
    """Seconds until a session must have answered; 0 for 300 (logical) or its slots, its slack and 30 s (wall)."""
    margin: float = field(default=15.0, validator=checks.seconds)
    """Seconds after the deadline for which a message stays alive."""
    roll_call: float = field(default=180.0, validator=checks.some_seconds)
    """Seconds to wait for all clients at the start; the run begins with those who came."""
    pin_nodes: bool = field(default=False, validator=flag)
    """Whether a client is held to the Flower node it was first heard from; only where nodes have registered keys."""
    evaluate_every: int = 20
    """Slots between two evaluations of the served model on the test samples."""
    out: str = field(default="", validator=_absolute)
    """Absolute folder of the run (trace, checkpoint, model, schedule, metrics); empty writes nothing."""
    resume: bool = field(default=False, validator=flag)
    """Go on from the checkpoint in `out`."""
    device: str = field(default="cpu", validator=one_of("cpu"))
    """Where nodes train and the server evaluates."""

    def __attrs_post_init__(self) -> None:
        self.config()  # refuses unknown policies and settings by name
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
    def alpha(self) -> float | None:
        """Dirichlet concentration, None for IID."""
        return None if self.partition == "iid" else float(self.partition.partition(":")[2])

    @property
    def seconds(self) -> float:
        """What a node is given to answer in."""
        if self.deadline:
            return self.deadline
        return 300.0 if self.clock == "logical" else ceil((self.session + self.slack) * self.slot_seconds) + 30.0

    def config(self) -> Config:
        """The same as the configuration of a simulated run, so that reports read both."""
        return Config(
            policy=self.policy,
            settings=self.options,
            world=World(
                clients=self.clients,
                session=self.session,
                slots=self.slots,
                harvest=self.harvest,
                trial=self.trial,
                capacity=self.capacity,
                initial=self.initial,
            ),
            data=Data(name=self.data, alpha=self.alpha, samples=self.samples or None, scale=self.scale or None),
            train=Train(
                model=self.model,
                lr=self.lr,
                momentum=self.momentum,
                weight_decay=self.weight_decay,
                proximal=self.proximal,
                batch=self.batch,
                distillation=self.distillation,
                augment=self.augment or None,
            ),
            look=Look(every=self.evaluate_every),
        )


@frozen
class NodeSettings(_Flat):
    """One node.  What is left empty comes from the run's settings."""

    partition_id: int = field(default=0, validator=at_least(0))
    """Which client it is, from 0."""
    data: str = field(default="", validator=_absolute)
    """Its own data: an .npz with x_train and y_train (or x and y), or a folder of x.npy and y.npy."""
    ledger: str = field(default="", validator=_absolute)
    """File of its energy ledger and its last answers; without one they live in Flower's memory only."""
    battery: str = field(default="emulated", validator=_battery)
    """Where the level comes from: emulated, gauge:FILE (units as text) or machine (the computer's own battery)."""
    harvest: str = field(default="", validator=_harvest)
    """Emulated battery: where energy comes from."""
    capacity: float = field(default=0.0, validator=checks.units)
    """Units that its battery holds; 0 for the run's capacity."""
    initial: float = field(default=-1.0, validator=checks.number(most=checks.MOST_UNITS))
    """Emulated battery: units at the very beginning; negative for the run's initial charge."""
    pace: float = field(default=0.0, validator=checks.seconds)
    """Seconds per step at least, to emulate a slow device."""


def _is_number(text: str) -> bool:
    try:
        return isfinite(float(text))
    except ValueError:
        return False
