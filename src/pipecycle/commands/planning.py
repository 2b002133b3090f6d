"""`pipecycle plan`, `show`, `diff`, `policies`: schedules, before anything is trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from pipecycle.commands.shared import Json, progress, settings
from pipecycle.energy import quanta
from pipecycle.errors import InputError
from pipecycle.harvest import Bernoulli
from pipecycle.picture import pipeline
from pipecycle.plan import Run
from pipecycle.registry import build, convert, parameters, policy_class
from pipecycle.schedule import Schedule
from pipecycle.specs import FORMS, parse_harvest
from pipecycle.summary import number, sentences, summarise, warnings


def plan(
    policy: Annotated[str, typer.Argument(help="A scheduler (see `pipecycle policies`), or your own as module:Class.")],
    groups: Annotated[
        int | None, typer.Option(help="Concurrent groups G, for policies that have groups. \\[default: 2]")
    ] = None,
    delta: Annotated[float | None, typer.Option(help="Charging probability per slot. \\[default: 0.5]")] = None,
    clients: Annotated[int, typer.Option(help="How many clients.")] = 100,
    session: Annotated[int, typer.Option(help="Slots, and energy units, of one training session (B).")] = 20,
    slots: Annotated[int, typer.Option(help="Horizon in slots.")] = 15_000,
    budget: Annotated[float | None, typer.Option(help="Stop once the fleet has spent this many units.")] = None,
    trial: Annotated[int, typer.Option(help="Picks the weather and every random choice.")] = 0,
    harvest: Annotated[str | None, typer.Option(metavar="SPEC", help=f"Instead of --delta: {FORMS}.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting of the policy, or capacity or initial (units)."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Save the schedule to this .npz file.")] = None,
    as_json: Json = False,
) -> None:
    """Plan a scheduler against simulated batteries: who trains when, from which model, at what cost.

    Nothing is trained. Example: pipecycle plan pipecycle --groups 10 --delta 0.5 --set rotation=spread"""
    if delta is not None and harvest is not None:
        raise InputError("--delta and --harvest: give one of them, not both")
    options = settings(set_ or [])
    battery = {key: convert(key, options.pop(key), float) for key in ("capacity", "initial") if key in options}
    for key, value in battery.items():
        quanta(value, key)
    if groups is not None:
        if "groups" not in parameters(policy_class(policy)):
            raise InputError(f"--groups {groups}: {policy} has no groups")
        options["groups"] = groups
    chosen = build(policy, options)
    weather = Bernoulli(0.5 if delta is None else delta) if harvest is None else parse_harvest(harvest)
    run = Run(chosen, weather, clients, slots, session=session, budget=budget, trial=trial, **battery)
    with progress() as bar:
        for _ in bar.track(run.steps(), total=slots, description=f"planning {policy}"):
            pass
    schedule = run.schedule()
    if out is not None:
        schedule.save(out)
    _print(schedule, as_json)
    if out is not None and not as_json:
        Console().print(f"saved to {out}", highlight=False)


def show(
    file: Annotated[Path, typer.Argument(help="A schedule saved by `pipecycle plan --out`.")],
    budget: Annotated[float | None, typer.Option(help="Say when this many units had been spent.")] = None,
    as_json: Json = False,
) -> None:
    """The figures and the picture of a saved schedule."""
    _print(Schedule.load(file), as_json, budget)


def diff(
    a: Annotated[Path, typer.Argument(help="A saved schedule.")],
    b: Annotated[Path, typer.Argument(help="Another.")],
    as_json: Json = False,
) -> None:
    """What differs between two saved schedules; exit code 1 if anything does."""
    first, second = Schedule.load(a), Schedule.load(b)
    found = first.differences(second)
    left, right = _flat(summarise(first)), _flat(summarise(second))
    figures = {
        key: {"a": left.get(key), "b": right.get(key)}
        for key in [*left, *(key for key in right if key not in left)]
        if left.get(key) != right.get(key)
    }
    if as_json:
        print(json.dumps({"equal": not found, "differs": found, "figures": figures}))
    else:
        console = Console()
        if not found:
            console.print("The schedules are identical.")
        else:
            table = Table(
                "figure", str(a), str(b), title=f"{len(found)} columns or settings differ", title_justify="left"
            )
            for key, values in figures.items():
                table.add_row(key, number(values["a"]), number(values["b"]))
            console.print(table)
    if found:
        raise typer.Exit(1)


def policies(as_json: Json = False) -> None:
    """The schedulers there are, and their settings."""
    from pipecycle.policies import REGISTRY

    rows = {name: ((kind.__doc__ or "").strip(), list(parameters(kind))) for name, kind in REGISTRY.items()}
    if as_json:
        print(json.dumps({name: {"about": about, "settings": keys} for name, (about, keys) in rows.items()}))
        return
    width = max(map(len, rows))
    for name, (about, keys) in rows.items():
        print(f"{name:<{width}}  {about}  [{' '.join(keys)}]")


def _print(schedule: Schedule, as_json: bool, budget: float | None = None) -> None:
    figures = summarise(schedule, budget)
    if as_json:
        print(json.dumps(figures))
        return
    console = Console()
    given = ", ".join(f"{key} {value}" for key, value in schedule.meta["settings"].items() if value is not None)
    console.print(f"[bold]{schedule.policy}[/] ({given})", highlight=False)
    console.print(pipeline(schedule, min(console.width, 140)))
    table = Table(show_header=False, box=None, pad_edge=False)
    for name, value in sentences(figures).items():
        table.add_row(f"[bold]{name}[/]", value)
    console.print(table, highlight=False)
    for warning in warnings(figures):
        console.print(f"[bold yellow]Note:[/] {warning}", highlight=False)


def _flat(figures: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in figures.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat
