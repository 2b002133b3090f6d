"""The two Flower apps, and a battery for any ClientApp."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from numpy.typing import NDArray

from pipecycle.deploy.node.session import attend, settings_of
from pipecycle.deploy.timing import Timer
from pipecycle.deploy.wire.settings import RunSettings, Scalar

Initial = Callable[[], Mapping[str, NDArray[Any]]]
Evaluate = Callable[[dict[str, NDArray[Any]]], Mapping[str, float]]


def server_app(
    settings: Mapping[str, Scalar] | None = None,
    *,
    initial: Initial | None = None,
    evaluate: Evaluate | None = None,
) -> ServerApp:
    """A ServerApp in which a policy schedules the clients.

    The run configuration wins over `settings`.  With `initial`, a function that returns the first weights by name, it
    serves a user's own ClientApp; `evaluate` may return `accuracy` (percent) and `loss` of some weights."""
    defaults = RunSettings.of(settings or {})

    def main(grid: Grid, context: Context) -> None:
        from pipecycle.deploy.server.driver import Driver
        from pipecycle.deploy.server.model import foreign, own

        run = settings_of(context, defaults, strict=initial is None)
        Driver(grid, run, own(run) if initial is None else foreign(initial(), evaluate)).run()

    app = ServerApp()
    app.main()(main)
    return app


def client_app(settings: Mapping[str, Scalar] | None = None, timer: Timer | None = None) -> ClientApp:
    """A ClientApp that trains on the node's own data when its battery allows."""
    defaults = RunSettings.of(settings or {})

    def session(message: Message, context: Context) -> Message:
        from pipecycle.deploy.node.trainer import train

        return train(message, context, defaults)

    def handle(message: Message, context: Context) -> Message:
        return attend(message, context, session, defaults, timer, strict=True)

    app = ClientApp()
    app.train()(handle)
    return app


def battery_mod(message: Message, context: Context, app: Callable[[Message, Context], Message]) -> Message:
    """A Flower mod: `ClientApp(mods=[battery_mod])` trains when its battery allows."""
    return attend(message, context, app)


def with_battery(app: ClientApp, settings: Mapping[str, Scalar] | None = None) -> ClientApp:
    """An existing ClientApp, scheduled by a policy: it trains only when its battery allows, and pays for it.

    It must use Flower's message API: weights in the record `arrays`, and `num-examples` in a metric record if clients
    are to be weighted by their samples."""
    defaults = RunSettings.of(settings or {})

    def handle(message: Message, context: Context) -> Message:
        return attend(message, context, app, defaults)

    def through(message: Message, context: Context) -> Message:
        return app(message, context)

    wrapped = ClientApp()
    wrapped.train()(handle)
    wrapped.evaluate()(through)
    wrapped.query()(through)
    return wrapped
