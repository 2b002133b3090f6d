"""Printing for people: text is text, whatever brackets a name holds."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

FIRST, NEXT = 5.0, 20.0
"""Seconds until the first line about something that takes long, and between two of them, where there is no terminal."""


class Screen(Console):
    """A console that takes nothing in a text for markup, and breaks no line, such as a path, for a program to read."""

    def print(self, *objects: Any, **options: Any) -> None:
        if not self.is_terminal and all(isinstance(thing, str | Text) for thing in objects):
            options.setdefault("soft_wrap", True)
        super().print(*objects, **options)


def screen(*, stderr: bool = False) -> Console:
    """Standard output, or standard error."""
    return Screen(stderr=stderr, markup=False, highlight=False)


def lead(words: str, rest: str, style: str = "bold") -> Text:
    """A sentence whose first words stand out."""
    return Text.assemble((words, style), rest)


@contextmanager
def training(what: str) -> Iterator[Callable[[Any], None] | None]:
    """A bar for whoever waits at a terminal or in a notebook: what this yields is to be called after every stack.  A
    program that trains is left in peace."""
    console = screen(stderr=True)
    if not (console.is_terminal or console.is_jupyter):
        yield None
        return
    with progress() as bar:
        task = bar.add_task(f"training {what}", total=None)
        yield lambda engine: bar.update(task, completed=engine.steps_done, total=engine.steps_total)


@contextmanager
def progress() -> Iterator[Progress]:
    """A bar on stderr while something takes long; without a terminal, a plain line now and then."""
    console = screen(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    seen = console.is_terminal
    bar = Progress(*columns, console=console, transient=True, disable=not seen, auto_refresh=seen)
    ended = threading.Event()

    def tell() -> None:
        wait = FIRST
        while not ended.wait(wait):
            wait = NEXT
            for task in bar.tasks:
                if not task.finished and task.visible:
                    share = "" if task.total is None else f" {task.percentage:.0f} %"
                    console.print(f"{task.description}{share}")

    teller = threading.Thread(target=tell, daemon=True)
    if not console.is_terminal:
        teller.start()
    try:
        with bar:
            yield bar
    finally:
        ended.set()
        if teller.is_alive():
            teller.join()
