"""`pipecycle studio`: schedules to play with, in the browser."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipecycle.checks import at_least
from pipecycle.commands.fields import Given, fields
from pipecycle.commands.running import folder_name
from pipecycle.commands.shared import complete_policy
from pipecycle.files import writable, write
from pipecycle.policies.registry import parameters, policy_class
from pipecycle.runs.config import Config
from pipecycle.screen import screen
from pipecycle.world.specs import parse_harvest

if TYPE_CHECKING:
    from pipecycle.studio.server import Studio
    from pipecycle.studio.settings import Offer


@fields(Config(), "fleet")
def studio(
    run: Annotated[
        str | None,
        typer.Argument(help="Settings to begin with: a run's folder, a configuration file, or an address of a studio."),
    ] = None,
    *,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="POLICY",
            help="A scheduler to show, twice for two side by side; your own are offered if they are given here as "
            "module:Class.",
            autocompletion=complete_policy,
        ),
    ] = None,
    harvest: Annotated[
        list[str] | None,
        typer.Option(metavar="SPEC", help="Offer a harvest that reads a file, solar:FILE or csv:FILE."),
    ] = None,
    given: Given,
    port: Annotated[
        int | None,
        typer.Option(help="Where the page is served on this machine. \\[default: 8410, or any that is free]"),
    ] = None,
    no_open: Annotated[bool, typer.Option("--no-open", help="Print the address and open no browser.")] = False,
    out: Annotated[
        Path | None, typer.Option("--export", metavar="FILE", help="Write what would be shown as one page, and end.")
    ] = None,
) -> None:
    """Play with schedules in the browser: move a setting, and the plan is drawn again at once.

    Only this machine can open the page. Example: pipecycle studio --policy pipecycle --policy pipecycle+"""
    from pipecycle.studio.server import Studio, export
    from pipecycle.studio.settings import Offer, link_of, view_of

    if port is not None:
        at_least(0, most=65535).of("port", port)
    own, files = list(policy or []), list(harvest or [])
    for name in own:
        policy_class(name)
    for spec in files:
        parse_harvest(spec)
    offer = Offer(tuple(own), tuple(files), {} if given["fleet"] is None else {"world.fleet": given["fleet"]})
    configs, offer = _settings(run, offer)
    if run is None and own:
        configs = _chosen(own, configs[0], offer)
    if run is None and files:
        configs = [config.changed({"world.harvest": files[0]}) for config in configs]
    if run is not None and "#" not in run:
        configs += _chosen([name for name in own if name != configs[0].policy][:1], configs[0], offer)
    if out is not None:
        writable(out)
        text = export(offer, configs, view=view_of(run or ""))
        write(out, text)
        screen().print(f"{out}: {len(text.encode()) / 1e6:.1f} MB", soft_wrap=True)
        return
    link = link_of(configs, view_of(run or ""))
    serve(Studio(offer, link, lambda config: Path("runs") / folder_name(config), port), browser=not no_open)


def serve(server: Studio, *, browser: bool) -> None:
    """Until Ctrl-C, which is how a studio ends."""
    console = screen()
    with server:
        console.print(f"Studio at {server.address}", soft_wrap=True)
        console.print("Ctrl-C ends it. The address is for you alone; links from the page do not hold its token.")
        if browser:
            webbrowser.open(server.address)
        try:
            server.serve_forever(poll_interval=0.1)
        except KeyboardInterrupt:
            console.print("Ended." if server.training.state()["state"] != "running" else "Ended; saving the training.")


def _settings(run: str | None, offer: Offer) -> tuple[list[Config], Offer]:
    """One or two configurations to begin with."""
    from pipecycle.studio.settings import START, config_of, of_run, values_of

    if run is None:
        return [config_of(values, offer) for values in values_of(START)], offer
    if "#" in run:
        return [config_of(values, offer) for values in values_of(run)], offer
    config, offer = of_run(Path(run), offer)
    return [config], offer


def _chosen(names: list[str], base: Config, offer: Offer) -> list[Config]:
    """The schedulers that were named, in the world of `base`; with as many groups if they have groups."""
    from pipecycle.studio.settings import config_of, link_of, values_of

    (shared,) = values_of(link_of([base]))
    world = {key: value for key, value in shared.items() if not key.startswith("policy")}
    configs = []
    for name in names[:2]:
        has = "groups" in parameters(policy_class(name)) and "groups" in base.settings
        groups = {"policy.groups": base.settings["groups"]} if has else {}
        configs.append(config_of({"policy": name, **world, **groups}, offer))
    return configs
