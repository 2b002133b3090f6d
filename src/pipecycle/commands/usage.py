"""What to say about an option that there is not, or that has a wrong value."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

import attrs

from pipecycle.errors import shown
from pipecycle.policies import REGISTRY
from pipecycle.policies.registry import parameters
from pipecycle.runs.config import SECTIONS

ELSEWHERE = {"--seed": ("--trial", "--trials"), "--seeds": ("--trials",), "--rounds": ("--slots",)}
"""What others call it."""
NEEDS = {"integer": "a whole number", "number": "a number", "float": "a number"}
"""How the parser of options says what it needs, and how we do."""


def usage(error: Any, given: Sequence[str]) -> str:
    """The sentence about an error in what was written on the command line."""
    if getattr(error, "option_name", None) is not None and not hasattr(error, "possibilities"):
        return f"{error.option_name}: {'takes no value' if 'not take' in str(error) else 'needs a value'}"
    if getattr(error, "option_name", None) is not None:
        options = {name for option in error.ctx.command.params for name in option.opts} if error.ctx else set()
        return f"{error.option_name}: {_unknown(error.option_name, options)}"
    said = str(error.format_message() if hasattr(error, "format_message") else error)
    option = getattr(error, "param", None)
    for place, word in enumerate(given):
        name, equals, value = word.partition("=")
        if option is None or name not in option.opts:
            continue
        value = value if equals else "".join(given[place + 1 : place + 2])
        for theirs, ours in NEEDS.items():
            if theirs in said.partition(": ")[2]:
                return f"{name} {shown(value)}: needs {ours}"
        holder = getattr(option, "type", option)  # older versions of typer keep bounds in the type
        least, most = getattr(holder, "min", None), getattr(holder, "max", None)
        if least is not None:
            return f"{name} {shown(value)}: needs {f'at least {least}' if most is None else f'{least} to {most:,}'}"
    return said


def _unknown(name: str, options: set[str]) -> str:
    close = [other for other in ELSEWHERE.get(name, ()) if other in options]
    close += difflib.get_close_matches(name, sorted(options), 1, 0.75)
    if close:
        return f"unknown, did you mean {close[0]}?"
    key = name.lstrip("-").replace("-", "_")
    fields = [f"{section}.{key}" for section, kind in SECTIONS.items() if key in attrs.fields_dict(kind)]
    fields += [key for kind in REGISTRY.values() if key in parameters(kind)]
    if fields and {"--set", "--config"} <= options:
        return f"unknown, write --set {fields[0]}=VALUE"
    return "unknown, --help lists the options"
