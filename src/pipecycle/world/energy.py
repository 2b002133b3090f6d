"""Energy as an exact integer count of 2^-20 units, and what each action costs."""

from __future__ import annotations

from fractions import Fraction
from math import ceil
from typing import Any

import numpy as np
from attrs import field, frozen
from numpy.typing import ArrayLike, NDArray

from pipecycle.errors import InputError, shown
from pipecycle.world.streams import Ints

UNIT = 1 << 20
"""Quanta in one unit of energy.  Sums of int64 quanta are exact up to 8.8e12 units."""

Quanta = int | Ints
"""One figure for every client, or one per client."""


def figures(value: ArrayLike, name: str, needs: str, least: float, most: float, *, whole: bool = False) -> NDArray[Any]:
    """One figure for all clients or one per client, each from `least` to `most`, which `needs` says in words."""
    try:
        array = np.asarray(value, None if whole else np.float64)
    except (TypeError, ValueError, OverflowError):  # rows of different lengths, too
        raise InputError(f"{name} = {shown(value)}: needs {needs}") from None
    wrong = array if whole and array.dtype.kind not in "iu" else array[~((array >= least) & (array <= most))]
    if wrong.size:
        first = wrong.item(0)
        raise InputError(f"{name} = {f'{first:g}' if isinstance(first, float) else shown(first)}: needs {needs}")
    return array


def quanta(units: ArrayLike, name: str = "energy") -> Quanta:
    """Units to quanta, rounded up once, so that no action is ever cheaper than was asked for."""
    values = figures(units, name, "a number of units from 0 to 2^40", 0.0, 2.0**40)
    if values.ndim == 0:
        return ceil(Fraction(values.item()) * UNIT)
    scaled = values * UNIT
    out: Ints = np.ceil(scaled, out=scaled).astype(np.int64)
    return out


def quanta_per_client(units: ArrayLike, clients: int, name: str) -> Quanta:
    return per_client(quanta(units, name), clients, name)


def per_client(values: Quanta, clients: int, name: str) -> Quanta:
    """One figure for all or as many as there are clients, and nothing else; equal ones as one."""
    each(values, clients, name)
    return uniform(values)


def each(values: ArrayLike, clients: int, name: str) -> NDArray[Any]:
    """A figure for each client, out of one for all or as many as there are clients."""
    array = np.asarray(values)
    if array.ndim and array.shape != (clients,):
        raise InputError(f"{name}: has {array.size} values for {clients} clients")
    return np.broadcast_to(array, (clients,))


def units(count: int) -> float:
    """Quanta to units; exact below 2^33 units."""
    return count / UNIT


def show(count: int) -> str:
    """Quanta as people read them: `21`, `0.0003`."""
    value = units(count)
    return f"{value:.0f}" if value == round(value) else f"{value:.6g}"


def uniform(value: Quanta) -> Quanta:
    """An array of equal figures as that one figure."""
    if isinstance(value, int) or value.size == 0 or (value != value.flat[0]).any():
        return value
    return int(value.flat[0])


def at(value: Quanta, clients: Ints) -> Quanta:
    return value if isinstance(value, int) else value[clients]


def _cost(instance: object, attribute: Any, value: Any) -> None:
    if not np.size(quanta(value, attribute.name)):
        raise InputError(f"{attribute.name} = {shown(value)}: needs a number of units")


@frozen
class Costs:
    """Units paid for one action: a number for all clients or one per client."""

    step: ArrayLike = field(default=1.0, validator=_cost)
    """One training step, i.e. one slot of a session."""
    to_hub: ArrayLike = field(default=1.0, validator=_cost)
    """One device-to-device transmission: a member's update to its hub, a hand-over in a chain."""
    to_server: ArrayLike = field(default=1.0, validator=_cost)
    """One uplink transmission."""
    download: ArrayLike = field(default=0.0, validator=_cost)
    """Fetching the reference of a session, in its first slot."""
    idle: ArrayLike = field(default=0.0, validator=_cost)
    """A slot without training or transmitting; an empty battery pays what it has."""
