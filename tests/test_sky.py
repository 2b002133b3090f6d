from __future__ import annotations

import numpy as np
import pytest

from pipecycle.errors import InputError
from pipecycle.world.sky import clear_sky
from pipecycle.world.specs import parse_harvest


def days(latitude: float) -> np.ndarray:
    """Wh/m2 of each day of the year."""
    return np.asarray(clear_sky(latitude).values.reshape(365, -1).sum(1) / 6)


# By pvlib's solar position and its Haurwitz model, which has refraction and a real year besides: kWh/m2 in 2023, and
# the brightest moment in W/m2.
@pytest.mark.parametrize(
    ("latitude", "year", "peak"),
    [
        (0.0, 2679.9, 1035.0),
        (35.0, 2223.6, 1012.8),
        (52.5, 1705.5, 897.1),
        (-33.0, 2239.6, 1019.8),
        (69.0, 1212.0, 706.8),
    ],
)
def test_a_year_of_light(latitude: float, year: float, peak: float) -> None:
    assert days(latitude).sum() / 1000 == pytest.approx(year, rel=0.005)
    assert clear_sky(latitude).values.max() == pytest.approx(peak, rel=0.001)


def test_seasons() -> None:
    north, south, arctic = days(50.0), days(-50.0), days(75.0)
    assert abs(int(north.argmax()) - 171) <= 3  # 21 June is the 172nd day
    assert abs(int(north.argmin()) - 354) <= 3
    assert abs(int(south.argmin()) - 171) <= 3
    assert (arctic[:20] == 0).all()
    midnight = clear_sky(75.0, 172, 172).values[0, 0]
    assert midnight > 0
    noon = clear_sky(50.0, 80, 80).values[:, 0]
    assert noon.argmax() in (71, 72)
    assert noon == pytest.approx(noon[::-1], abs=0.01)


def test_as_a_harvest() -> None:
    harvest = parse_harvest("clearsky:50,days=172..181,panel=2,minutes=10,shade=0.5")
    assert str(harvest).startswith("solar:clear sky at 50 degrees, days 172 to 181,panel=2,")
    gains = harvest.weather(3, trial=0).block(144)
    assert gains.shape == (144, 3)
    assert gains.sum(0) / 2**20 == pytest.approx([days(50.0)[171:181].mean() * 6 / 1000] * 3, rel=0.02)
    dark = parse_harvest("clearsky:-80,days=170..174").weather(2, trial=1).block(2000)
    assert not dark.any()
    assert (parse_harvest("clearsky:10,days=5").weather(1, 0).block(1440) > 0).any()


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("clearsky:91", "needs a number from -90 to 90"),
        ("clearsky:nan", "needs a number from -90 to 90"),
        ("clearsky:north", "latitude = north: needs a number"),
        ("clearsky:50,days=0..3", "days of the year"),
        ("clearsky:50,days=9..3", "days of the year"),
        ("clearsky:50,days=a..3", "whole numbers"),
        ("clearsky:50,cloud=3", "needs one of days=..., panel=..."),
        ("clearsky:", "needs bernoulli:RATE"),
    ],
)
def test_a_wrong_sky_is_refused(spec: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason.replace(".", r"\.")):
        parse_harvest(spec)
