"""A policy in one line of text: `pipecycle(groups=2)`, `my:Policy(k=10)`, `fedavg(epoch=60){train.lr=0.02}`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from attrs import field, frozen

from pipecycle.errors import InputError, shown
from pipecycle.policies import REGISTRY
from pipecycle.policies.registry import settings
from pipecycle.world.contract import Policy

_WHOLE = re.compile(r"\s*(?P<name>[^(){}]+?)\s*(?:\((?P<settings>.*)\))?\s*(?:\{(?P<fields>[^{}]*)\})?\s*", re.DOTALL)
_PAIR = re.compile(r"\s*(?P<key>[A-Za-z_][\w.]*)\s*=\s*(?P<value>\"[^\"]*\"|'[^']*'|[^\"']*?)\s*", re.DOTALL)
_NEXT = re.compile(r",(?=\s*[A-Za-z_][\w.]*\s*=)(?=(?:[^\"]*\"[^\"]*\")*[^\"]*$)(?=(?:[^']*'[^']*')*[^']*$)")
"""A comma before the next key, outside quotes: `harvest=markov:0.3,12` is one value."""

NEEDS = "NAME, NAME(setting=value, ...) or NAME(...){field=value, ...}"


@frozen
class Spec:
    """A policy's name and settings, and fields of the run that are for this policy alone."""

    policy: str
    settings: Mapping[str, Any] = field(factory=dict)
    fields: Mapping[str, Any] = field(factory=dict)

    @classmethod
    def of(cls, policy: str | Spec | Policy) -> Spec:
        """From text, or from a policy object: one of ours, or of a class at the top of a module."""
        if isinstance(policy, Spec):
            return policy
        if isinstance(policy, str):
            return _parsed(policy)
        if not hasattr(policy, "decide"):
            raise InputError(f"policy = {shown(policy)}: needs text, {NEEDS}")
        kind = type(policy)
        ours = next((name for name, known in REGISTRY.items() if known is kind), None)
        return cls(ours or f"{kind.__module__}:{kind.__qualname__}", settings(policy))

    def __str__(self) -> str:
        inside = ", ".join(f"{key}={value}" for key, value in self.settings.items())
        beside = ", ".join(f"{key}={value}" for key, value in self.fields.items())
        return self.policy + (f"({inside})" if inside else "") + (f"{{{beside}}}" if beside else "")


def _parsed(text: str) -> Spec:
    match = _WHOLE.fullmatch(text)
    if match is None:
        raise InputError(f"policy {shown(text)!r}: needs {NEEDS}")
    return Spec(match["name"], _pairs(match["settings"], text), _pairs(match["fields"], text))


def _pairs(text: str | None, whole: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for part in _NEXT.split(text) if text and text.strip() else []:
        match = _PAIR.fullmatch(part)
        if match is None or not match["value"]:
            raise InputError(f"policy {shown(whole)!r}: {shown(part.strip())!r} needs to be key=value")
        if match["key"] in pairs:
            raise InputError(f"policy {shown(whole)!r}: {match['key']} is given twice")
        pairs[match["key"]] = match["value"].strip("\"'")
    return pairs
