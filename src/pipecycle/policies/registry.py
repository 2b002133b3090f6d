"""Policies and models by name: ours, or a user's own as `module:Class`."""

from __future__ import annotations

import difflib
import importlib
import inspect
import sys
import types
import typing
from collections.abc import Iterable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

import numpy as np

from pipecycle.checks import text
from pipecycle.errors import InputError, sentence, shown
from pipecycle.policies import REGISTRY
from pipecycle.world.contract import Policy

MODELS = ("mlp", "lenet", "cnn64", "wide", "cnn64-gn", "resnet8-gn")
"""The names of `pipecycle.train.presets.PRESETS`, which a room above this one holds."""
ELSEWHERE = {"fedprox": "A setting of training, for every scheduler: train.proximal, the weight of the proximal term."}
"""What is looked for among the policies and is none."""
PARTS = ("name", "grouping", "setup", "decide", "collect")
"""Of a policy."""
TAKES = {"setup": ("world",), "decide": ("slot",), "collect": ("slot", "done", "lost")}
"""What its methods are called with."""
WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "none"}


def policy_class(name: str) -> type[Policy]:
    """The class called `name`, or found as `module:Class` (the working directory counts)."""
    text.of("policy", name)
    if name in REGISTRY:
        return REGISTRY[name]
    if name in ELSEWHERE:
        raise InputError(f"policy {name!r}: {ELSEWHERE[name][0].lower()}{ELSEWHERE[name][1:].rstrip('.')}")
    if ":" not in name:
        raise InputError(f"policy {shown(name)!r}: {nearest(name, REGISTRY, 'your own as module:Class')}")
    kind: Any = named(name, "policy")
    if not isinstance(kind, type) or _missing(kind):
        raise InputError(f"policy {name!r}: needs to be a class with {', '.join(_missing(kind) or PARTS)}")
    check_methods(kind, f"policy {name!r}")
    policy: type[Policy] = kind
    text.of(f"the name of policy {name!r}", policy.name)
    if policy.grouping not in ("launch", "aggregation", None):
        raise InputError(f"policy {name!r}: grouping = {shown(policy.grouping)}, needs launch, aggregation or None")
    return policy


def check_policy(policy: Any) -> None:
    """Refuse an object that is no policy."""
    if isinstance(policy, type) or _missing(policy):
        raise InputError(f"policy = {shown(policy)}: needs a name, or an object with {', '.join(PARTS)}")
    check_methods(type(policy), f"policy {type(policy).__name__}")


def _missing(policy: Any) -> list[str]:
    return [part for part in PARTS if not hasattr(policy, part)]


def check_methods(kind: type, what: str) -> None:
    """Refuse a class whose methods are not called as those of a policy are."""
    abstract = getattr(kind, "__abstractmethods__", ())
    if abstract:
        raise InputError(f"{what}: is abstract, needs {', '.join(sorted(abstract))}")
    for name, takes in TAKES.items():
        method = inspect.getattr_static(kind, name, None)
        if inspect.isfunction(method):
            try:
                inspect.signature(method).bind("self", *takes)
            except TypeError:
                raise InputError(f"{what}: needs {name}(self, {', '.join(takes)})") from None


def check_model(name: str) -> None:
    """A model's name, which may be of a factory that nobody has looked for yet."""
    text.of("model", name)
    module, colon, factory = name.partition(":")
    if name not in MODELS and not (module and colon and factory):
        raise InputError(f"model {shown(name)!r}: {nearest(name, MODELS, 'your own as module:factory')}")


def named(name: str, what: str) -> Any:
    """What `module:attribute` names; the working directory counts."""
    module, _, attribute = name.partition(":")
    if "/" in module or module.endswith(".py"):
        stem = module.rpartition("/")[2].removesuffix(".py")
        raise InputError(
            f"{what} {shown(name)!r}: needs a module's name, {stem}:{attribute} for {stem}.py in the folder that the "
            "command is run in"
        )
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        imported = importlib.import_module(module)
    except (Exception, SystemExit) as error:  # whatever a user's module does when it is imported
        why = str(error) if isinstance(error, ImportError) else sentence(error)
        raise InputError(f"{what} {shown(name)!r}: module {shown(module)!r} cannot be imported ({why})") from error
    try:
        return getattr(imported, attribute)
    except AttributeError:
        raise InputError(f"{what} {shown(name)!r}: module {shown(module)!r} has no {shown(attribute)!r}") from None


def build(name: str, options: Mapping[str, Any] | None = None, /, **settings: Any) -> Policy:
    """A policy by its name or as `name(setting=value, ...)`, with settings by name; text is converted to the type that
    the setting is declared with.

    >>> build("pipecycle", groups=3).groups, build("pipecycle(groups=3)").groups
    (3, 3)
    """
    from pipecycle.policies.spec import Spec

    text.of("policy", name)
    spec = Spec.of(name)
    if spec.fields:
        raise InputError(f"policy {shown(name)!r}: {next(iter(spec.fields))} is about a run, not about the policy")
    kind = policy_class(spec.policy)
    given: dict[str, Any] = {}
    for some in (spec.settings, options or {}, settings):
        given |= typed(kind, spec.policy, some)
    without = [key for key in parameters(kind) if key not in given and key not in defaults(kind)]
    if without:
        raise InputError(f"setting {without[0]!r} of {spec.policy}: has no default, needs a value")
    return kind(**given)


def typed(kind: type[Policy], name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as the types that a policy declares; one that it does not have is refused by name."""
    allowed = parameters(kind)
    if not isinstance(options, Mapping):
        raise InputError(f"settings of {name} = {shown(options)}: needs a table of settings by name")
    for key in options:
        if key not in allowed:
            known = nearest(str(key), allowed) if allowed else "it has none"
            raise InputError(f"setting {shown(key)!r} of {name}: {known}")
    return {key: convert(key, value, allowed[key]) for key, value in options.items()}


@cache
def parameters(kind: type[Policy]) -> Mapping[str, Any]:
    """The settings of a policy and their declared types."""
    try:
        hints = typing.get_type_hints(kind.__init__)
    except (NameError, TypeError, AttributeError):  # a user's, which mean something to a type checker alone
        hints = {}
    rest = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    names = [name for name, given in inspect.signature(kind).parameters.items() if given.kind not in rest]
    return MappingProxyType({name: hints.get(name, str) for name in names})


@cache
def defaults(kind: type[Policy]) -> Mapping[str, Any]:
    """What the settings of a policy are when they are not given."""
    given = inspect.signature(kind).parameters
    return {
        name: given[name].default for name in parameters(kind) if given[name].default is not inspect.Parameter.empty
    }


def settings(policy: Policy) -> dict[str, Any]:
    """The settings of a policy object, as they were given or by default."""
    values = {name: getattr(policy, name) for name in parameters(type(policy)) if hasattr(policy, name)}
    for name, value in values.items():
        if isinstance(value, np.generic):
            values[name] = value.item()
        elif not isinstance(value, bool | int | float | str | None):
            raise InputError(
                f"setting {name!r} of {policy.name} is a {type(value).__name__}: needs a number, text, true or false"
            )
    return values


def stated(policy: Policy) -> dict[str, Any]:
    """The settings that a schedule states of its policy: all, but those that came `later` only where they say
    something, so that digests and files made before are as they were."""
    usual, later = defaults(type(policy)), getattr(policy, "later", ())
    return {key: value for key, value in settings(policy).items() if key not in later or value != usual[key]}


def revision(kind: type[Policy]) -> int:
    """Which algorithm a policy's name stands for, counted from 1; a policy that has changed says so."""
    return int(getattr(kind, "revision", 1))


def recorded(meta: Mapping[str, Any]) -> dict[str, Any]:
    """The settings behind what a schedule says of itself: also those that it leaves unsaid, and the revision of a
    policy that has several."""
    kind = REGISTRY.get(meta["policy"])
    if kind is None:
        return dict(meta["settings"])
    usual = defaults(kind)
    values = {**{key: usual[key] for key in getattr(kind, "later", ())}, **meta["settings"]}
    return {"revision": meta.get("revision", 1), **values} if revision(kind) > 1 else values


def convert(key: str, value: Any, kind: Any) -> Any:
    """A value of the declared type, from text or from a file; a whole number will do for a number."""
    union = typing.get_origin(kind) in (typing.Union, types.UnionType)
    options = typing.get_args(kind) if union else (kind,)
    value = value.item() if isinstance(value, np.generic) else value
    if not all(option in WORDS for option in options):
        return value  # a type of the user's own, whose class has to know
    for option in sorted(options, key=lambda option: option is not type(None)):  # "none" is text too
        try:
            return _as(value, option)
        except (ValueError, OverflowError):
            continue
    raise InputError(f"{key} = {shown(value)}: needs {' or '.join(WORDS[option] for option in options)}")


def _as(value: Any, kind: Any) -> Any:
    """The value as one of the types in `WORDS`, or a ValueError."""
    if type(value) is kind or (kind is float and type(value) is int):
        return kind(value) if value is not None else None
    if isinstance(value, str):
        if kind is type(None) and value.lower() == "none":
            return None
        if kind is bool and value.lower() in ("true", "false"):
            return value.lower() == "true"
        if kind in (int, float):
            return kind(value)
    raise ValueError


def nearest(name: str, known: Iterable[str], own: str = "", section: str = "") -> str:
    """About a name that is none of those known; `own` is how a user's own would be written, and `section` what stands
    before the names."""
    other = f", or {own}" if own else ""
    return did_you_mean(name, known, section) or f"unknown, needs one of {', '.join(known)}{other}"


def did_you_mean(name: str, known: Iterable[str], section: str = "") -> str:
    """About a name that resembles a known one; nothing if it resembles none."""
    by_letters = {word.lower(): word for word in known}
    close = difflib.get_close_matches(name[:100].lower(), by_letters, 1)
    return f"unknown, did you mean {section + by_letters[close[0]]!r}?" if close else ""
