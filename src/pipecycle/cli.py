"""The `pipecycle` command."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from pipecycle import __version__
from pipecycle.data.commands import app as data_app
from pipecycle.energy import quanta
from pipecycle.errors import InputError
from pipecycle.harvest import Bernoulli
from pipecycle.picture import pipeline
from pipecycle.plan import Run
from pipecycle.registry import build, convert, parameters, policy_class
from pipecycle.schedule import Schedule
from pipecycle.specs import FORMS, parse_harvest
from pipecycle.summary import number, sentences, summarise, warnings

app = typer.Typer(
    name="pipecycle",
    help="Federated learning on harvested energy: plan who trains when, and see what each unit of energy buys.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(data_app, name="data", help="Data sets and how they are split between clients.")

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]


def _version(wanted: bool) -> None:
    if wanted:
        print(f"pipecycle {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say which version.")
    ] = False,
) -> None:
    """Federated learning on harvested energy: plan who trains when, and see what each unit of energy buys."""


@app.command()
def plan(
    policy: Annotated[str, typer.Argument(help="A scheduler (see `pipecycle policies`), or your own as module:Class.")],
    groups: Annotated[
        int | None, typer.Option(help="Concurrent groups G, for policies that have groups. [default: 2]")
    ] = None,
    delta: Annotated[float | None, typer.Option(help="Charging probability per slot. [default: 0.5]")] = None,
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
    options = _settings(set_ or [])
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


@app.command()
def run(
    policy: Annotated[str | None, typer.Argument(help="A scheduler, or your own as module:Class.")] = None,
    data: Annotated[str | None, typer.Option(help="digits, fashion-mnist, cifar10 or an .npz file.")] = None,
    model: Annotated[str | None, typer.Option(help="mlp, lenet, cnn64, wide or module:factory.")] = None,
    alpha: Annotated[float | None, typer.Option(help="Dirichlet concentration of the labels. [default: IID]")] = None,
    groups: Annotated[int | None, typer.Option(help="Concurrent groups G, for policies that have groups.")] = None,
    delta: Annotated[float | None, typer.Option(help="Charging probability per slot. [default: 0.5]")] = None,
    clients: Annotated[int | None, typer.Option(help="How many clients. [default: 100]")] = None,
    session: Annotated[int | None, typer.Option(help="Slots of one session (B). [default: 20]")] = None,
    slots: Annotated[int | None, typer.Option(help="Horizon in slots. [default: 15000]")] = None,
    budget: Annotated[float | None, typer.Option(help="Stop once the fleet has spent this many units.")] = None,
    trial: Annotated[int | None, typer.Option(help="Picks weather, split, batches and every random choice.")] = None,
    harvest: Annotated[str | None, typer.Option(metavar="SPEC", help=f"Instead of --delta: {FORMS}.")] = None,
    config: Annotated[Path | None, typer.Option(help="A TOML file with any of the above; options win over it.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting of the policy, or any field: train.lr=0.1."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The run's folder. [default: runs/NAME]")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:NUMBER.")] = "auto",
    save_every: Annotated[float, typer.Option(help="Seconds between two checkpoints.")] = 60.0,
    fresh: Annotated[bool, typer.Option("--fresh", help="Begin again instead of resuming.")] = False,
    as_json: Json = False,
) -> None:
    """Plan a scheduler and train it on real data: accuracy against slots and energy, in a folder.

    A finished run is shown, an unfinished one goes on to the very same result, whatever stopped it. Example:
    pipecycle run pipecycle+ --groups 5 --data digits --slots 3000 --clients 40"""
    if delta is not None and harvest is not None:
        raise InputError("--delta and --harvest: give one of them, not both")
    from pipecycle.config import Config, read_config
    from pipecycle.running import conduct

    base = Config() if config is None else read_config(config)
    if policy is not None and policy != base.policy:
        base = Config(policy, {}, base.world, base.data, base.train, base.look)
    if groups is not None and "groups" not in parameters(policy_class(base.policy)):
        raise InputError(f"--groups {groups}: {base.policy} has no groups")
    given = {
        "policy.groups": groups,
        "world.harvest": harvest if delta is None else f"bernoulli:{delta!r}",
        "world.clients": clients,
        "world.session": session,
        "world.slots": slots,
        "world.budget": budget,
        "world.trial": trial,
        "data.name": data,
        "data.alpha": alpha,
        "train.model": model,
    }
    options = {key: value for key, value in given.items() if value is not None}
    for key, value in _settings(set_ or []).items():
        options[f"world.{key}" if key in ("capacity", "initial") else key] = value
    conduct(base.changed(options), out, device, save_every, fresh, as_json)


@app.command()
def show(
    file: Annotated[Path, typer.Argument(help="A schedule saved by `pipecycle plan --out`.")],
    budget: Annotated[float | None, typer.Option(help="Say when this many units had been spent.")] = None,
    as_json: Json = False,
) -> None:
    """The figures and the picture of a saved schedule."""
    _print(Schedule.load(file), as_json, budget)


@app.command()
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


@app.command()
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


def progress() -> Progress:
    """A bar on stderr while something takes long; nothing where nobody looks."""
    console = Console(stderr=True)
    return Progress(console=console, transient=True, disable=not console.is_terminal)


def _settings(pairs: list[str]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise InputError(f"--set {pair}: needs key=value")
        options[key.strip()] = value.strip()
    return options


def _print(schedule: Schedule, as_json: bool, budget: float | None = None) -> None:
    figures = summarise(schedule, budget)
    if as_json:
        print(json.dumps(figures))
        return
    console = Console()
    settings = ", ".join(f"{key} {value}" for key, value in schedule.meta["settings"].items() if value is not None)
    console.print(f"[bold]{schedule.policy}[/] ({settings})", highlight=False)
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


_USAGE_ERRORS: tuple[type[Exception], ...] = tuple(
    kind
    for kind in typer.BadParameter.__mro__
    if kind not in (Exception, BaseException, object) and issubclass(kind, Exception)
)


def main() -> None:
    """Run the command; a mistake of the user's is one sentence on stderr and exit code 2."""
    try:
        code = app(standalone_mode=False)
        sys.stdout.flush()
    except InputError as error:
        code = _refuse(str(error))
    except (typer.Abort, KeyboardInterrupt):
        code = 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except _USAGE_ERRORS as error:
        code = _refuse(error.format_message() if hasattr(error, "format_message") else str(error))
    sys.exit(code or 0)


def _refuse(message: str) -> int:
    print(f"pipecycle: {' '.join(message.split())}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    main()
