"""What a policy's settings are, for people: default, what is allowed, and one line each."""

from __future__ import annotations

import ast
import inspect
import textwrap
from itertools import pairwise
from typing import Any

import attrs
from attrs import frozen

from pipecycle.checks import Check
from pipecycle.policies.registry import WORDS, defaults, parameters
from pipecycle.world.contract import Policy


@frozen
class Setting:
    """One setting of a policy."""

    default: Any
    needs: str
    """What is allowed, in words."""
    note: str
    """The docstring below it in its class."""

    def __str__(self) -> str:
        words = [self.note.rstrip("."), self.needs]
        return "; ".join(word for word in words if word)


def described(kind: type[Policy]) -> dict[str, Setting]:
    """The settings of a policy by name."""
    fields = {field.name: field for field in attrs.fields(kind)} if attrs.has(kind) else {}
    notes, usual = docstrings(kind), defaults(kind)
    return {
        name: Setting(usual.get(name), allowed(fields[name]) if name in fields else _typed(hint), notes.get(name, ""))
        for name, hint in parameters(kind).items()
    }


def allowed(field: Any) -> str:
    """What a field's check allows, in words; empty if it has none of ours."""
    if not isinstance(field.validator, Check):
        return ""
    needs = str(field.validator.fault(object()) or "")
    return needs if needs.startswith("a number of ") else needs.removeprefix("a number ").strip()


def _typed(hint: Any) -> str:
    return str(WORDS.get(hint, ""))


def docstrings(kind: type) -> dict[str, str]:
    """The strings below the attributes of a class and of those it builds on, which Python itself does not keep."""
    notes: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(base)))
        except (OSError, TypeError, SyntaxError):  # no source, as in a notebook that is closed
            continue
        (body,) = [node.body for node in tree.body if isinstance(node, ast.ClassDef)] or [[]]
        for above, below in pairwise(body):
            named = isinstance(above, ast.AnnAssign) and isinstance(above.target, ast.Name)
            if named and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                notes[above.target.id] = " ".join(str(below.value.value).split())  # type: ignore[attr-defined]
    return notes
