"""What several commands have in common."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import attrs
import typer

from pipecycle.checks import MOST_WORKERS, at_least, seconds
from pipecycle.errors import InputError, shown
from pipecycle.policies.registry import parameters, policy_class
from pipecycle.runs.config import Config, read_config
from pipecycle.runs.planning import planning
from pipecycle.schedule.schedule import Schedule
from pipecycle.screen import progress
from pipecycle.stopping import Interrupted
from pipecycle.world.devices_file import load as load_fleet
from pipecycle.world.specs import FORMS

Groups = Annotated[int | None, typer.Option(help="Concurrent groups G, for policies that have groups. \\[default: 2]")]
Delta = Annotated[float | None, typer.Option(help="Charging probability per slot. \\[default: 0.5]")]
Clients = Annotated[int | None, typer.Option(help="How many clients. \\[default: 100]")]
SessionLength = Annotated[int | None, typer.Option(help="Slots, and units, of a session (B). \\[default: 20]")]
Slots = Annotated[int | None, typer.Option(help="Horizon in slots. \\[default: 15000]")]
Budget = Annotated[float | None, typer.Option(help="Stop once the fleet has spent this many units.")]
Trial = Annotated[int | None, typer.Option(help="Picks weather and every random choice. \\[default: 0]")]
HarvestSpec = Annotated[str | None, typer.Option(metavar="SPEC", help=f"Instead of --delta: {FORMS}.")]
Fleet = Annotated[
    str | None, typer.Option(help="A file of devices (.toml or .csv), or phones, boards, microcontrollers, satellites.")
]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", help="A TOML file with any of this; what is given here wins over it.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="A setting of the policy, or any field: train.lr=0.1, capacity=50."
    ),
]
DataSet = Annotated[str | None, typer.Option("--data", help="digits, fashion-mnist, cifar10 or an .npz file.")]
Model = Annotated[str | None, typer.Option(help="mlp, lenet, cnn64, wide, cnn64-gn, resnet8-gn or module:factory.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]


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


def settings(pairs: list[str]) -> dict[str, Any]:
    """`--set key=value ...` as a dict of text."""
    options: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise InputError(f"--set {shown(pair)}: needs key=value")
        options[key.strip()] = value.strip()
    return options


def configured(
    base: Config, file: Path | None, policy: str | None, given: Mapping[str, Any], pairs: list[str] | None
) -> Config:
    """`base` or the file, then the command's own options, then `--set`; what is None was not given."""
    config = base if file is None else read_config(file)
    if policy is not None and policy != config.policy:
        policy_class(policy)
        config = attrs.evolve(config, policy=policy, settings={})
    options = {key: value for key, value in given.items() if value is not None}
    delta = options.pop("delta", None)
    if delta is not None:
        if "world.harvest" in options:
            raise InputError("--delta and --harvest: give one of them, not both")
        options["world.harvest"] = f"bernoulli:{delta!r}"
    if "world.fleet" in options and "world.clients" not in options:
        counts = load_fleet(options["world.fleet"]).counts
        if counts is not None:  # a command's own default number of clients is no wish of the user's
            options["world.clients"] = int(counts.sum())
    if "policy.groups" in options and "groups" not in parameters(policy_class(config.policy)):
        raise InputError(f"--groups {options['policy.groups']}: {config.policy} has no groups")
    for key, value in settings(pairs or []).items():
        options[f"world.{key}" if key in ("capacity", "initial") else key] = value
    return config.changed(options)


def planned(config: Config) -> Schedule:
    """The schedule of a configuration, with a bar while it is made."""
    plan = planning(config)
    with progress() as bar:
        for _ in bar.track(plan.steps(), total=config.world.slots, description=f"planning {config.policy}"):
            pass
    return plan.schedule()
