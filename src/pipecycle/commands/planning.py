"""`pipecycle plan`, `show`, `diff`, `policies`: schedules, before anything is trained."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import attrs
import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from pipecycle.checks import some_units
from pipecycle.commands.fields import Given, fields
from pipecycle.commands.shared import (
    ConfigFile,
    Json,
    PolicyName,
    Settings,
    complete_policy,
    configured,
    named,
    planned,
    settings,
)
from pipecycle.files import writable
from pipecycle.policies.registry import ELSEWHERE, policy_class
from pipecycle.policies.settings import described
from pipecycle.policies.spec import Spec
from pipecycle.report.picture import picture
from pipecycle.runs.config import BY_THE_MODEL, SHORT, Config, toml
from pipecycle.runs.planning import model_of, priced_by_model
from pipecycle.schedule.schedule import Schedule
from pipecycle.schedule.summary import flattened, sentences, summarise, warnings
from pipecycle.screen import lead, screen
from pipecycle.words import number, plural

WORLD = ("policy.groups", "delta", "clients", "session", "slots", "budget", "trial", "harvest", "fleet")
"""Fields that plans and runs have options for; what they learn has more."""
PLANNED = ("data.name", "data.samples", "data.split", "train.model", "train.batch")
"""What a plan takes from the sections about learning: it decides how updates are weighted and what tables cost."""


@fields(Config(), "data", "model", *WORLD)
def plan(
    policy: PolicyName = None,
    *,
    given: Given,
    config: ConfigFile = None,
    set_: Settings = None,
    out: Annotated[Path | None, typer.Option(help="Save the schedule to this .npz file.")] = None,
    as_json: Json = False,
) -> None:
    """Plan a scheduler against simulated batteries: who trains when, from which model, at what cost.

    Nothing is trained. Data and model only decide how updates are weighted and what FLDA's tables cost. Example:
    pipecycle plan pipecycle --groups 10 --delta 0.5 --set rotation=spread"""
    named(policy, config)
    pairs = settings(set_ or [])
    chosen = configured(Config(), config, policy, given, pairs)
    if out is not None:
        writable(out)
    schedule = planned(chosen)
    if out is not None:
        schedule.save(out)
    _print(schedule, as_json)
    if idle := _idle([*Spec.of(policy or chosen.policy).fields, *pairs]):
        verb = "has" if len(idle) == 1 else "have"
        text = f" {', '.join(idle)} {verb} no effect on a plan, which trains nothing."
        screen(stderr=as_json).print(lead("Note:", text, "bold yellow"), soft_wrap=False)
    if priced_by_model(chosen) and not as_json:
        classes, size = model_of(chosen)
        price = f"{number(classes**2)} / {number(size)} of an update"
        why = f"for {chosen.train.model} on {chosen.data.name}; --data, --model or --set upload_ratio=R decide it"
        screen().print(lead("Note:", f" a logit table costs {price}, {why}."))
    if out is not None and not as_json:
        screen().print(f"saved to {out}")


def _idle(keys: Iterable[str]) -> list[str]:
    """Those of the settings given for a plan that matter to training alone."""
    names = [SHORT.get(key, key) for key in keys]
    return [name for name in names if name.startswith(("data.", "train.", "look.")) and name not in PLANNED]


def show(
    file: Annotated[Path, typer.Argument(help="A schedule saved by `pipecycle plan --out`, or a run folder.")],
    budget: Annotated[float | None, typer.Option(help="Say when this many units had been spent.")] = None,
    as_json: Json = False,
) -> None:
    """Print a saved schedule: its picture and its numbers.

    Example: pipecycle show plan.npz --budget 10000"""
    if budget is not None:
        some_units.of("budget", budget)
    _print(Schedule.load(file), as_json, budget)


def diff(
    a: Annotated[Path, typer.Argument(help="A saved schedule, or a run folder.")],
    b: Annotated[Path, typer.Argument(help="Another.")],
    as_json: Json = False,
) -> None:
    """Say how two saved schedules differ; exit code 1 if they do.

    Example: pipecycle diff a.npz b.npz"""
    first, second = Schedule.load(a), Schedule.load(b)
    differs = first.differences(second)
    left, right = flattened(summarise(first)), flattened(summarise(second))
    figures = {
        key: {"a": left.get(key), "b": right.get(key)}
        for key in [*left, *(key for key in right if key not in left)]
        if left.get(key) != right.get(key)
    }
    if as_json:
        print(json.dumps({"equal": not differs, "differs": differs, "figures": figures}))
    else:
        title = f"The schedules differ in {plural(len(differs), 'column')}. What they come to:"
        table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
        table.add_column(no_wrap=True)
        for file in (a, b):
            table.add_column(str(file), overflow="fold")
        for key, values in figures.items():
            table.add_row(key, number(values["a"]), number(values["b"]))
        screen().print(table if differs else "The schedules are identical.")
    if differs:
        raise typer.Exit(1)


def policies(
    policy: Annotated[
        str | None,
        typer.Argument(
            help="One scheduler, or your own as module:Class. \\[default: all of ours]", autocompletion=complete_policy
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the schedulers with every setting: its default, what it means, and what is allowed.

    Example: pipecycle policies pipecycle"""
    from pipecycle.policies import REGISTRY

    kinds = dict(REGISTRY) if policy is None else {name: policy_class(name) for name in [Spec.of(policy).policy]}
    if as_json:
        facts = {
            name: {
                "about": inspect.cleandoc(kind.__doc__ or ""),
                "settings": {key: attrs.asdict(setting) for key, setting in described(kind).items()},
            }
            for name, kind in kinds.items()
        }
        print(json.dumps(facts, default=str))
        return
    for name, kind in kinds.items():
        print(f"{name}: {inspect.cleandoc(kind.__doc__ or '')}")
        for key, setting in described(kind).items():
            default = "by the model" if key in BY_THE_MODEL else toml(setting.default)
            print(f"    {key}{'' if setting.default is None else f' = {default}'}  {setting}")
    for name, where in ELSEWHERE.items() if policy is None else ():
        print(f"{name}: {where}")


def _print(schedule: Schedule, as_json: bool, budget: float | None = None) -> None:
    figures = summarise(schedule, budget)
    if as_json:
        print(json.dumps(figures))
        return
    console = screen()
    given = ", ".join(f"{key} {value}" for key, value in schedule.meta["settings"].items() if value is not None)
    console.print(lead(schedule.policy, f" ({given})" if given else ""))
    console.print(picture(schedule, min(console.width, 140)))
    table = Table(show_header=False, box=None, pad_edge=False)
    for name, value in sentences(figures).items():
        table.add_row(lead(name, ""), value)
    console.print(table)
    for warning in warnings(figures):
        console.print(lead("Note:", f" {warning}", "bold yellow"), soft_wrap=False)
