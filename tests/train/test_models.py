from __future__ import annotations

import hashlib
import sys
from math import sqrt

import numpy as np
import pytest
import torch
from torch import nn

from pipecycle.errors import InputError
from pipecycle.train import presets
from pipecycle.train.models import build, check, flatten, size, split, unflatten
from pipecycle.train.presets import PRESETS
from pipecycle.world.streams import streams

CIFAR = (3, 32, 32)


def words(trial: int = 0) -> np.ndarray:
    return streams(trial)("model").words(2)


@pytest.mark.parametrize(("name", "count"), [("lenet", 62_006), ("cnn64", 307_842), ("wide", 940_362)])
def test_parameters_on_cifar(name: str, count: int) -> None:
    assert size(build(name, CIFAR, 10, words())) == count


@pytest.mark.parametrize("name", list(PRESETS))
@pytest.mark.parametrize("shape", [CIFAR, (1, 8, 8), (1, 28, 28), (3, 33, 40), (2, 16, 16), (4, 5, 17)])
def test_the_size_of_a_preset_is_known_without_torch(name: str, shape: tuple[int, ...]) -> None:
    assert presets.size(name, shape, 7) == size(build(name, shape, 7, words()))


def test_mlp_is_inputs_64_classes() -> None:
    assert size(build("mlp", (1, 8, 8), 10, words())) == 64 * 64 + 64 + 64 * 10 + 10
    assert size(build("mlp", (7,), 3, words())) == 7 * 64 + 64 + 64 * 3 + 3


@pytest.mark.parametrize("name", list(PRESETS))
@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 33, 40), (2, 16, 16), (4, 5, 17)])
def test_presets_adapt_to_the_input(name: str, shape: tuple[int, ...]) -> None:
    assert build(name, shape, 7, words())(torch.zeros(2, *shape)).shape == (2, 7)


def test_initial_weights_are_pytorchs_default_and_belong_to_the_trial() -> None:
    torch.manual_seed(5)
    state = torch.random.get_rng_state()
    one, same, other = (flatten(build("lenet", CIFAR, 10, words(trial))) for trial in (0, 0, 1))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    first = one[: 6 * 75 + 6]
    assert 0.95 / sqrt(75) < float(first.abs().max()) <= 1 / sqrt(75)
    assert abs(float(first.mean())) < 0.01
    # It does not change between machines or versions: everything recorded depends on it.
    assert hashlib.sha256(one.numpy().astype("<f4").tobytes()).hexdigest()[:16] == "e3e18b12426b7b40"


def test_flatten_and_back() -> None:
    module = build("lenet", CIFAR, 10, words())
    vector = flatten(module)
    twin = unflatten(build("lenet", CIFAR, 10, words(1)), vector)
    assert torch.equal(flatten(twin), vector)
    parts = split(module, torch.stack([vector, 2 * vector]))
    assert [tuple(part.shape[1:]) for part in parts] == [tuple(p.shape) for p in module.parameters()]
    assert torch.equal(parts[2][1], 2 * next(iter(module[3].parameters())))  # type: ignore[index]
    with pytest.raises(InputError, match="the model has 62006"):
        split(module, vector[:-1])


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x + torch.randn_like(x))


class Counting(Noisy):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.layer(x)


class Centred(Noisy):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x - x.mean(0))


def frozen() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 3))


def shared() -> nn.Module:
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, nn.ReLU(), layer, nn.Linear(4, 3))


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)), "BatchNorm1d mixes the samples"),
        (nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.Linear(4, 3)), "draws random numbers"),
        (Noisy(), "draws random numbers"),
        (Counting(), "buffers that change"),
        (Centred(), "depend on the others"),
        (frozen(), "frozen parameters"),
        (shared(), "under two names"),
        (nn.ReLU(), "no parameters"),
        (nn.Linear(4, 2), r"gives \(4, 2\) for 4 inputs, needs \(4, 3\)"),
        (nn.Linear(5, 3), r"on inputs of shape \(4,\)"),
    ],
)
def test_modules_that_cannot_be_trained_are_refused(module: nn.Module, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        check(module, (4,), 3)


def test_group_norm_and_idle_dropout_are_welcome() -> None:
    check(nn.Sequential(nn.Linear(4, 4), nn.GroupNorm(2, 4), nn.Dropout(0.0), nn.Linear(4, 3)), (4,), 3)


def test_a_users_factory(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine_for_test.py").write_text(
        "from torch import nn\n"
        "def net(shape, classes):\n    return nn.Linear(shape[0], classes)\n"
        "def wrong(shape, classes):\n    return 3\n"
        "def odd(shape):\n    return nn.Linear(shape[0], 2)\n"
        "number = 1\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    state = torch.random.get_rng_state()
    one, same, other = (flatten(build("mine_for_test:net", (4,), 3, words(trial))) for trial in (0, 0, 1))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert torch.equal(torch.random.get_rng_state(), state)
    for name, reason in [
        ("mine_for_test:wrong", "gave a int"),
        ("mine_for_test:odd", r"function of \(shape, classes\)"),
        ("mine_for_test:number", r"function of \(shape, classes\)"),
        ("mine_for_test:nothing", "has no 'nothing'"),
        ("no_such_module_here:net", "cannot be imported"),
        ("lenot", "did you mean 'lenet'"),
    ]:
        with pytest.raises(InputError, match=reason):
            build(name, (4,), 3, words())
    with pytest.raises(InputError, match=r"needs \(channels, height, width\)"):
        build("lenet", (64,), 10, words())
