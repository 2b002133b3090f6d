"""What several commands have in common."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress

from pipecycle.errors import InputError

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]


def progress() -> Progress:
    """A bar on stderr while something takes long; nothing where nobody looks."""
    console = Console(stderr=True)
    return Progress(console=console, transient=True, disable=not console.is_terminal)


def settings(pairs: list[str]) -> dict[str, Any]:
    """`--set key=value ...` as a dict of text."""
    options: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise InputError(f"--set {pair}: needs key=value")
        options[key.strip()] = value.strip()
    return options
