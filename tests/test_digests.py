"""Trial 0 is the same everywhere: on every machine, with every numpy, in another process, beside other work.

A digest may change only with the format or a rule; then say so in the changelog, because results made before
cannot be compared bit by bit with results made after."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from pipecycle import Always, Bernoulli, Markov, build, plan
from pipecycle.policies import REGISTRY
from pipecycle.world.harvest import Harvest

WEATHER = {
    "always": "d705461b9d0f446869bb9932257b20649bdcb9b8dceb1efc4be58917843bc6bc",
    "bernoulli:0.1": "7a93cacc4306b86a3c2d68780ce36b869f0ae10a1b313637d2fe895f423df943",
    "bernoulli:0.5": "43b618d6c37d7e26deb3446a1704474b1526a86fd31e77f5443476e06266d44a",
    "markov:0.3,12.0": "1f648fdb4b57c188044afa41b75afb99ac8186c7951aff03146b2bb1334942ce",
}
SCHEDULES = {
    "pipecycle": "530aaab665e535dfbcedc5bbabd03c6a066ed617f09929e3bfa8f986f94a7e24",
    "pipecycle+": "386b4c4e73d448e0de984ecd62cb465ecbc86c040d2940c22fff21d2b8b8b810",
    "fedavg": "d5f2f5bbabc802faae9f6bddb3fda91a02ecdbcbaf8cec5716a9536442da8dec",
    "cycp": "bba56a03c45b0bb8e81758bc570038000535d46249f2662aeb75127bbb600d57",
    "mifa": "5dfb1bd581ec5181f84e846ff15d91d1cf5d2c5b0dc1b01348d63a69ab5c1638",
    "flda": "701d1d66bfb1f6ab04d0cad05b06b40323e45d0ea2100789a1f62a8af6befc50",
    "fedseq": "ba686067196595da443ccbb09f906682c40856cf23ea29d42b97cfe18b328390",
    "fedbacys": "573dc8c7e4d28fffee7e847912fec6e56eb9afde72f1c7bf1dc1284f321fa238",
    "fedbacys-odd": "e37f4110950e0bcbc118d26d5608d36aaf8181d006ad88fe05dec95367fd8d26",
    "fedasync": "dcd677fc6811c1e0c5d3bae0d6edaa5318054d35f711d11feb65aa2d3917e382",
    "fedbuff": "a5d46af8ada97ce50f0a77ee1abba2a26061d155abdac91ccea8188f6221cb6c",
    "fedau": "09f45be7bda7dedf4c9abc58a685705b6fa7eda47aedc1b15ed86bcfeba5113a",
    "fedvarp": "9c4b626a2c0f8a4b5b55fae28529f543adc60594479a4e8299c75fb444dec4e3",
    "f3ast": "9f41f63a060da4852617ea4b89aba8df59dbf191fdba562e04a863443414c70a",
    "isolated": "fee2959af8121ba6c14e09a9f735f08878eeb3db583c371f50f312d802432436",
}


@pytest.mark.parametrize("harvest", [Always(), Bernoulli(0.1), Bernoulli(0.5), Markov(0.3, 12.0)], ids=str)
def test_weather(harvest: Harvest) -> None:
    rows = harvest.weather(100, 0).block(2000)
    assert hashlib.sha256(rows.astype("<i8").tobytes()).hexdigest() == WEATHER[str(harvest)]


def digest(name: str, trial: int = 0) -> str:
    return plan(build(name), 0.3, slots=2000, trial=trial).digest()


@pytest.mark.parametrize("name", REGISTRY)
def test_schedule(name: str) -> None:
    assert digest(name) == SCHEDULES[name]
    assert digest(name, trial=1) != SCHEDULES[name]


def test_in_another_process() -> None:
    command = [sys.executable, "-m", "pipecycle", "plan", "pipecycle+", "--delta", "0.3", "--slots", "2000", "--json"]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert json.loads(output)["digest"] == SCHEDULES["pipecycle+"]


def test_beside_other_work() -> None:
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(digest, list(REGISTRY) * 2)) == [SCHEDULES[name] for name in REGISTRY] * 2
