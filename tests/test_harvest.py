from __future__ import annotations

import numpy as np
import pytest

from pipecycle.errors import InputError
from pipecycle.world.energy import UNIT
from pipecycle.world.harvest import Always, Bernoulli, Chance, Harvest, Markov
from pipecycle.world.specs import parse_harvest
from pipecycle.world.streams import Ints, raw, streams


def gains(harvest: Harvest, clients: int, slots: int, trial: int = 0, blocks: tuple[int, ...] = ()) -> Ints:
    weather = harvest.weather(clients, trial)
    parts = blocks or (slots,)
    assert sum(parts) == slots
    return np.concatenate([weather.block(part).copy() for part in parts])


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.3, 0.5, 0.7310585786, 1.0])
def test_bernoulli_has_its_rate(rate: float) -> None:
    units = gains(Bernoulli(rate), 100, 10_000) / UNIT
    assert set(np.unique(units)) <= {0.0, 1.0}
    assert abs(units.mean() - rate) <= 4 * np.sqrt(rate * (1 - rate) / units.size)
    # Independent between clients and between slots.
    if 0 < rate < 1:
        assert abs(np.corrcoef(units[:, 0], units[:, 1])[0, 1]) < 0.05
        assert abs(np.corrcoef(units[1:, 0], units[:-1, 0])[0, 1]) < 0.05


def test_chance_resolves_what_eight_bits_cannot() -> None:
    rate = 1e-3  # below 1/256: every success comes from a tie
    lanes = raw(streams(0)("lanes").bits(), 1 << 20).view(np.uint8)
    share = Chance(rate)(lanes, streams(0)("ties").bits()).mean()
    assert abs(share - rate) < 4 * np.sqrt(rate / lanes.size)


def test_rates_per_client() -> None:
    rates = np.array([0.0, 0.25, 0.6, 1.0])
    means = gains(Bernoulli(rates), 4, 20_000).mean(axis=0) / UNIT
    assert means[0] == 0
    assert means[3] == 1
    assert means[1:3] == pytest.approx([0.25, 0.6], abs=0.015)


@pytest.mark.parametrize("harvest", [Bernoulli(0.3), Bernoulli(0.5), Markov(0.3, 7.0)])
def test_weather_does_not_depend_on_blocks(harvest: Harvest) -> None:
    whole = gains(harvest, 13, 60)
    assert (gains(harvest, 13, 60, blocks=(1, 30, 2, 27)) == whole).all()
    assert (gains(harvest, 13, 60, trial=1) != whole).any()


def test_markov_has_its_rate_and_burst() -> None:
    units = gains(Markov(0.3, 12.0), 200, 20_000) / UNIT
    assert units.mean() == pytest.approx(0.3, abs=0.01)
    assert units[0].mean() == pytest.approx(0.3, abs=0.11)  # the first slot is drawn from the long run
    begins = ((units[1:] == 1) & (units[:-1] == 0)).sum()
    assert units.sum() / begins == pytest.approx(12.0, rel=0.03)


def test_markov_at_its_edges() -> None:
    assert (gains(Markov(1.0, 5.0), 3, 50) == UNIT).all()
    assert (gains(Markov(0.0, 5.0), 3, 50) == 0).all()
    with pytest.raises(InputError, match=r"burst = 2: needs at least 4 slots"):
        Markov(0.8, 2.0)


def test_always() -> None:
    assert (gains(Always(), 3, 5) == UNIT).all()
    assert (gains(Always(), 3, 5, trial=9) == UNIT).all()


@pytest.mark.parametrize("rate", [-0.1, 1.5, float("nan")])
def test_impossible_rates_are_refused(rate: float) -> None:
    with pytest.raises(InputError, match="needs a charging probability from 0 to 1"):
        Bernoulli(rate)


def test_rates_for_another_number_of_clients_are_refused() -> None:
    with pytest.raises(InputError, match="rate: has 2 values for 3 clients"):
        Bernoulli([0.1, 0.2]).weather(3, 0)


@pytest.mark.parametrize(
    ("spec", "text"),
    [("bernoulli:0.3", "bernoulli:0.3"), ("markov:0.3,12", "markov:0.3,12.0"), ("always", "always")],
)
def test_specs(spec: str, text: str) -> None:
    assert str(parse_harvest(spec)) == text


@pytest.mark.parametrize("spec", ["", "sun", "bernoulli", "bernoulli:x", "markov:0.3", "always:1", "solar:"])
def test_unknown_specs_are_refused(spec: str) -> None:
    with pytest.raises(InputError):
        parse_harvest(spec)
