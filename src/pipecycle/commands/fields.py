"""Options that set fields of a configuration: the same in every command, in the words of the field itself."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Iterable
from functools import wraps
from glob import escape, glob
from typing import Annotated, Any

import attrs
import typer

from pipecycle.data.catalogue import CATALOGUE
from pipecycle.data.scale import SCALES
from pipecycle.policies.registry import MODELS
from pipecycle.runs.config import SECTIONS, SHORT, Config
from pipecycle.world.devices_file import examples
from pipecycle.world.specs import FORMS

Given = dict[str, Any]
"""What was given on the command line, by the names that `Config.changed` takes; None for what was not."""


def among(names: Iterable[str], *endings: str) -> Callable[[str], list[str]]:
    """What a shell may complete a word to: one of the names, or a file that ends so."""

    def complete(incomplete: str) -> list[str]:
        files = [file for ending in endings for file in sorted(glob(f"{escape(incomplete)}*{ending}"))]
        return [name for name in names if name.startswith(incomplete)] + files

    return complete


OTHERS = {
    "policy.groups": (int, "Concurrent groups G, for policies that have groups. \\[default: 2]"),
    "delta": (float, "Charging probability per slot. \\[default: 0.5]"),
    "harvest": (str, "Instead of --delta: RATE, " + re.sub(r"\[.*?\]", "[,...]", FORMS) + " (docs/energy.md)."),
}
"""Options that are not just a field: type and help."""
WORDS = {"alpha": "iid"}
"""Numbers that may be a word, which stands for none."""
COMPLETED = {
    "harvest": among(re.findall(r"[a-z]+:|always", FORMS)),
    "fleet": among(examples(), ".toml", ".csv"),
    "data": among(CATALOGUE, ".npz"),
    "model": among(MODELS),
    "scale": among(SCALES),
    "augment": among(("flip", "crop:", "none")),
}


def fields(base: Config, *names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command options for these fields, with the defaults of `base`; they reach it as `given`."""
    options = {name: _option(name, base) for name in names}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True).parameters.values()
        whole = [option for other in own for option in (options.values() if other.name == "given" else [other])]

        @wraps(command)
        def called(**values: Any) -> None:
            command(given={name: values.pop(option.name) for name, option in options.items()}, **values)

        called.__signature__ = inspect.Signature(whole)  # type: ignore[attr-defined]
        called.__annotations__ = {option.name: option.annotation for option in whole}
        return called

    return decorate


def _option(name: str, base: Config) -> inspect.Parameter:
    """The option of a field, named without its section."""
    if name in OTHERS:
        kind, about = OTHERS[name]
    else:
        section, _, field = SHORT.get(name, name).partition(".")
        note = attrs.fields_dict(SECTIONS[section])[field].metadata["note"]
        hint = typing.get_type_hints(SECTIONS[section])[field]
        kind = str if name in WORDS else next((part for part in typing.get_args(hint) if part is not type(None)), hint)
        default = getattr(getattr(base, section), field)
        default = WORDS.get(name) if default is None else f"{default:g}" if kind is float else default
        about = f"{note[0].upper()}{note[1:]}.".replace("[", "\\[")
        about += "" if default is None else f" \\[default: {default}]"
    metavar = "SPEC" if name == "harvest" else None
    short = name.rpartition(".")[2]
    option = typer.Option(f"--{short}", help=about, metavar=metavar, autocompletion=COMPLETED.get(name))
    annotation = Annotated[kind | None, option]  # type: ignore[valid-type]
    return inspect.Parameter(short, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
