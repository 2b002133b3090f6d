"""Networks read off modules, and their layers written out: against a naive session, against the kernels."""

from __future__ import annotations

import os
import subprocess
import sys
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from pipecycle.train.loop import Loop
from pipecycle.train.models import build, flatten, unflatten
from pipecycle.train.network_stack import NetworkStack
from pipecycle.train.network_trace import trace
from pipecycle.train.paths import choose
from pipecycle.train.sessions import LocalSGD, Teachers
from pipecycle.train.stack import StackedLogits
from pipecycle.train.stacked import Stacked
from pipecycle.train.views import Frame
from pipecycle.world.streams import streams
from tests.train.networks import NETWORKS, SHAPE
from tests.train.test_sessions import CLASSES, OPTIONS, Case, applied, close, gpu


@pytest.mark.parametrize("name", list(NETWORKS))
@pytest.mark.parametrize("option", ["plain", "all"])
def test_layers_agree_with_a_naive_session(name: str, option: str) -> None:
    case = Case(name, 3, steps=3).with_gaps()
    trainer = case.layers(OPTIONS[option])
    for teachers, lr in ((None, None), (case.teachers, case.lr)):
        expected = case.naive(OPTIONS[option], teachers, lr)
        got = trainer.run(case.reference, case.batches, lr=lr, teachers=teachers, collect=True)
        assert close(got, expected, 1e-9)


@pytest.mark.parametrize("name", list(NETWORKS))
def test_loop_and_torch_func_agree_on_what_users_write(name: str) -> None:
    case = Case(name, 3, steps=2).with_gaps()
    views = torch.randint(50, case.batches.shape)
    frame = Frame(2, (0.5, 0.2, -0.3))
    expected = case.make(Loop, LocalSGD(), frame=frame).run(case.reference, case.batches, views=views, collect=True)
    for trainer in (case.make(Stacked, LocalSGD(), path="module", frame=frame), case.layers(LocalSGD(), frame=frame)):
        assert close(trainer.run(case.reference, case.batches, views=views, collect=True), expected, 1e-9)


@pytest.mark.parametrize("name", ["two branches", "residuals", "chain"])
def test_bits_do_not_depend_on_the_company(name: str) -> None:
    case = Case(name, 21, steps=2, dtype=torch.float32)
    for trainer in (case.make(Stacked, LocalSGD(), path="module"), case.layers(LocalSGD())):
        together = trainer.run(case.reference, case.batches).parameters
        for rows in (slice(4, 5), slice(7, 17), slice(19, None)):
            assert torch.equal(trainer.run(case.reference[rows], case.batches[rows]).parameters, together[rows])


@pytest.mark.parametrize("name", ["cnn64-gn", "resnet8-gn"])
def test_presets_with_norms(name: str) -> None:
    case = Case(name, 1, steps=2)
    expected = case.make(Loop, LocalSGD()).run(case.reference, case.batches).parameters
    got = case.layers(LocalSGD()).run(case.reference, case.batches).parameters
    assert float((got - expected).abs().max()) < 1e-9


class Written(nn.Module):
    """A module whose forward pass is given."""

    def __init__(self, forward: Any, *layers: nn.Module) -> None:
        super().__init__()
        self.layers, self.how = nn.ModuleList(layers), forward
        self.own = nn.Parameter(torch.ones(3)) if not layers else None

    def forward(self, x: Tensor) -> Tensor:
        return self.how(self.layers, x, self.own)  # type: ignore[no-any-return]


LINEAR = nn.Linear(216, 10)


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (nn.Sequential(nn.Conv2d(3, 4, 3, dilation=2), nn.Flatten(), nn.Linear(80, 10)), "with groups, dilation"),
        (nn.Sequential(nn.Conv2d(3, 6, 3, groups=3), nn.Flatten(), nn.Linear(252, 10)), "with groups, dilation"),
        (nn.Sequential(nn.Flatten(), nn.Linear(216, 10), nn.Softmax(1)), r"Softmax\(dim=1\)"),
        (nn.Sequential(nn.Upsample(scale_factor=2), nn.Flatten(), nn.Linear(864, 10)), "Upsample"),
        (Written(lambda parts, x, own: parts[0](x.flatten(1)) * 2, LINEAR), "mul"),
        (Written(lambda parts, x, own: x.flatten(1)[:, :10] * own.sum()), "own, a tensor of its own"),
        (Written(lambda parts, x, own: parts[0](parts[0](x.flatten(1))), nn.Linear(216, 216)), "used twice"),
        (Written(lambda parts, x, own: parts[0](x.flatten(1) if x.shape[2] > 2 else x), LINEAR), "cannot follow it"),
        (Written(lambda parts, x, own: parts[0](x.transpose(1, 2).flatten(1)), LINEAR), "transpose"),
        (Written(lambda parts, x, own: parts[0](x.flatten(1)), LINEAR, nn.Linear(2, 2)), "nothing depends on"),
        (
            Written(lambda parts, x, own: _beside(parts[0](x.flatten(1)), torch.tanh), LINEAR),
            "a value that nothing depends on",
        ),
        (
            Written(lambda parts, x, own: _twice(parts[0](x.flatten(1)), functional.relu), LINEAR),
            "in place of a value that is used elsewhere",
        ),
    ],
)
def test_what_has_no_layer_is_said(module: nn.Module, reason: str) -> None:
    found = trace(module, SHAPE)
    assert isinstance(found, str)
    assert reason.replace("\\", "") in found
    choice = choose(module, torch.zeros(2, *SHAPE))
    assert choice.path == "module"
    assert found in str(choice)


def _beside(x: Tensor, activation: Any) -> Tensor:
    activation(x)
    return x


def _twice(x: Tensor, activation: Any) -> Tensor:
    return activation(x, inplace=True) + x  # type: ignore[no-any-return]


def test_what_is_padded_stays_zero() -> None:
    case = Case("two branches", 2, steps=3)
    trainer = case.layers(OPTIONS["all"])
    trainer.run(case.reference, case.batches)
    used = torch.zeros(trainer.layers.net.row, dtype=torch.bool)
    used[trainer.layers.place] = True
    assert len(case.reference[0]) == int(used.sum()) < len(used)
    assert not trainer.layers.buffers["w"][:2, ~used].any()


def interpreted() -> None:
    """The kernels, run by Triton's interpreter on the CPU, which knows no bf16, against the loop in float64."""
    all_of_it, nothing = ("two branches", "residuals", "chain", "pooled"), ("normed", "flat")
    for name in all_of_it + nothing:
        case, frame = Case(name, 2, steps=1).with_gaps(), Frame(2, (0.5, 0.2, -0.3))
        sgd = OPTIONS["all" if name in ("two branches", "chain") else "plain"]
        views = torch.randint(50, case.batches.shape, generator=torch.Generator().manual_seed(3))
        how: dict[str, Any] = {"teachers": case.teachers, "collect": True, "views": views} if name in all_of_it else {}
        expected = case.make(Loop, sgd, frame=frame).run(case.reference, case.batches, **how)
        case.module, case.images, case.reference = case.module.float(), case.images.float(), case.reference.float()
        trainer = case.layers(sgd, NetworkStack, frame=frame)
        got = trainer.run(case.reference, case.batches, **how)
        assert float((got.parameters - expected.parameters).abs().max()) < 1e-5
        assert name in nothing or close(got, expected, 1e-5)
        # In fewer bits, for which it has float16: products read a copy of the weights, made beside each step.
        narrow = case.layers(sgd, NetworkStack, frame=frame)
        narrow.layers.dtype = torch.float16
        short = narrow.run(case.reference, case.batches, **how)
        held = narrow.layers.buffers
        assert torch.equal(held["s"], held["w"].half())
        assert 1e-7 < float((short.parameters - expected.parameters).abs().max()) < 1e-2
    # The same kernels look at models: images that fill no whole number of parts.
    module, images, net = case.module, torch.randn(70, *SHAPE), trainer.layers.net
    stack = NetworkStack(Stacked(module, images, torch.zeros(70), CLASSES), net)
    wanted = torch.stack([applied(module, row, images) for row in case.reference])
    assert float((StackedLogits(stack)(case.reference) - wanted).abs().max()) < 1e-4


@pytest.mark.triton
def test_kernels_in_the_interpreter() -> None:
    pytest.importorskip("triton")
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    command = [sys.executable, "-c", "from tests.train import test_network; test_network.interpreted()"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def on_device(name: str, sessions: int, steps: int) -> tuple[nn.Module, Tensor, Tensor, Tensor, Tensor]:
    """A module, images, labels, references and batches of 15."""
    random = torch.Generator().manual_seed(5)
    torch.manual_seed(0)
    preset = name not in NETWORKS
    shape = (3, 32, 32) if preset else SHAPE
    module = build(name, shape, CLASSES, streams(3)("model").words(2)) if preset else NETWORKS[name]()
    images = torch.randn(600, *shape, generator=random)
    labels = torch.randint(CLASSES, (600,), generator=random)
    reference = flatten(module) * (1 + 0.1 * torch.rand(sessions, 1, generator=random))
    return module, images, labels, reference, torch.randint(600, (sessions, steps, 15), generator=random)


@gpu
@pytest.mark.parametrize("name", [*NETWORKS, "resnet8-gn", "cnn64-gn", "cnn64"])
@pytest.mark.parametrize("path", ["layers", "module"])
@pytest.mark.parametrize("option", ["plain", "all"])
def test_float32_on_the_device_is_the_cpus(name: str, path: Any, option: str) -> None:
    module, images, labels, reference, batches = on_device(name, 3, 6)
    batches[1, :, 11:] = -1
    random = torch.Generator().manual_seed(6)
    logits = 3 * torch.randn(3, CLASSES, CLASSES, generator=random)
    teachers = None if option == "plain" else Teachers(logits, torch.rand(3, CLASSES, generator=random) < 0.6, 0.3)
    views = torch.randint(162, batches.shape, generator=random)
    frame = Frame(4, (-1.0, -0.9, -0.8))
    exact = Loop(module.double(), images.double(), labels, CLASSES, OPTIONS[option], frame=frame)
    expected = exact.run(reference.double(), batches, teachers=teachers, views=views).parameters
    trainer = Stacked(module.float(), images.cuda(), labels, CLASSES, OPTIONS[option], frame=frame, path=path)
    got = trainer.run(reference, batches, teachers=teachers, views=views).parameters.cpu()
    assert float((got - expected).abs().max()) < 1e-3


@gpu
@pytest.mark.parametrize("name", ["two branches", "residuals", "resnet8-gn", "cnn64-gn"])
@pytest.mark.parametrize("path", ["layers", "module"])
def test_bf16_is_no_worse_than_torchs(name: str, path: Any) -> None:
    module, images, labels, reference, batches = on_device(name, 12, 5)
    exact = Loop(module.double(), images.double(), labels, CLASSES).run(reference.double(), batches).parameters
    module = module.float()
    found = Stacked(module, images.cuda(), labels, CLASSES, precision="bf16", path=path).run(reference, batches)
    sessions = zip(reference, batches, strict=True)
    theirs = torch.stack([autocast(module, start, images, labels, rows) for start, rows in sessions])
    error, yardstick = (float((values.cpu().double() - exact).norm()) for values in (found.parameters, theirs))
    assert error < 1.5 * yardstick


def autocast(module: nn.Module, start: Tensor, images: Tensor, labels: Tensor, batches: Tensor) -> Tensor:
    """A session by torch's own bf16."""
    net = unflatten(deepcopy(module), start).cuda()
    for row in batches:
        with torch.autocast("cuda", torch.bfloat16):
            loss = functional.cross_entropy(net(images[row].cuda()), labels[row].cuda())
        for p, g in zip(net.parameters(), torch.autograd.grad(loss, list(net.parameters())), strict=True):
            p.data -= 0.05 * g
    return flatten(net)


@gpu
@pytest.mark.parametrize("name", ["two branches", "residuals", "resnet8-gn"])
@pytest.mark.parametrize("path", ["layers", "module"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_bits_on_the_device_do_not_depend_on_the_company(
    name: str, path: Any, precision: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, images, labels, reference, batches = on_device(name, 300, 3)
    trainer = Stacked(module, images.cuda(), labels, CLASSES, precision=precision, path=path)
    many = trainer.run(reference, batches).parameters
    assert torch.equal(trainer.run(reference.flip(0), batches.flip(0)).parameters.flip(0), many)
    for rows in (slice(0, 1), slice(117, 118), slice(199, 239), slice(299, 300)):
        assert torch.equal(trainer.run(reference[rows], batches[rows]).parameters, many[rows])
    broken = reference.clone()
    broken[5] = float("inf")
    others = torch.arange(len(reference), device="cuda") != 5
    assert torch.equal(trainer.run(broken, batches).parameters[others], many[others])
    monkeypatch.setattr("pipecycle.train.stack.MOST", 64)
    assert torch.equal(trainer.run(reference, batches).parameters, many)


if __name__ == "__main__":
    interpreted()
