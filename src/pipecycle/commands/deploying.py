"""`pipecycle deploy init`, `up`, `status`, `keys`: a live federation over Flower."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from pipecycle.checks import MOST_NODES
from pipecycle.commands import live_table
from pipecycle.commands.fields import Given, fields
from pipecycle.commands.live_app import quoted, write_app
from pipecycle.commands.live_machines import port_of, write_machines
from pipecycle.commands.shared import STOPPED, Json, once, settings
from pipecycle.deploy.local.progress import Progress, Tail
from pipecycle.deploy.node.settings import NodeSettings
from pipecycle.deploy.wire.settings import RunSettings, Scalar
from pipecycle.errors import InputError
from pipecycle.policies.registry import convert, parameters, policy_class
from pipecycle.runs.config import Config
from pipecycle.screen import screen
from pipecycle.world.devices_file import load as load_fleet
from pipecycle.world.specs import FORMS

if TYPE_CHECKING:
    from pipecycle.commands.live_up import Outcome, Site, StartOptions
    from pipecycle.deploy.local.federation import Federation

app = typer.Typer(no_args_is_help=True)


class Machines(StrEnum):
    """What starts a federation's programs, and starts them again after a power cut."""

    SYSTEMD = "systemd"
    COMPOSE = "compose"


DEMO: dict[str, Scalar] = {"clock": "wall", "slots": 120, "slack": 10, "initial": 25.0, "evaluate-every": 10}
"""The first live run: two minutes of one-second slots, and batteries that are charged for a session."""

Policy = Annotated[str | None, typer.Option(help="A scheduler, or your own as module:Class. \\[default: pipecycle]")]
Harvest = Annotated[str | None, typer.Option(metavar="SPEC", help=f"What emulated batteries gain: {FORMS}.")]
Nodes = Annotated[
    int | None,
    typer.Option(min=1, max=MOST_NODES, metavar="N", help="How many nodes, each with a battery. \\[default: 4]"),
]
SetOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Any setting of the run (clock, slot-seconds, slots, session, lr, partition, ...) or of the policy "
        "(groups, ...); the app's pyproject.toml explains them all.",
    ),
]


@app.command()
@fields(Config(), "data", "model")
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where to write the app.")],
    *,
    policy: Policy = None,
    given: Given,
    nodes: Nodes = None,
    harvest: Harvest = None,
    set_: SetOptions = None,
    with_: Annotated[
        Machines | None, typer.Option("--with", help="Also write what keeps it running on machines of its own.")
    ] = None,
    superlink: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="With --with: where the SuperLink will be.")
    ] = "fl.example.org:8000",
    as_json: Json = False,
) -> None:
    """Write a Flower app: pyproject.toml with every setting explained, and two modules of two lines.

    `pipecycle deploy up DIR` runs it on this machine, `flwr run DIR` on any SuperLink. Example:
    pipecycle deploy init forest --policy pipecycle+ --model lenet --nodes 8 --set groups=2 --set slot-seconds=30"""
    chosen = RunSettings.of({**DEMO, **_options(policy, nodes, harvest, set_, given)})
    port_of(superlink)  # refused before anything is written
    own = (folder / "pyproject.toml").exists()  # a user's app, which brings its model and data
    files = [str(path) for path in write_app(folder, chosen)]
    if with_ is not None:
        files += [str(path) for path in write_machines(folder, with_.value, superlink, chosen.clients)]
    if as_json:
        print(json.dumps({"folder": str(folder), "files": files, "settings": chosen.flat()}))
        return
    console = screen()
    learning = "" if own else f" that train {chosen.model} on {chosen.data}"
    for line in (
        f"{folder}: an app in which {chosen.policy} schedules {chosen.clients} nodes{learning}; its settings are in "
        f"{folder / 'pyproject.toml'}.",
        f"Try it on this machine: pipecycle deploy up {quoted(folder)}",
        f"On a SuperLink of yours: flwr run {quoted(folder)} NAME",
    ):
        console.print(line, soft_wrap=True)


@app.command()
@fields(Config(), "data", "model")
def up(
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="[DIR]", help="The app's folder, made if needed. \\[default: live]"),
    ] = None,
    *,
    nodes: Nodes = None,
    tls: Annotated[
        bool,
        typer.Option("--tls", help="Encrypt, and admit only nodes with registered keys (made for them)."),
    ] = False,
    policy: Policy = None,
    given: Given,
    harvest: Harvest = None,
    set_: SetOptions = None,
    node: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="A setting of every node: pace=0.5, battery=machine, capacity=60, ..."),
    ] = None,
    fleet: Annotated[
        str | None, typer.Option(help="A file of devices: node N has the battery and harvest of client N.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the run in DIR.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Delete the run in DIR and start from scratch.")] = False,
    dir_: Annotated[Path | None, typer.Option("--dir", hidden=True)] = None,
    as_json: Json = False,
) -> None:
    """Start a whole federation on this machine, run the app, watch it, and stop everything at the end.

    A SuperLink and real SuperNodes on 127.0.0.1, each node with its own battery and ledger. Ctrl-C ends all of it, and
    --resume continues the run. Options replace the app's settings for this run. Example:
    pipecycle deploy up --nodes 4 --tls --policy fedavg --set slots=90"""
    _need_flower()
    from pipecycle.commands.live_up import Site, StartOptions

    if folder is not None and dir_ is not None:
        raise InputError(f"DIR and --dir {dir_}: give one of them, not both")
    if resume and fresh:
        raise InputError("--resume and --fresh: give one of them, not both")
    site = Site(folder or dir_ or Path("live"))
    options = _options(policy, nodes, harvest, set_, given, site.policy)
    own = settings(node or [], "--node")
    for key in options.keys() & {"out", "resume"}:
        raise InputError(f"--set {key}={options[key]}: is set for you (results are in {site.out}, --resume resumes)")
    if fleet is not None:
        if "battery" in own:
            raise InputError("--fleet and --node battery=...: give one of them, not both")
        load_fleet(fleet)  # refused before anything starts
        own["battery"] = f"fleet:{Path(fleet).absolute() if Path(fleet).suffix else fleet}"
    for key in own.keys() & {"partition-id", "ledger"}:
        raise InputError(f"--node {key}={own[key]}: is different for every node, and set for you")
    described = NodeSettings.of(own).flat()
    start = site.start_options(StartOptions(tls, {key: described[key] for key in own}), resume=resume)
    begin = {} if site.has_app else DEMO
    chosen = site.prepare({**begin, **options}, start, resume=resume, fresh=fresh)
    console = screen(stderr=as_json)
    outcome = _run(site, chosen, start, console)
    _print_outcome(site, outcome, console, as_json)


def _run(site: Site, chosen: RunSettings, start: StartOptions, console: Console) -> Outcome:
    """Run the app, with a live table at a terminal, elsewhere with a line per evaluation."""
    from pipecycle.commands.live_up import run_app
    from pipecycle.deploy.local.loopback import Failed

    ended: set[str] = set()
    printed: dict[str, Any] = {}

    def say(text: str) -> None:
        console.print(text, soft_wrap=True)

    def notice(progress: Progress, federation: Federation) -> None:
        for name, code in federation.dead().items():
            if name not in ended:
                ended.add(name)
                say(f"{name} has ended with code {code} (see {federation.log(name)})")
        if not console.is_terminal and progress.evaluation != printed:
            printed.clear()
            printed.update(progress.evaluation)
            say(live_table.line(progress))

    try:
        if not console.is_terminal:
            return run_app(site, chosen, start, say=say, show=notice)
        with Live(Text("starting ..."), console=console, refresh_per_second=4, transient=True) as live:

            def show(progress: Progress, federation: Federation) -> None:
                notice(progress, federation)
                live.update(live_table.table(progress))

            return run_app(site, chosen, start, say=say, show=show)
    except KeyboardInterrupt:
        say("Stopped; every process has ended.")
        if site.trace.exists():
            how = "--resume` continues the run" if site.resumable else "--fresh` deletes it and starts from scratch"
            say(f"`pipecycle deploy up {quoted(site.folder)} {how}.")
        raise typer.Exit(STOPPED) from None
    except Failed as error:
        say(f"{error} Every process has ended.")
        raise typer.Exit(1) from None


def _print_outcome(site: Site, outcome: Outcome, console: Console, as_json: bool) -> None:
    """How the run ended, where the results are, and what to do with them."""
    if as_json:
        figures = {"folder": str(site.folder), "out": str(site.out), "verdict": outcome.verdict, "why": outcome.why}
        print(json.dumps({**figures, **live_table.figures(outcome.progress)}))
    else:
        console.print(live_table.table(outcome.progress))
        if outcome.completed:
            text = f"The run is complete. In {site.out}: trace.jsonl, schedule.npz, metrics.csv, model.safetensors."
            text += f"\nA report of it: pipecycle report {quoted(site.out)} --out {quoted(site.out / 'report.html')}"
        else:
            text = f"The run ended as {outcome.verdict}: {outcome.why}"
        console.print(text, soft_wrap=True)
    if not outcome.completed:
        raise typer.Exit(1)


@app.command()
def status(
    folder: Annotated[Path, typer.Argument(metavar="[DIR]", help="The app's folder.")] = Path("live"),
    keys: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keys of `deploy keys`. \\[default: those of `deploy up --tls`]")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show what runs in DIR and how far it is, or how it ended; and when certificates expire.

    Example: pipecycle deploy status forest --keys keys"""
    _need_flower()
    from pipecycle.commands.live_keys import validity
    from pipecycle.commands.live_up import Site
    from pipecycle.deploy.local import federation
    from pipecycle.deploy.local.certificates import Authority

    site = Site(folder)
    running = federation.status(site.federation)
    nothing = running is None and not site.trace.exists()
    if nothing and keys is None:
        raise InputError(f"{folder}: nothing runs or has run there (`pipecycle deploy up {quoted(folder)}` starts it)")
    authority = Authority(site.federation / "keys" if keys is None else keys)
    if keys is not None and not authority.made:
        raise InputError(f"--keys {keys}: has no certificates (`pipecycle deploy keys {quoted(keys)}` makes them)")
    progress = Tail(site.trace, live=running is not None).read()
    if as_json:
        ends = {name: end.isoformat() for name, end in authority.expiry.items()} if authority.made else None
        figures = {"running": running, "out": str(site.out), "certificates": ends}
        print(json.dumps({**figures, **live_table.figures(progress)}))
        return
    console = screen()
    if not nothing:
        console.print(live_table.table(progress))
        console.print(_state(site, running, progress), soft_wrap=True)
    if authority.made:
        text, urgent = validity(authority, local=keys is None)
        console.print(Text(text, style="yellow" if urgent else ""), soft_wrap=True)


def _state(site: Site, running: dict[str, Any] | None, progress: Progress) -> str:
    """What runs, how it ended, or how to resume it."""
    if running is not None:
        text = f"Running: process {running['pid']}, SuperLink on {running['address']}, run {running['run'] or '-'}, "
        text += f"nodes {', '.join(running['nodes']) or 'none'}{', TLS' if running['tls'] else ''}."
        if site.trace.exists():
            text += f" Last event {max(0.0, time.time() - site.trace.stat().st_mtime):.0f} s ago."
        return text
    if progress.ended is not None:
        return f"Ended: {progress.ended.get('ended', 'finished')}. Results in {site.out}."
    return f"Not running, not finished: pipecycle deploy up {quoted(site.folder)} --resume"


@app.command()
def node(
    settings: Annotated[Path, typer.Argument(metavar="NODE.toml", help="The node's settings.")],
    superlink: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where the SuperLink is.")],
    root: Annotated[
        Path | None, typer.Option(help="The certificate by which it is recognised; without it nothing is encrypted.")
    ] = None,
    key: Annotated[Path | None, typer.Option(help="The node's own key, which is registered there.")] = None,
) -> None:
    """Run a node on this device until it is stopped.

    If the SuperLink does not let it in, which is usual in the first minute after a power cut, it tries again. Example:
    pipecycle deploy node node-0.toml --superlink fl.example.org:8000 --root ca.crt --key node-0"""
    _need_flower()
    from pipecycle.commands.live_node import Device, run_node

    def say(text: str) -> None:
        print(text, flush=True)

    try:
        code = run_node(Device(settings, superlink, root, key), say)
    except KeyboardInterrupt:
        raise typer.Exit(STOPPED) from None
    raise typer.Exit(code)


@app.command()
def keys(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where they are, or are to be written.")],
    host: Annotated[
        list[str] | None, typer.Option(help="Name or address by which nodes reach the SuperLink; may be repeated.")
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option(min=0, max=MOST_NODES, metavar="N", help="Keys for nodes 0 to N - 1. \\[default: 4 at first]"),
    ] = None,
    renew: Annotated[
        bool, typer.Option("--renew", help="Sign a new server certificate; devices keep their ca.crt and their keys.")
    ] = False,
    authority: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The authority's own key, which signs. \\[default: DIR-authority.key]"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Make the certificates and keys for TLS and node authentication, for a federation on several machines.

    A server certificate, the certificate of the authority that signed it, and
    a key pair per node: deploy keys keys --host fl.example.org --nodes 8

    Nodes that are added later: deploy keys keys --nodes 12

    The server's certificate lasts a year (deploy status --keys keys says until
    when); this makes the next one: deploy keys keys --renew

    The authority's own key, which signs, lies beside DIR and not in it: it
    never goes to a device."""
    _need_flower()
    from pipecycle.commands.live_keys import Keys

    files, lines = Keys.of(folder, authority).make(host or [], nodes, renew=renew)
    if as_json:
        print(json.dumps({"files": [str(path) for path in files]}))
        return
    screen().print("\n".join(lines), soft_wrap=True)


def _options(
    policy: str | None,
    nodes: int | None,
    harvest: str | None,
    set_: list[str] | None,
    given: Given,
    before: str = "pipecycle",
) -> dict[str, Scalar]:
    """Options as settings of a run; the others are settings of the policy (`before`, if none is named)."""
    known, pairs = RunSettings.notes(), settings(set_ or [])
    policy_options = {key: value for key, value in pairs.items() if key not in known}
    flags = {"policy": policy, "clients": nodes, "harvest": harvest, **given}
    stated = [
        *((key, value, f"--{'nodes' if key == 'clients' else key} {value}") for key, value in flags.items()),
        *((key, value, f"--set {key}={value}") for key, value in pairs.items() if key in known),
    ]
    chosen, wordings = once(option for option in stated if option[1] is not None)
    if str(chosen.get("data", "")).endswith(".npz"):
        if not Path(chosen["data"]).exists():
            raise InputError(f"{wordings['data']}: there is no such file")
        chosen["data"] = str(Path(chosen["data"]).absolute())  # Flower starts apps anywhere
    name = str(chosen.get("policy", before))
    if policy_options and "policy-settings" in chosen:
        key, value = next(iter(policy_options.items()))
        raise InputError(f"{wordings['policy-settings']} and --set {key}={value}: give one of them, not both")
    if policy_options:
        chosen["policy-settings"] = _policy_settings(name, policy_options, known)
    elif name != before:
        chosen.setdefault("policy-settings", "{}")  # those in the app are another policy's
    return chosen


def _policy_settings(policy: str, options: dict[str, Any], known: Iterable[str]) -> str:
    """Settings of a policy as JSON; `known` are those of the run, for the message about what is neither."""
    allowed = parameters(policy_class(policy))
    for key, value in options.items():
        if key not in allowed:
            needs = ", ".join([*known, *allowed])
            raise InputError(f"--set {key}={value}: is no setting of the run or of {policy}, needs one of {needs}")
    return json.dumps({key: convert(key, value, allowed[key]) for key, value in options.items()})


def _need_flower() -> None:
    for module in ("flwr", "psutil"):
        if find_spec(module) is None:
            raise InputError(f"Flower is not installed (no {module}): pip install 'pipecycle[flower]'")
