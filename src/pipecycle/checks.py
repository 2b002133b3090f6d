"""What values may be: validators for settings, and the bounds beyond which work would never end.

A `Check` is an attrs validator, and `check.of(name, value)` is the same for an argument.  A failure is one sentence
with the value and what is allowed.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from numbers import Integral, Real
from typing import Any

from attrs import field, frozen

from pipecycle.errors import InputError, shown

MOST_CLIENTS = 10**8
"""About 10 GiB of batteries."""
MOST_SLOTS = 10**8
"""About 20 GiB of running totals; three years of slots of a second."""
MOST_CLIENT_SLOTS = 2**42
"""Days of planning; and a unit for each still fits the ledger's 64 bits."""
MOST_GROUPS = 10**5
MOST_UNITS = 2**40
"""Of one battery, budget or cost."""
MOST_BATCH = 2**16
MOST_FACTOR = 1e6
"""Of a learning rate, or of a term of the loss: its products fit 32 bits, and beyond all models diverge."""
MOST_RUNS = 10**5
"""Of one sweep."""
MOST_PLANS = 1000
"""Of one `pipecycle theory`."""
MOST_WORKERS = 1024
MOST_NODES = 10_000
"""Of a live federation: each has a process, or two key files."""
_FITS = 2**63 - 1

Fault = Callable[[Any], str | None]
"""What a value lacks: `at least 1`, or None for a good one."""


@frozen
class Check:
    """A rule for a value.  None passes where it is the field's default: it stands for "not given".

    What else is known of the rule is for those who offer values: bounds, the words there are to choose from, and what
    is counted."""

    fault: Fault
    least: float | None = None
    above: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()
    what: str = ""

    def __call__(self, instance: object, attribute: Any, value: Any) -> None:
        if value is not None or attribute.default is not None:
            self.of(attribute.metadata.get("key", attribute.name), value)

    def of(self, name: str, value: Any) -> None:
        needs = self.fault(value)
        if needs is not None:
            raise InputError(f"{name} = {shown(value)}: needs {needs}")


def setting(default: Any, note: str, check: Callable[..., None] | None = None, *, key: str | None = None) -> Any:
    """A field of a configuration: its default, what it means and what it may be.  `key` is its name in messages, if its
    own is not clear enough."""
    return field(
        default=default, validator=check, metadata={"note": note} if key is None else {"note": note, "key": key}
    )


def at_least(least: int, what: str = "", *, most: int = _FITS) -> Check:
    """A whole number of at least `least`, and at most `most`, things called `what`."""

    def fault(value: Any) -> str | None:
        if isinstance(value, bool) or not isinstance(value, Integral):
            return f"a whole number of at least {least}"
        if value < least:
            return f"at least {least} {what}".rstrip()
        return None if value <= most else f"at most {most:,}"

    return Check(fault, least=least, most=most, what=what)


def number(
    *, least: float | None = None, above: float | None = None, most: float | None = None, below: float | None = None
) -> Check:
    """A finite number within bounds."""
    if least is not None and most is not None:
        words = [f"from {_plain(least)} to {_plain(most)}"]
    else:
        bounds = {"of at least": least, "above": above, "of at most": most, "below": below}
        words = [f"{word} {_plain(bound)}" for word, bound in bounds.items() if bound is not None]
    needs = " ".join(["a number", " and ".join(words).replace("and of", "and")]).rstrip()

    def fault(value: Any) -> str | None:
        good = isinstance(value, Real) and not isinstance(value, bool)
        good = good and (isinstance(value, Integral) or isfinite(value))
        good = good and (least is None or value >= least) and (above is None or value > above)
        return None if good and (most is None or value <= most) and (below is None or value < below) else needs

    return Check(fault, least, above, most)


def _plain(bound: float) -> str:
    return f"{int(bound):,}" if bound == int(bound) and abs(bound) < 1e15 else f"{bound:g}"


def one_of(*choices: str) -> Check:
    """One of some words."""

    def fault(value: Any) -> str | None:
        return None if isinstance(value, str) and value in choices else f"one of {', '.join(choices)}"

    return Check(fault, choices=choices)


def _text(value: Any) -> str | None:
    if not isinstance(value, str) or not value.strip():
        return "text"
    strange = any(ord(letter) < 32 or ord(letter) == 127 or 0xD800 <= ord(letter) < 0xE000 for letter in value)
    return "text without control characters" if strange else None


def made(kind: type, how: str = "") -> Check:
    """An object of this class; `how` is where one comes from."""
    needs = f"a {kind.__name__}{f', such as {how}' if how else ''}"
    return Check(lambda value: None if isinstance(value, kind) else needs)


share = number(above=0, most=1)
"""A number in (0, 1]."""
units = number(least=0, most=MOST_UNITS)
"""Energy."""
some_units = number(above=0, most=MOST_UNITS)
rate = number(above=0, most=MOST_FACTOR)
"""A learning rate."""
factor = number(least=0, most=MOST_FACTOR)
"""Of a term of the loss."""
seconds = number(least=0, most=1e9)
some_seconds = number(above=0, most=1e9)
some_slots = at_least(1, "slot", most=MOST_SLOTS)
some_clients = at_least(1, "client", most=MOST_CLIENTS)
flag = Check(lambda value: None if isinstance(value, bool) else "true or false")
text = Check(_text)
"""Something that is written in one line, such as a name or a path."""
