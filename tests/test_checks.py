"""Every class refuses what it cannot hold, by type, finiteness and range, whoever makes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from attrs import define, field

from pipecycle import Costs, InputError, build, plan
from pipecycle.checks import at_least, flag, number, one_of, share, text
from pipecycle.data import dirichlet, iid, load
from pipecycle.deploy.node.settings import NodeSettings
from pipecycle.deploy.wire.settings import RunSettings
from pipecycle.policies import FLDA, MIFA, CyCP, FedAvg, FedBacys, FedSeq, PipeCycle
from pipecycle.policies.registry import MODELS
from pipecycle.runs.config import Config
from pipecycle.runs.config import DataSection as Data
from pipecycle.runs.config import TrainSection as Train
from pipecycle.runs.config import WorldSection as World
from pipecycle.runs.run import train_folders
from pipecycle.theory.system import System
from pipecycle.train import LocalSGD, Training, Watch, problem
from pipecycle.train.history import Look
from pipecycle.train.presets import PRESETS
from pipecycle.world.harvest import Bernoulli, Markov
from pipecycle.world.links import Links
from pipecycle.world.sky import clear_sky
from pipecycle.world.traces import Solar, Spread, Table

NOT_A_NUMBER = ("1", None, True, float("nan"), float("inf"), [1], object())
POSITIVE = (*NOT_A_NUMBER, 0, -1.0)
AMOUNT = (*NOT_A_NUMBER, -1e-9)
SHARE = (*POSITIVE, 1.001)
WHOLE = ("20", None, True, 2.0, float("nan"), 0, -1, 10**20, 1 << 20_000)
TRIAL = ("0", None, True, 0.0, -1)
WORD = (None, 5, "", " ", "a\0b", "a\nb", "\udcff")
FLAG = (None, 0, 1, "true")

REFUSED: list[tuple[Callable[..., Any], str, tuple[Any, ...]]] = [
    (World, "clients", WHOLE), (World, "session", WHOLE), (World, "slots", WHOLE), (World, "trial", TRIAL),
    (World, "capacity", POSITIVE), (World, "initial", AMOUNT), (World, "harvest", (*WORD, "sunny", "bernoulli:2")),
    (World, "budget", tuple(value for value in POSITIVE if value is not None)),
    (Data, "name", (*WORD, "mnist")), (Data, "alpha", (0, -1, float("nan"), "0.1", 1e10)),
    (Data, "samples", (0, -1, 1.5, "3")), (Data, "split", ("", "x", 5, "x.txt", "a\0.npz")),
    (Train, "model", (*WORD, "lenett", ":", "a:")), (Train, "lr", (*POSITIVE, 1e300)), (Train, "lr_decay", SHARE),
    (Train, "momentum", (*AMOUNT, 1, 5)), (Train, "weight_decay", (*AMOUNT, 1e300)),
    (Train, "proximal", (*AMOUNT, 1e300)),
    (Train, "distillation", AMOUNT), (Train, "batch", WHOLE), (Train, "replacement", FLAG),
    (Train, "precision", (*WORD, "fp8")), (Look, "every", WHOLE), (Look, "clients_every", (0, "5", 1.5)),
    (Look, "early_stop", (*WORD, "soon")), (Look, "served", ("", "all", 5)),
    (Config, "policy", (*WORD, "nobody")), (Config, "settings", ({"x": 1}, {"groups": 0}, [1], {"groups": "x"})),
    (Watch, "every", WHOLE), (Watch, "clients_every", (0, "5")), (Watch, "budget", (-5, float("nan"), "5")),
    (Watch, "early_stop", ("soon", None)), (Watch, "served", ("all",)),
    (Training, "batch", WHOLE), (Training, "lr_decay", SHARE), (Training, "distillation", AMOUNT),
    (Training, "replacement", FLAG),
    (LocalSGD, "lr", (*POSITIVE, 1e300)), (LocalSGD, "momentum", (*AMOUNT, 1)), (LocalSGD, "weight_decay", AMOUNT),
    (LocalSGD, "proximal", AMOUNT),
    (PipeCycle, "groups", WHOLE), (PipeCycle, "group_size", (0, "3", 10**20)), (PipeCycle, "relay_mix", SHARE),
    (PipeCycle, "rotation", WORD), (PipeCycle, "queue_threshold", (0, 1.5)), (PipeCycle, "interval", (0, 10**20)),
    (FedAvg, "epoch", (0, "30", 10**20)), (CyCP, "group_cap", (0, True)), (FedBacys, "groups", WHOLE),
    (FedSeq, "mode", WORD), (FedSeq, "patience", (0,)), (MIFA, "use_memory", FLAG), (FLDA, "upload_ratio", SHARE),
    (Bernoulli, "rate", (-0.1, 1.1, float("nan"), "x", None, [0.5, 2])),
    (lambda burst: Markov(0.5, burst), "burst", (*POSITIVE, 0.5)),
    (lambda panel: Solar(clear_sky(40), panel), "panel", (*POSITIVE, 1e300)),
    (lambda minutes: Solar(clear_sky(40), minutes=minutes), "minutes", (*POSITIVE, 1e300, 1e-9)),
    (lambda shade: Solar(clear_sky(40), shade=shade), "shade", (-1, float("inf"), Spread(-1, 2), np.array([1.0, -1]))),
    (lambda shift: Solar(clear_sky(40), shift=shift), "shift", (float("nan"), "1", Spread(0, 1e12))),
    (lambda day: Table(clear_sky(40), day), "day", (0, 1.5, "1", 10**6)),
    (lambda low: Spread(low, 1.0), "low", (2.0, float("nan"), "0")),
    (Solar, "trace", (None, 5, "sun.csv")), (Table, "trace", (None, "gains.csv")), (Training, "sgd", (5, "x")),
    (Costs, "step", (float("nan"), float("inf"), "x", [], [-1.0], object(), 1e300)),
    (Costs, "idle", ("", [], {}, None)),
    (clear_sky, "latitude", (91, -91, float("nan"), "x", None)),
    (System, "B", WHOLE[:-2]), (System, "gamma", POSITIVE), (System, "delta", SHARE),
    (RunSettings, "slots", WHOLE), (RunSettings, "lr", POSITIVE), (RunSettings, "momentum", (*AMOUNT, 5)),
    (RunSettings, "slot_seconds", POSITIVE), (RunSettings, "capacity", POSITIVE), (RunSettings, "deadline", AMOUNT),
    (RunSettings, "partition", ("some", "dirichlet:x", "dirichlet:-1", "dirichlet:nan", 5)),
    (RunSettings, "data", ("mnist", 5)), (RunSettings, "resume", FLAG), (RunSettings, "out", (5, "relative")),
    (RunSettings, "policy_settings", ("[]", "x", 5, '{"groups": 0}', "[" * 5000)),
    (NodeSettings, "capacity", AMOUNT), (NodeSettings, "initial", NOT_A_NUMBER), (NodeSettings, "pace", AMOUNT),
    (NodeSettings, "battery", ("", "gauge:", "x", 5)), (NodeSettings, "partition_id", TRIAL),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "name", "values"), REFUSED, ids=[f"{k.__name__}.{n}" for k, n, _ in REFUSED])
def test_a_class_refuses(kind: Callable[..., Any], name: str, values: tuple[Any, ...]) -> None:
    for value in values:
        with pytest.raises(InputError) as raised:
            kind(**{name: value})
        assert len(str(raised.value)) < 500


def planned(**given: Any) -> Any:
    return plan(build("fedavg"), **{"clients": 4, "slots": 50, "session": 5, **given})


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("clients", WHOLE), ("slots", WHOLE), ("trial", TRIAL), ("budget", (0, -5, float("nan"), float("inf"), "5")),
        ("session", ("20", 0, 2.5, [5, 5], [[5], [5, 5]], True)), ("capacity", (-1, float("nan"), "x", [9, 9], 4)),
        ("initial", (-1, "x", 1e13, 2e6)), ("samples", (0, 1.5, "x", [1, 2], [1, 1, 1, 0])),
        ("harvest", ("sunny", 2, -1, float("nan"), None, object())), ("fleet", (5, True, [], "none.toml")),
    ],
)  # fmt: skip
def test_a_plan_refuses(name: str, values: tuple[Any, ...]) -> None:
    for value in values:
        with pytest.raises(InputError):
            planned(**{name: value})


def test_what_a_fleet_decides_is_not_given_beside_it() -> None:
    for given in ({"costs": Costs(step=2.0)}, {"leak": 0.1}, {"links": Links(failure=0.5)}):
        with pytest.raises(InputError, match="has no effect, devices of boards have their own"):
            planned(fleet="boards", **given)


def test_more_energy_than_the_ledger_counts_is_refused() -> None:
    with pytest.raises(InputError, match=r"could gain more than 8\.8e12 units"):
        plan(build("fedavg"), Solar(clear_sky(40), panel=2.0**20), clients=100_000, slots=1_000_000, session=5)
    with pytest.raises(InputError, match=r"8\.8e12 units at most"):
        plan(build("fedavg"), 0.5, clients=10**4, slots=10, session=5, capacity=2.0**40, initial=2.0**40)
    with pytest.raises(InputError, match="client-slots"):
        World(clients=10**8, slots=10**8)


def test_a_problem_refuses() -> None:
    task = load("digits")
    for given in (
        {"trial": -1},
        {"clients": 0},
        {"clients": "5"},
        {"alpha": 0.0},
        {"samples": 10**9},
        {"model": 5},
        {"split": "split.json"},
        {"training": LocalSGD()},
        {"training": 0},
    ):
        with pytest.raises(InputError):
            problem(task, **given)  # type: ignore[arg-type]
    for call in (lambda: iid(task, 5, trial=-1), lambda: dirichlet(task, 5, alpha=float("nan"))):
        with pytest.raises(InputError):
            call()
    with pytest.raises(InputError, match="save_every = nan"):
        train_folders([], save_every=float("nan"))


def test_numbers_of_numpy_are_numbers() -> None:
    world = World(clients=np.int64(5), budget=np.float64(9.0))  # type: ignore[arg-type]
    assert "clients = 5\n" in Config(world=world).text()
    assert "budget = 9.0\n" in Config(world=world).text()
    assert Config("pipecycle", {"groups": np.int64(3)}).identity() == Config("pipecycle", {"groups": 3}).identity()
    assert planned(clients=np.int64(4)).digest() == planned().digest()


def test_settings_given_as_text_are_the_same_run() -> None:
    assert Config("pipecycle", {"groups": "3", "relay_mix": 1}).settings == {"groups": 3, "relay_mix": 1.0}


def test_descriptions_of_harvests_can_be_planned() -> None:
    assert planned(harvest="bernoulli:0.5").digest() == planned(harvest=0.5).digest()


def test_every_model_has_a_name() -> None:
    assert tuple(PRESETS) == MODELS


def test_sentences() -> None:
    @define
    class Settings:
        size: int | None = field(default=None, validator=at_least(2, "parts", most=9))
        rate: float = field(default=0.5, validator=share)
        kind: str = field(default="a", validator=one_of("a", "b"))
        name: str = field(default="x", validator=text)
        loud: bool = field(default=False, validator=flag)
        weight: float = field(default=1.0, validator=number(least=-1, most=2.5))

    Settings(size=None)
    for given, said in {
        ("size", 1): "size = 1: needs at least 2 parts",
        ("size", 10): "size = 10: needs at most 9",
        ("size", "x"): "size = x: needs a whole number of at least 2",
        ("rate", 2): "rate = 2: needs a number above 0 and at most 1",
        ("kind", "c"): "kind = c: needs one of a, b",
        ("name", "a\tb"): "name = a b: needs text without control characters",
        ("loud", 1): "loud = 1: needs true or false",
        ("weight", float("inf")): "weight = inf: needs a number from -1 to 2.5",
    }.items():
        with pytest.raises(InputError) as raised:
            Settings(**{given[0]: given[1]})  # type: ignore[arg-type]
        assert str(raised.value) == said
