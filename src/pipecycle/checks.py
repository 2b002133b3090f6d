"""Validators for settings; each failure is one sentence with the value and what is allowed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pipecycle.errors import InputError

Validator = Callable[[Any, Any, Any], None]


def at_least(least: int, what: str = "") -> Validator:
    """A whole number of at least `least`; None passes (it stands for the rule's own default)."""

    def check(instance: object, attribute: Any, value: Any) -> None:
        if value is None:
            return
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise InputError(f"{attribute.name} = {value}: needs at least {least}{' ' + what if what else ''}")

    return check


def one_of(*choices: str) -> Validator:
    def check(instance: object, attribute: Any, value: Any) -> None:
        if value not in choices:
            raise InputError(f"{attribute.name} = {value}: needs one of {', '.join(choices)}")

    return check


def share(instance: object, attribute: Any, value: Any) -> None:
    """A number in (0, 1]."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1:
        raise InputError(f"{attribute.name} = {value}: needs a number above 0 and at most 1")
