"""Sunlight without a file: a cloudless sky over some latitude."""

from __future__ import annotations

import numpy as np
from attrs import frozen

from pipecycle.checks import number
from pipecycle.errors import InputError
from pipecycle.world.streams import Floats
from pipecycle.world.traces import DAY, Trace

STEP = 10.0
"""Minutes."""
YEAR = 365


@frozen(eq=False)
class Sky(Trace):
    """A trace that its name says all about."""

    def __str__(self) -> str:
        return self.name


def clear_sky(latitude: float, first: int = 1, last: int = YEAR) -> Sky:
    """Global irradiance on level ground in W/m2, by the sun's own time, from one day of the year to another.

    The sun's height is by Spencer's series (1971), the light by Haurwitz' formula (1945), which knows nothing of haze,
    horizon or altitude: an upper bound for most places, with the right days and seasons."""
    number(least=-90, most=90).of("latitude", latitude)
    if not 1 <= first <= last <= YEAR:
        raise InputError(f"days = {first}..{last}: needs days of the year, from 1 to {YEAR}")
    day = np.arange(first, last + 1, dtype=np.float64)[:, None]
    middle = (np.arange(int(DAY / STEP), dtype=np.float64) + 0.5) * STEP
    sine = _sine_of_height(float(np.radians(latitude)), day, middle / DAY).reshape(-1, 1)
    above = np.maximum(sine, 1e-3)
    light: Floats = np.where(sine > 0.0, 1098.0 * above * np.exp(-0.059 / above), 0.0)
    # Rounded, so that last bits, which differ between machines, are no part of the weather.
    return Sky(np.round(light, 3), STEP, f"clear sky at {latitude:g} degrees, days {first} to {last}")


def _sine_of_height(latitude: float, day: Floats, time: Floats) -> Floats:
    """Of the sun, at a time of the day from 0 to 1."""
    angle = 2 * np.pi * (day - 1) / YEAR
    declination = (
        0.006918
        - 0.399912 * np.cos(angle)
        + 0.070257 * np.sin(angle)
        - 0.006758 * np.cos(2 * angle)
        + 0.000907 * np.sin(2 * angle)
        - 0.002697 * np.cos(3 * angle)
        + 0.00148 * np.sin(3 * angle)
    )
    hour = 2 * np.pi * (time - 0.5)
    height: Floats = np.sin(latitude) * np.sin(declination) + np.cos(latitude) * np.cos(declination) * np.cos(hour)
    return height
