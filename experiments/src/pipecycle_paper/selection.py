"""Which runs there are, and how they are dealt out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pipecycle.checks import MOST_RUNS
from pipecycle.errors import InputError, shown
from pipecycle.policies.registry import nearest
from pipecycle.runs.config import Config
from pipecycle.runs.planning import expected_units, mean_rate
from pipecycle.runs.sweep import Sweep, flat, read_sweep

PAPER, SENSITIVITY, REGIMES = "paper.toml", "sensitivity.toml", "regimes.toml"
WORDS = {"policy": "policy", "groups": "policy.groups", "delta": "delta", "data": "distribution", "part": "part"}
"""What --only can ask for, and the column that answers."""


def experiment(name: str) -> Path:
    """A sweep file that comes with pipecycle."""
    here = Path(__file__).resolve().parent
    for folder in (here, here.parents[1]):  # an installed package, a checkout
        if (folder / name).exists():
            return folder / name
    raise InputError(f"{name}: did not come with this installation; name the file with --file")


def read(path: Path, trials: str | None, only: Sequence[str] = ()) -> Sweep:
    """The runs of a file, for the trials and of the kind that were asked for."""
    wanted = [_condition(text) for text in only]
    sweep = read_sweep(path, None if trials is None else numbers(trials))
    runs = dict(sweep.runs)
    for key, values in wanted:
        if key == "part":
            members = {name for part in values for name in _part(sweep, part, path)}
            runs = {name: config for name, config in runs.items() if name in members}
        else:
            runs = {name: config for name, config in runs.items() if str(columns(config).get(key)) in values}
    if not runs:
        raise InputError(f"--only {' '.join(only)}: no run of {path.name} matches")
    parts = {part: [name for name in names if name in runs] for part, names in sweep.parts.items()}
    return Sweep(runs, {part: names for part, names in parts.items() if names})


def numbers(text: str) -> list[int]:
    """`3` is trials 0, 1, 2; `3-5` is 3, 4, 5."""
    first, dash, last = text.partition("-")
    try:
        chosen = range(int(first), int(last) + 1) if dash else range(int(first))
    except ValueError:
        chosen = range(0)
    if not chosen or chosen[0] < 0:
        raise InputError(f"--trials {shown(text)}: needs a count such as 3, or trials such as 3-5")
    if chosen[-1] - chosen[0] >= MOST_RUNS:  # a range of more than 2^63 has no length
        raise InputError(f"--trials {shown(text)}: needs at most {MOST_RUNS:,} trials")
    return list(chosen)


def piece(runs: Mapping[str, Config], text: str) -> dict[str, Config]:
    """`2/4` is the second of four pieces.  Runs are dealt like cards, ordered by what decides their length, so that
    the pieces take about equally long; which run is in which piece depends on the file and the trials alone."""
    index, of = share(text)
    order = sorted(runs, key=lambda name: (-expected_steps(runs[name]), name))
    chosen = set(order[index - 1 :: of])
    return {name: config for name, config in runs.items() if name in chosen}


def share(text: str) -> tuple[int, int]:
    """`2/4` as two numbers."""
    number, _, count = text.partition("/")
    try:
        index, of = int(number), int(count)
    except ValueError:
        index = of = 0
    if not 1 <= index <= of:
        raise InputError(f"--piece {shown(text)}: needs two numbers such as 2/4")
    return index, of


def expected_steps(config: Config) -> float:
    """About how many client-steps a run has: all energy that comes in, or the budget, goes into sessions."""
    session = config.world.session
    return expected_units(config) * session / (session + 1)


def distribution(config: Config) -> str:
    return "iid" if config.data.alpha is None else "non-iid"


def scheme(config: Config) -> str:
    """What tables call a configuration, its groups aside: its policy, or a variant of it that has rows of its own."""
    if config.settings.get("step") == "lag-stable":
        return f"{config.policy} lag-stable"
    mixed = config.settings.get("rotation") == "spread" and config.settings.get("relay_mix") == 0.5
    return f"{config.policy} mixed" if mixed else config.policy


def place(config: Config) -> tuple[str, str, int | None, float]:
    """Distribution, scheme, groups and charging probability: where in the tables a configuration belongs."""
    return distribution(config), scheme(config), config.settings.get("groups"), mean_rate(config)


def columns(config: Config) -> dict[str, object]:
    """A configuration in columns, with the two that tables are made of: `delta` and `distribution`."""
    return flat(config) | {"delta": mean_rate(config), "distribution": distribution(config)}


def _condition(text: str) -> tuple[str, list[str]]:
    key, equals, values = text.partition("=")
    if not equals or not values:
        raise InputError(f"--only {shown(text)}: needs a condition such as policy=pipecycle,fedavg or delta=0.5")
    if key not in WORDS:
        raise InputError(f"--only {text}: {key}: {nearest(key, WORDS)}")
    return WORDS[key], values.split(",")


def _part(sweep: Sweep, name: str, path: Path) -> Sequence[str]:
    if name not in sweep.parts:
        known = nearest(name, sweep.parts) if sweep.parts else "the file has no parts"
        raise InputError(f"--only part={name}: {path.name}: {known}")
    return sweep.parts[name]
