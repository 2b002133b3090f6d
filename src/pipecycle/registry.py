"""Policies by name: ours, or a user's own class as `module:Class`."""

from __future__ import annotations

import difflib
import importlib
import inspect
import sys
import types
import typing
from collections.abc import Mapping
from typing import Any

from pipecycle.errors import InputError
from pipecycle.world import Policy


def policy_class(name: str) -> type[Policy]:
    """The class called `name`, or found as `module:Class` (the working directory counts)."""
    from pipecycle.policies import REGISTRY

    if name in REGISTRY:
        return REGISTRY[name]
    if ":" not in name:
        raise InputError(f"policy {name!r}: {nearest(name, REGISTRY)}, or your own as module:Class")
    found = named(name, "policy")
    missing = [part for part in ("name", "grouping", "setup", "decide", "collect") if not hasattr(found, part)]
    if not isinstance(found, type) or missing:
        raise InputError(f"policy {name!r}: needs to be a class with {', '.join(missing) or 'a policy inside'}")
    kind: type[Policy] = found
    return kind


def named(name: str, what: str) -> Any:
    """What `module:attribute` names; the working directory counts."""
    module, _, attribute = name.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        return getattr(importlib.import_module(module), attribute)
    except ImportError as error:
        raise InputError(f"{what} {name!r}: module {module!r} cannot be imported ({error})") from None
    except AttributeError:
        raise InputError(f"{what} {name!r}: module {module!r} has no {attribute!r}") from None


def build(name: str, options: Mapping[str, Any] | None = None) -> Policy:
    """A policy with settings by name; text is converted to the type that the setting is declared with."""
    found = policy_class(name)
    allowed = parameters(found)
    for key in options or {}:
        if key not in allowed:
            known = f"{nearest(key, allowed)}" if allowed else "it has none"
            raise InputError(f"setting {key!r} of {name}: {known}")
    values = {key: convert(key, value, allowed[key]) for key, value in (options or {}).items()}
    return found(**values)


def parameters(found: type[Policy]) -> dict[str, Any]:
    """The settings of a policy and their declared types."""
    hints = typing.get_type_hints(found.__init__)
    names = [name for name in inspect.signature(found).parameters if name != "self"]
    return {name: hints.get(name, str) for name in names}


def defaults(found: type[Policy]) -> dict[str, Any]:
    """What the settings of a policy are when they are not given."""
    given = inspect.signature(found).parameters
    return {
        name: given[name].default for name in parameters(found) if given[name].default is not inspect.Parameter.empty
    }


def settings(policy: Policy) -> dict[str, Any]:
    """The settings of a policy object, as they were given or by default."""
    return {name: getattr(policy, name) for name in parameters(type(policy)) if hasattr(policy, name)}


def stated(policy: Policy) -> dict[str, Any]:
    """The settings that a schedule states of its policy: all, but those that came `later` only where they say
    something, so that digests and files made before are as they were."""
    usual, later = defaults(type(policy)), getattr(policy, "later", ())
    return {key: value for key, value in settings(policy).items() if key not in later or value != usual[key]}


def revision(found: type[Policy]) -> int:
    """Which algorithm a policy's name stands for, counted from 1; a policy that has changed says so."""
    return int(getattr(found, "revision", 1))


def recorded(meta: Mapping[str, Any]) -> dict[str, Any]:
    """The settings behind what a schedule says of itself: also those that it leaves unsaid, and the revision of a
    policy that has several."""
    from pipecycle.policies import REGISTRY

    found = REGISTRY.get(meta["policy"])
    if found is None:
        return dict(meta["settings"])
    usual = defaults(found)
    values = {**{key: usual[key] for key in getattr(found, "later", ())}, **meta["settings"]}
    return {"revision": meta.get("revision", 1), **values} if revision(found) > 1 else values


def convert(key: str, value: Any, kind: Any) -> Any:
    """Text from a command line as the declared type; anything else is passed on."""
    if not isinstance(value, str):
        return value
    options = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    if type(None) in options and value.lower() == "none":
        return None
    for option in options:
        try:
            if option is bool:
                return {"true": True, "false": False}[value.lower()]
            if option in (int, float, str):
                return option(value)
        except (ValueError, KeyError):
            continue
    words = {int: "a whole number", float: "a number", bool: "true or false", type(None): "none"}
    expected = " or ".join(words.get(option, str(option)) for option in options)
    raise InputError(f"{key} = {value}: needs {expected}")


def nearest(name: str, known: Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(name, known, 1)
    return f"unknown, did you mean {close[0]!r}?" if close else f"unknown, needs one of {', '.join(known)}"
