"""Printing for people: text is text, whatever brackets a name holds."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text


def screen(*, stderr: bool = False) -> Console:
    """A console that takes nothing in a text for markup."""
    return Console(stderr=stderr, markup=False, highlight=False)


def lead(words: str, rest: str, style: str = "bold") -> Text:
    """A sentence whose first words stand out."""
    return Text.assemble((words, style), rest)


def progress() -> Progress:
    """A bar on stderr while something takes long; nothing where nobody looks."""
    console = screen(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
