"""The controls of the page, from the fields that they set: types, bounds, defaults and docstrings."""

from __future__ import annotations

import inspect
import types
import typing
from typing import Any

import attrs

from pipecycle.checks import Check
from pipecycle.policies.registry import defaults, parameters, policy_class
from pipecycle.policies.settings import docstrings
from pipecycle.runs.config import SECTIONS
from pipecycle.studio.settings import FILELESS, MOST_CLIENTS, MOST_SLOTS, TRAINING, WORLD, Offer

# What a slider spans where the field itself allows far more; the number beside it takes the rest.
SPANS: dict[str, tuple[str, float, float, bool]] = {
    # field: label, low, high, whether by powers
    "world.clients": ("Clients", 1, 10_000, True),
    "world.session": ("Session length", 1, 100, False),
    "world.slots": ("Slots", 100, 20_000, True),
    "world.trial": ("Trial", 0, 20, False),
    "world.capacity": ("Battery capacity", 20, 1e6, True),
    "world.initial": ("Charge at the start", 0, 200, False),
    "world.budget": ("Budget", 100, 1e6, True),
    "data.alpha": ("Dirichlet concentration", 0.01, 10, True),
    "train.lr": ("Learning rate", 0.001, 1, True),
    "look.every": ("Evaluate every", 1, 500, False),
}
BY_UNIT = {"slot": (1, 200), "member": (1, 100)}
"""Of a policy's settings, by what they count."""
COUNTED = (1, 20)
MOST = {"world.clients": MOST_CLIENTS, "world.slots": MOST_SLOTS}


def describe(offer: Offer) -> dict[str, Any]:
    """Everything that the page builds its controls from."""
    return {
        "world": [_section_field(f"world.{name}") for name in WORLD if name != "harvest"],
        "training": [_section_field(key) for key in TRAINING],
        "harvests": [*HARVESTS, *(_given(spec) for spec in offer.harvests if not _fileless(spec))],
        "policies": {name: policy(name) for name in offer.names},
    }


def policy(name: str) -> dict[str, Any]:
    """A scheduler and its settings."""
    kind = policy_class(name)
    hints, usual, notes, rules = parameters(kind), defaults(kind), docstrings(kind), _rules(kind)
    settings = []
    for key, hint in hints.items():
        rule = rules.get(key)
        low, high = _span(hint, rule, usual.get(key))
        control = _control(f"policy.{key}", key.replace("_", " "), notes.get(key, ""), hint, usual.get(key), rule)
        settings.append(control | {"low": low, "high": high, "powers": False})
    return {"about": inspect.cleandoc(kind.__doc__ or "").split("\n\n")[0], "settings": settings}


def _rules(kind: type[Any]) -> dict[str, Check]:
    if not attrs.has(kind):
        return {}
    return {field.name: field.validator for field in attrs.fields(kind) if isinstance(field.validator, Check)}


def _section_field(key: str) -> dict[str, Any]:
    section, _, name = key.partition(".")
    kind = SECTIONS[section]
    field = getattr(attrs.fields(kind), name)
    hint = typing.get_type_hints(kind)[name]
    label, low, high, powers = SPANS[key]
    rule = field.validator if isinstance(field.validator, Check) else None
    control = _control(key, label, str(field.metadata.get("note", "")), hint, field.default, rule)
    most = MOST.get(key, control["most"])
    return control | {"low": low, "high": high, "powers": powers, "most": most}


def _control(key: str, label: str, note: str, hint: Any, default: Any, rule: Check | None) -> dict[str, Any]:
    """`kind` is what a value is: whole, number, flag, choice, text, or either (a number or one of some words)."""
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    options = set(typing.get_args(hint) if union else (hint,))
    optional = type(None) in options
    options -= {type(None)}
    words = rule.choices if rule is not None else ()
    if options == {int}:
        what = "whole"
    elif options <= {int, float} and options:
        what = "number"
    elif options == {bool}:
        what = "flag"
    elif options == {str} and words:
        what = "choice"
    else:
        what = "either" if words and options <= {int, float, str} else "text"
    return {
        "key": key,
        "label": label[:1].upper() + label[1:],
        "note": note[:1].upper() + note[1:],
        "kind": what,
        "optional": optional,
        "default": default if isinstance(default, bool | int | float | str | None) else None,
        "choices": list(words),
        "unit": rule.what if rule is not None else "",
        "least": None if rule is None else rule.least,
        "above": None if rule is None else rule.above,
        "most": None if rule is None else rule.most,
    }


def _span(hint: Any, rule: Check | None, default: Any) -> tuple[float, float]:
    least = 0.0 if rule is None or rule.least is None else rule.least
    most = None if rule is None else rule.most
    if rule is not None and most is not None and most <= 1000:
        low, high = least, most
    else:
        low, high = BY_UNIT.get("" if rule is None else rule.what.split(" ")[-1], COUNTED)
        low, high = max(low, least), max(high, low)
    if isinstance(default, int | float) and not isinstance(default, bool):
        low, high = min(low, default), high if default <= high else 2 * default
    return low, high


# Where energy comes from: positional figures, then options by name.


def _figure(name: str, label: str, default: float, low: float, high: float, note: str) -> dict[str, Any]:
    return {
        "key": name, "label": label, "note": note, "kind": "number", "optional": False, "default": default,
        "choices": [], "unit": "", "least": low, "above": None, "most": None, "low": low, "high": high, "powers": False,
    }  # fmt: skip


def _phrase(name: str, label: str, default: str, note: str) -> dict[str, Any]:
    return {"key": name, "label": label, "note": note, "kind": "text", "optional": False, "default": default}


_RATE = _figure("rate", "Rate", 0.5, 0, 1, "Units that a client gains per slot, in the long run")
HARVESTS: list[dict[str, Any]] = [
    {"word": "bernoulli", "label": "a coin in every slot", "figures": [_RATE], "options": []},
    {
        "word": "markov",
        "label": "in bursts",
        "figures": [_RATE, _figure("burst", "Burst", 10, 1, 100, "Mean length of a charging period, in slots")],
        "options": [],
    },
    {
        "word": "clearsky",
        "label": "a cloudless sky",
        "figures": [_figure("latitude", "Latitude", 50, -90, 90, "Degrees north")],
        "options": [
            _phrase("days", "Days", "152..181", "First and last day of the year; the trial picks where it begins"),
            _figure("panel", "Panel", 2, 0.1, 5, "Units per slot in full sun, 1,000 W/m2"),
            _figure("minutes", "Slot", 5, 1, 60, "Minutes that a slot lasts"),
            _phrase("shift", "Shift", "0..720", "Minutes by which a client's day is late: a number, or LOW..HIGH"),
            _phrase("shade", "Shade", "1", "Factor on what a client gets: a number, or LOW..HIGH"),
        ],
    },
    {"word": "always", "label": "one unit in every slot", "figures": [], "options": []},
    {
        "word": "",
        "label": "written out",
        "figures": [
            _phrase("spec", "Description", "bernoulli:0.5", f"A word of {', '.join(FILELESS)} and its figures")
        ],
        "options": [],
    },
]


def _fileless(spec: str) -> bool:
    return spec.partition(":")[0] in FILELESS


def _given(spec: str) -> dict[str, Any]:
    return {"word": spec, "label": spec, "figures": [], "options": [], "whole": True}
