"""What can go wrong, by whose fault, and how it is said in one sentence."""

from __future__ import annotations

import inspect
import site
import sys
import sysconfig
import traceback
from pathlib import Path
from typing import Any

LONGEST = 400
"""Letters of somebody else's message that are passed on."""


class InputError(ValueError):
    """The user asked for something that cannot be: one sentence with the value and what is allowed."""


class ActionError(RuntimeError):
    """A policy asked a client for something that it cannot do."""


class EnergyError(ActionError):
    """A client was asked to spend energy that it does not have."""


class BusyError(ActionError):
    """A client was asked for a second action while it is engaged or has already acted in this slot."""


def shown(value: Any, longest: int = 60) -> str:
    """A value within a sentence: text as it is, anything else as Python writes it, never long and never an error."""
    try:
        text = value if isinstance(value, str) else repr(value)
    except (ValueError, RecursionError):  # a whole number of thousands of digits, a list within itself
        text = f"a {type(value).__name__} too long to print"
    text = " ".join(text.encode("utf-8", "backslashreplace").decode().split())
    return text if len(text) <= longest else f"{text[: longest - 4]} ..."


def own_code(error: BaseException) -> str | None:
    """Where an error comes from in code that is neither ours nor a library's: a user's policy, model or factory."""
    if isinstance(error, SyntaxError) and error.filename and _is_own(error.filename):
        return f"{_short(error.filename)}, line {error.lineno or 0}"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if _is_own(frame.filename):
            within = "" if frame.name.startswith("<") else f", in {frame.name}"
            return f"{_short(frame.filename)}, line {frame.lineno or 0}{within}"
    if error.__cause__ is not None:
        return own_code(error.__cause__)
    return _home(type(error.obj)) if isinstance(error, AttributeError) else None


def _home(kind: type) -> str | None:
    """Where a user's own class begins: one that forgot to set an attribute fails in what it inherits from us."""
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    if file is None or not _is_own(file):
        return None
    try:
        line = inspect.getsourcelines(kind)[1]
    except (OSError, TypeError, SyntaxError):
        line = 0
    return f"{_short(file)}, line {line}, in {kind.__name__}"


def sentence(error: BaseException) -> str:
    """Any error in one sentence, with the place in the user's own code if it comes from there."""
    message = str(error.code) if isinstance(error, SystemExit) else str(error)
    if isinstance(error, SyntaxError):
        message = error.msg or message
    message = shown(message, LONGEST)
    place = own_code(error)
    if isinstance(error, InputError):
        return message if place is None or place in message else f"{message} ({place})"
    kind = type(error).__name__
    if isinstance(error, SystemExit):
        kind, message = "it ends the program", f"exit code {message}"
    return f"{f'{place}: ' if place else ''}{kind}{f': {message}' if message else ''}"


def _is_own(file: str) -> bool:
    return not file.startswith("<") and not is_library(Path(file))


def is_library(file: Path) -> bool:
    """Whether a file is ours or a library's, not a user's own."""
    return any(file.is_relative_to(home) for home in _LIBRARIES)


def add_library(folder: Path) -> None:
    """Code below this folder is a library's, not a user's own."""
    _LIBRARIES.add(folder)


def _short(file: str) -> str:
    """Relative to the working directory where it lies in it."""
    path = Path(file)
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


_LIBRARIES = {
    Path(__file__).resolve().parent,
    *(Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    *(Path(folder) for folder in [*site.getsitepackages(), site.getusersitepackages()]),
}
