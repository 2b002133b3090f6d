"""What a page may ask for, as a configuration, as a link and as a command."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote

import attrs
from attrs import field, frozen

from pipecycle.errors import InputError, shown
from pipecycle.policies import REGISTRY
from pipecycle.policies.registry import nearest
from pipecycle.runs.config import Config, read_recorded

MOST_CLIENTS = 20_000
MOST_SLOTS = 50_000
MOST_CLIENT_SLOTS = 20_000_000
"""A plan of this size takes some seconds; the command line plans larger ones."""
MOST_VALUES = 100
LONGEST_VALUE = 300

WORLD = ("clients", "session", "slots", "harvest", "trial", "capacity", "initial", "budget")
"""Settings of the world that a page shows, by the names they have in a link."""
TRAINING = ("data.alpha", "train.lr", "look.every")
SHOWN = sorted((*(f"world.{name}" for name in WORLD), *TRAINING))
"""The fields that controls of the page set."""
VIEW = ("from", "to", "client", "rows")
FILELESS = ("bernoulli", "markov", "clearsky", "always")
"""Words of harvests that open no file; a link must not make this machine read one."""
DATA = "digits"
START = "slots=2000&look.every=50&a=pipecycle&a.groups=5"

Values = Mapping[str, Any]
"""One scheduler with its world, flat: `policy`, `policy.groups`, `world.clients`, `train.lr`."""


@frozen
class Offer:
    """What may be asked for besides what everybody has; it comes from the command line, never from an address."""

    policies: tuple[str, ...] = ()
    """The user's own, as module:Class."""
    harvests: tuple[str, ...] = ()
    """Descriptions that read files."""
    kept: dict[str, Any] = field(factory=dict)
    """What no control of the page changes: the fleet, and whatever else the run that was opened sets."""

    @property
    def names(self) -> list[str]:
        return [*REGISTRY, *(name for name in self.policies if name not in REGISTRY)]


def config_of(values: Any, offer: Offer) -> Config:
    """The configuration that a page asks for, or one sentence."""
    if not isinstance(values, dict) or len(values) > MOST_VALUES:
        raise InputError(f"settings: needs a table of at most {MOST_VALUES} values")
    for key, value in values.items():
        if not isinstance(value, bool | int | float | str | None) or len(shown(value, 1000)) > LONGEST_VALUE:
            raise InputError(f"{shown(key)}: needs a number or a text of at most {LONGEST_VALUE} letters")
    options = dict(values)
    policy = options.pop("policy", None)
    if policy not in offer.names:
        own = ", or start the studio with --policy module:Class"
        raise InputError(f"policy {shown(policy)!r}: {nearest(shown(policy), dict.fromkeys(offer.names))}{own}")
    for key in options:
        if key not in SHOWN and not key.startswith("policy."):
            raise InputError(f"{shown(key)}: {nearest(key, SHOWN)}")
    config = Config(policy).changed({**offer.kept, **options})
    world = config.world
    if world.harvest.partition(":")[0] not in FILELESS and world.harvest not in offer.harvests:
        raise InputError(
            f"harvest {shown(world.harvest)!r}: needs one of {', '.join(FILELESS)}; one that reads a file is given "
            "when the studio is started, with --harvest"
        )
    for name, value, most in (
        ("clients", world.clients, MOST_CLIENTS),
        ("slots", world.slots, MOST_SLOTS),
        ("clients x slots", world.clients * world.slots, MOST_CLIENT_SLOTS),
    ):
        if value > most:
            raise InputError(
                f"{name} = {value:,}: the studio plans at most {most:,} (`pipecycle plan` has no such limit)"
            )
    return config


# Links.


def values_of(link: str) -> list[Values]:
    """The one or two schedulers that an address, or what follows its #, is about."""
    text = link.partition("#")[2] if "#" in link else link
    try:
        pairs = dict(parse_qsl(text, keep_blank_values=True, max_num_fields=4 * MOST_VALUES))
    except ValueError:
        raise InputError(f"the address {shown(link)!r}: holds more than {4 * MOST_VALUES} values") from None
    shared = {
        (f"world.{key}" if key in WORLD else key): value
        for key, value in pairs.items()
        if key in WORLD or key in TRAINING
    }
    sides: list[Values] = []
    for side in ("a", "b"):
        if side in pairs:
            own = {f"policy.{key[2:]}": value for key, value in pairs.items() if key.startswith(f"{side}.")}
            sides.append({"policy": pairs[side], **shared, **own})
    if not sides:
        raise InputError(f"the address {shown(link)!r}: names no scheduler (a=pipecycle)")
    return sides


def view_of(link: str) -> dict[str, Any]:
    """What of the pictures an address shows: a stretch of slots, a client, rows of groups or clients."""
    pairs = dict(parse_qsl(link.partition("#")[2], max_num_fields=4 * MOST_VALUES))
    return {key: pairs[key] for key in VIEW if key in pairs}


def link_of(configs: list[Config], view: Mapping[str, Any] | None = None) -> str:
    """What follows the # of an address that restores these: whatever differs from the defaults."""
    pairs: dict[str, Any] = {}
    for key, value in _differences(configs[0]).items():
        if key in SHOWN:
            pairs[key.removeprefix("world.")] = value
    for side, config in zip("ab", configs, strict=False):
        pairs[side] = config.policy
        pairs |= {f"{side}.{key}": value for key, value in sorted(config.stated().items())}
    pairs |= {key: value for key, value in (view or {}).items() if key in VIEW}
    return "&".join(f"{quote(key)}={quote(_text(value), safe=':,')}" for key, value in pairs.items())


def of_run(path: Path, offer: Offer) -> tuple[Config, Offer]:
    """The settings of a run's folder or of a configuration file; no code is imported for them."""
    file = path / "config.toml" if path.is_dir() else path
    recorded = read_recorded(file)
    if recorded.policy not in offer.names:
        raise InputError(f"{path}: was planned by {shown(recorded.policy)}; add --policy {shown(recorded.policy)}")
    every = recorded.data.name == DATA
    facts = {key: value for key, value in _differences(recorded).items() if every or key.startswith("world.")}
    kept = {key: value for key, value in facts.items() if key not in SHOWN}
    harvest = recorded.world.harvest
    offer = attrs.evolve(offer, kept=kept | offer.kept, harvests=tuple(dict.fromkeys([*offer.harvests, harvest])))
    settings = {f"policy.{key}": value for key, value in recorded.settings.items()}
    values = {"policy": recorded.policy, **settings, **{key: facts[key] for key in facts if key in SHOWN}}
    return config_of(values, offer), offer


# Commands.

FLAGS = {
    "policy.groups": "--groups",
    "world.harvest": "--harvest",
    "world.fleet": "--fleet",
    "world.clients": "--clients",
    "world.session": "--session",
    "world.slots": "--slots",
    "world.budget": "--budget",
    "world.trial": "--trial",
    "data.name": "--data",
    "train.model": "--model",
}
PLANNED = ("data.name", "data.split", "train.model", "train.batch")
"""What a plan depends on besides the world: the size of the model, and who holds how much."""
RUN_FLAGS = {**FLAGS, "data.alpha": "--alpha"}


def command(config: Config, verb: str = "plan") -> str:
    """`pipecycle plan` (or `run`) with whatever differs from the defaults."""
    flags = RUN_FLAGS if verb == "run" else FLAGS
    facts = {f"policy.{key}": value for key, value in sorted(config.stated().items())}
    facts |= {
        key: value
        for key, value in _differences(config).items()
        if verb == "run" or key.startswith("world.") or key in PLANNED
    }
    words = ["pipecycle", verb, config.policy]
    for key in [*flags, *(key for key in facts if key not in flags)]:
        if key not in facts:
            continue
        text = _text(facts[key])
        rate = text.removeprefix("bernoulli:")
        if key == "world.harvest" and rate != text and _text(float(rate)) == rate:
            words += ["--delta", rate]
        elif key in flags:
            words += [flags[key], text]
        else:
            words += ["--set", f"{key}={text}"]
    return shlex.join(words)


def _differences(config: Config) -> dict[str, Any]:
    """Every field that is not as it would be without being given."""
    usual = Config().fields()
    return {key: value for key, value in config.fields().items() if value != usual[key]}


def _text(value: Any) -> str:
    """As `--set` and a link take it."""
    if value is None or isinstance(value, bool):
        return {None: "none", True: "true", False: "false"}[value]
    return repr(value) if isinstance(value, float) else str(value)
