"""What several commands have in common."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import attrs
import typer

from pipecycle.checks import MOST_WORKERS, at_least, seconds
from pipecycle.commands.fields import among
from pipecycle.errors import InputError, shown
from pipecycle.policies import REGISTRY
from pipecycle.policies.registry import parameters, policy_class
from pipecycle.policies.spec import Spec
from pipecycle.runs.config import SECTIONS, SHORT, Config, counted, read_config, whole_name
from pipecycle.runs.planning import planning
from pipecycle.schedule.schedule import Schedule
from pipecycle.screen import progress
from pipecycle.stopping import Interrupted
from pipecycle.world.devices_file import load as load_fleet


def _keys() -> list[str]:
    """Short names, settings of any policy of ours, and fields with their section."""
    keys = [*SHORT, *(key for kind in REGISTRY.values() for key in parameters(kind))]
    keys += [f"{section}.{field.name}" for section, kind in SECTIONS.items() for field in attrs.fields(kind)]
    return [f"{key}=" for key in dict.fromkeys(keys)]


complete_policy = among(REGISTRY)

ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", help="A TOML file with any of this (see `pipecycle config`); options win over it."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="A setting of the policy, or any field of `pipecycle config`: groups=3, train.lr=0.1, capacity=50.",
        autocompletion=among(_keys()),
    ),
]
PolicyName = Annotated[
    str | None,
    typer.Argument(
        help="A scheduler (see `pipecycle policies`), with settings if you like: 'pipecycle(groups=3)'; or your own "
        "as module:Class.",
        autocompletion=complete_policy,
    ),
]
Fresh = Annotated[bool, typer.Option("--fresh", help="Start from scratch instead of resuming.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Device = Annotated[
    str, typer.Option(help="auto, cpu, cuda or cuda:NUMBER.", autocompletion=among(("auto", "cpu", "cuda")))
]
Workers = Annotated[int | None, typer.Option(min=1, metavar="N", help="Processes on a CPU. \\[default: one per core]")]
SaveEvery = Annotated[float, typer.Option(help="Seconds between two checkpoints.")]


SAID = 1000
STOPPED = SAID + 130
"""How a command ends that was interrupted and has said how to resume; the program says it for the others."""


def stopped(stop: Interrupted) -> typer.Exit:
    """The end of a command that has said how to resume: 130 after Ctrl-C, 143 after SIGTERM."""
    return typer.Exit(SAID + 128 + stop.number)


def check_execution(device: str, save_every: float = 0.0, workers: int | None = None) -> None:
    """Where and how runs are trained, refused before anything is planned."""
    if not re.fullmatch(r"auto|cpu|cuda(:\d{1,3})?", device):
        raise InputError(f"device = {shown(device)}: needs auto, cpu, cuda or cuda:NUMBER")
    if device.startswith("cuda"):
        from pipecycle.train.engine import pick_device

        pick_device(device)
    seconds.of("save-every", save_every)
    at_least(1, "process", most=MOST_WORKERS).of("workers", 1 if workers is None else workers)


def settings(pairs: list[str], option: str = "--set") -> dict[str, Any]:
    """`--set key=value ...` as a dict of text."""
    options: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise InputError(f"{option} {shown(pair)}: needs key=value")
        if key.strip() in options:
            raise InputError(f"{option} {shown(pair)}: {shown(key.strip())} is set twice, needs one value")
        options[key.strip()] = value.strip()
    return options


def once(options: Iterable[tuple[str, Any, str]]) -> tuple[dict[str, Any], dict[str, str]]:
    """The values of options and their words on the command line, by what they set: nothing may be given twice."""
    values: dict[str, Any] = {}
    wordings: dict[str, str] = {}
    for target, value, words in options:
        if target in wordings:
            raise InputError(f"{wordings[target]} and {words}: give one of them, not both")
        values[target], wordings[target] = value, words
    return values, wordings


def named(policy: str | None, file: Path | None) -> None:
    """Refuse a command that does not say which policy it is about."""
    if policy is None and file is None:
        raise InputError("POLICY: name a scheduler (see `pipecycle policies`), or a --config that does")


def configured(
    base: Config, file: Path | None, policy: str | None, given: Mapping[str, Any], pairs: Mapping[str, Any]
) -> Config:
    """`base` or the file, with the command's own options and `--set`; what is None was not given, and nothing may be
    given twice.  The policy is a name or a spec."""
    config = base if file is None else read_config(file)
    spec = Spec.of(config.policy if policy is None else policy)
    if spec.policy != config.policy:
        policy_class(spec.policy)
        config = attrs.evolve(config, policy=spec.policy, settings={})
    groups = [
        [(f"policy.{key}", value, f"{key}={value} of {spec.policy}") for key, value in spec.settings.items()],
        [(key, value, f"{key}={value} of {spec.policy}") for key, value in spec.fields.items()],
        [(key, value, f"--{key.split('.')[-1]} {value}") for key, value in given.items()],
        [(key, value, f"--set {key}={value}") for key, value in pairs.items()],
    ]
    if given.get("policy.groups") is not None and "groups" not in parameters(policy_class(config.policy)):
        raise InputError(f"--groups {given['policy.groups']}: {config.policy} has no groups")
    stated = [option for group in groups for option in group if option[1] is not None]
    options, wordings = once((*_target(key, value), words) for key, value, words in stated)
    config = config.changed(counted(options))
    if config.data.split is not None:
        for target in ("data.alpha", "data.samples", "world.clients"):
            if target in wordings:
                raise InputError(f"{wordings[target]}: has no effect, {config.data.split} says who holds which samples")
    if config.world.fleet is not None:
        devices = load_fleet(config.world.fleet)
        for key in ("session", "capacity", "initial", "harvest", "samples"):
            target = f"{'data' if key == 'samples' else 'world'}.{key}"
            if target in wordings and devices.states(key):
                raise InputError(f"{wordings[target]}: has no effect, all devices of {devices.name} have their own")
    return config


def _target(key: str, value: Any) -> tuple[str, Any]:
    name, value = whole_name(key, value)
    return name if "." in name else f"policy.{name}", value


def planned(config: Config) -> Schedule:
    """The schedule of a configuration, with a bar while it is made."""
    plan = planning(config)
    with progress() as bar:
        for _ in bar.track(plan.steps(), total=config.world.slots, description=f"planning {config.policy}"):
            pass
    return plan.schedule()
