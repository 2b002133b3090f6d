"""A live federation over Flower, driven by the same policies that plan.

They are imported when they are asked for: the core works without Flower (`pip install "pipecycle[flower]"`)."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipecycle.deploy.apps import battery_mod, client_app, server_app, with_battery
    from pipecycle.deploy.node.settings import NodeSettings
    from pipecycle.deploy.wire.settings import RunSettings

_HOMES = {
    "NodeSettings": "node.settings",
    "RunSettings": "wire.settings",
    "battery_mod": "apps",
    "client_app": "apps",
    "server_app": "apps",
    "with_battery": "apps",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'pipecycle.deploy' has no attribute {name!r}")
    value: object = getattr(import_module(f"pipecycle.deploy.{_HOMES[name]}"), name)
    return value


__all__ = ["NodeSettings", "RunSettings", "battery_mod", "client_app", "server_app", "with_battery"]
