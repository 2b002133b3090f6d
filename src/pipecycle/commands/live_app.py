"""A Flower app in a folder: its settings with a sentence for each, and two modules of two lines."""

from __future__ import annotations

import importlib.util
import keyword
import re
import shlex
import sys
import tomllib
from pathlib import Path
from typing import Any

from attrs import frozen

from pipecycle.deploy.wire.settings import MARKS, PREFIX, RunSettings, Scalar
from pipecycle.errors import InputError, shown
from pipecycle.files import make_folder, read_toml, write
from pipecycle.runs.config import toml

PROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = {name}
version = "0.1.0"
description = {about}
requires-python = ">=3.11"
dependencies = ["pipecycle[flower]"]  # install it on every machine beforehand

[tool.hatch.build.targets.wheel]
packages = [{package}]

[tool.flwr.app]
publisher = "local"
fab-include = {files}

[tool.flwr.app.components]
serverapp = {server}
clientapp = {client}

# One run's settings; `flwr run . NAME --run-config 'slots=500 lr=0.1'` changes some of them for one run.
[tool.flwr.app.config]
{settings}"""

OWN = """\
# Settings of pipecycle; the app's own are in the table above it.
[tool.flwr.app.config.pipecycle]
"""

MODULE = '''\
"""{about}"""

from pipecycle.deploy import {app}

app = {app}()
'''

IGNORED = "# Keys, logs, ledgers and results of `pipecycle deploy up`.\n/federation/\n/run/\n__pycache__/\n"


def write_app(folder: Path, settings: RunSettings) -> list[Path]:
    """Write the app; one of the user's own in the folder gets our settings, one of ours is left as it is.

    A policy or model of the user's own (`module:name`, the module a file in the working directory) is copied into the
    app, so that it travels to every machine."""
    if (folder / "pyproject.toml").exists():
        return add_settings(folder, settings)
    name = re.sub(r"[^a-z0-9]+", "-", folder.absolute().name.lower()).strip("-") or "app"
    package = _package(name)
    own = _own_modules(settings)
    files = {
        "pyproject.toml": PROJECT.format(
            name=toml(name),
            about=toml(f"{settings.policy} in charge of a federation that trains {settings.model} on {settings.data}"),
            package=toml(package),
            files=_list([f"{package}/**/*.py", *(path.name for path in own)]),
            server=toml(f"{package}.server_app:app"),
            client=toml(f"{package}.client_app:app"),
            settings=annotated(settings),
        ),
        ".gitignore": IGNORED,
        f"{package}/__init__.py": '"""The app that Flower carries to the server and to every node."""\n',
        f"{package}/server_app.py": MODULE.format(app="server_app", about="Steps the policy and aggregates."),
        f"{package}/client_app.py": MODULE.format(app="client_app", about="Trains, and minds the battery."),
        **{path.name: path.read_text() for path in own},
    }
    make_folder(folder / package)
    for path, text in reversed(files.items()):  # pyproject.toml comes last: without it there is no app
        write(folder / path, text)
    return [folder / path for path in files]


@frozen
class App:
    """A Flower app: its settings, and the keys under which it lists them; Flower lets a run change no others."""

    path: Path
    settings: RunSettings
    listed: frozenset[str]
    prefix: str

    def overrides(self, chosen: RunSettings) -> dict[str, Scalar]:
        """A run's settings under the app's keys; what the app does not list must have its default."""
        defaults, given = RunSettings().flat(), {}
        for key, value in chosen.flat().items():
            if key in self.listed:
                given[self.prefix + key] = value
            elif value != defaults.get(key, ""):
                raise InputError(f"{self.path}: needs a line `{key} = {toml(value)}` beside the other settings")
        return given


def read_app(folder: Path) -> App:
    """An app, ours or a user's own with our settings in a table of their own; one sentence if it is none."""
    path = folder / "pyproject.toml"
    if not path.exists():
        raise InputError(f"{folder}: has no app; `pipecycle deploy init {quoted(folder)}` writes one")
    config = _config(path)
    if str(folder.absolute()) not in sys.path:
        sys.path.append(str(folder.absolute()))  # a policy or a model of the app's own
    table = config.get("pipecycle")
    if isinstance(table, dict):
        return App(path, RunSettings.of(table), frozenset(table), PREFIX)
    if not config.keys() & MARKS:
        raise InputError(f"{path}: has no settings of ours; `pipecycle deploy init {quoted(folder)}` adds them")
    return App(path, RunSettings.of(config), frozenset(config), "")


def _config(path: Path) -> dict[str, Any]:
    """The settings of the Flower app that a pyproject.toml describes."""
    app: Any = read_toml(path)
    for key in ("tool", "flwr", "app"):
        app = app.get(key) if isinstance(app, dict) else None
    if not isinstance(app, dict) or "components" not in app:
        raise InputError(f"{path}: describes no Flower app ([tool.flwr.app.components])")
    config = app.get("config", {})
    if not isinstance(config, dict):
        raise InputError(f"{path}: config = {shown(config)}: needs a table, [tool.flwr.app.config]")
    return config


def add_settings(folder: Path, settings: RunSettings) -> list[Path]:
    """Add our settings to a user's own app, which keeps its own."""
    path = folder / "pyproject.toml"
    if _config(path).keys() & {"pipecycle", *MARKS}:
        raise InputError(f"{folder}: has an app already, so nothing is written; edit its pyproject.toml instead")
    text = f"{path.read_text().rstrip()}\n\n{OWN}{annotated(settings)}"
    try:
        tomllib.loads(text)
    except ValueError:
        table = OWN.splitlines()[-1]
        raise InputError(f"{path}: needs tables with headers of their own, so that {table} can follow") from None
    write(path, text)
    return [path]


def quoted(path: Path) -> str:
    """A path as a shell takes it, for commands that we suggest."""
    return shlex.quote(str(path))


def annotated(settings: RunSettings) -> str:
    """Every setting as TOML, with its sentence above it."""
    values = settings.flat()
    return "".join(f"# {note}\n{key} = {toml(values.get(key, ''))}\n" for key, note in settings.notes().items())


def _package(name: str) -> str:
    """A name to import by that hides no other package."""
    package = name.replace("-", "_")
    if package[0].isdigit() or keyword.iskeyword(package) or importlib.util.find_spec(package) is not None:
        return f"app_{package}"
    return package


def _own_modules(settings: RunSettings) -> list[Path]:
    """The files in the working directory that define the policy or the model."""
    named = [text.partition(":")[0] for text in (settings.policy, settings.model) if ":" in text]
    files = {Path(f"{module}.py") for module in named}
    return sorted(path for path in files if path.exists())


def _list(values: list[str]) -> str:
    return "[" + ", ".join(map(toml, values)) + "]"
