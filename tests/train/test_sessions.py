"""The executors against a naive session and against each other."""

from __future__ import annotations

import os
import subprocess
import sys
from copy import deepcopy
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from pipecycle.errors import InputError
from pipecycle.train.examiner import Examiner
from pipecycle.train.loop import Loop
from pipecycle.train.models import build, flatten, size, split, unflatten
from pipecycle.train.network_stack import NetworkStack
from pipecycle.train.paths import choose
from pipecycle.train.sessions import LocalSGD, Teachers, Trained
from pipecycle.train.stacked import Stacked, executor
from pipecycle.world.streams import streams
from tests.train.networks import NETWORKS, SHAPE
from tests.train.plain_layers import PlainStack

CLASSES = 10
OPTIONS = {
    "plain": LocalSGD(),
    "all": LocalSGD(0.03, momentum=0.9, weight_decay=0.01, proximal=0.1),
    "proximal": LocalSGD(0.05, proximal=0.5),
}


class Residual(nn.Module):
    """A user's module that is no chain of layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(64, 24), nn.Linear(24, 24), nn.Linear(24, CLASSES)
        self.norm, self.spare = nn.GroupNorm(4, 24), nn.Linear(3, 2)  # the output does not depend on the latter
        self.register_buffer("shift", torch.linspace(-1, 1, 24))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x.flatten(1)))
        return self.last(h + self.norm(self.inner(h + self.shift)))


class Grouped(torch.autograd.Function):
    """x @ w.T, of many sessions as one product with zeros between them, as cuDNN does it: infinity times zero is no
    number, so that one session can spoil those beside it."""

    @staticmethod
    def forward(x: Tensor, w: Tensor) -> Tensor:
        return x @ w.mT

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, w = ctx.saved_tensors
        return Grouped.apply(g, w.mT), Grouped.apply(g.mT, x.mT)

    @staticmethod
    def vmap(info: Any, dims: tuple[int, int], x: Tensor, w: Tensor) -> tuple[Tensor, int]:
        x, w = x.movedim(dims[0], 0), w.movedim(dims[1], 0)
        whole = torch.cat(list(x), 1) @ torch.block_diag(*w.mT)
        return torch.stack(whole.chunk(info.batch_size, 1)), 0


class Overflow(nn.Module):
    """A user's module whose products are such."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 24), nn.Linear(24, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(Grouped.apply(x.flatten(1), self.first.weight))
        return Grouped.apply(h, self.last.weight) + self.last.bias + self.first.bias.sum()


class Conditional(nn.Module):
    """A user's module that looks at its values, which torch.func does not follow."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(64, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.last(x.flatten(1))
        return z if float(z.detach().abs().max()) < 1e6 else z.clamp(-1e6, 1e6)


class Uncaptured(nn.Module):
    """A user's module that waits for the device, which no CUDA graph holds."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(64, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x.flatten(1) * torch.tensor([0.5], device=x.device))  # type: ignore[no-any-return]


def model(name: str) -> tuple[nn.Module, tuple[int, ...]]:
    words = streams(3)("model").words(2)
    if name == "mlp":
        return build("mlp", (1, 8, 8), CLASSES, words), (1, 8, 8)
    if name == "lenet":
        return build("lenet", (3, 16, 18), CLASSES, words), (3, 16, 18)
    if name.endswith("-gn"):
        return build(name, (3, 16, 16), CLASSES, words), (3, 16, 16)
    torch.manual_seed(0)
    if name in NETWORKS:
        return NETWORKS[name](), SHAPE
    if name == "residual":
        return Residual(), (1, 8, 8)
    if name == "norm first":
        return nn.Sequential(nn.GroupNorm(1, 1), nn.Flatten(), nn.Linear(64, CLASSES)), (1, 8, 8)
    if name in ("overflow", "conditional", "uncaptured"):
        return {"overflow": Overflow, "conditional": Conditional, "uncaptured": Uncaptured}[name](), (1, 8, 8)
    if name == "dense":
        layers = [nn.Flatten(), nn.Tanh(), nn.Linear(64, 20, bias=False), nn.Tanh(), nn.ReLU(), nn.Linear(20, 12)]
        return nn.Sequential(*layers, nn.Linear(12, CLASSES)), (1, 8, 8)
    raise KeyError(name)


class Case:
    """Sessions of a model on random data."""

    def __init__(self, name: str, sessions: int, steps: int = 20, dtype: torch.dtype = torch.float64) -> None:
        random = torch.Generator().manual_seed(sessions)
        self.module, shape = model(name)
        self.module = self.module.to(dtype)
        self.images = torch.randn(60, *shape, generator=random, dtype=dtype)
        self.labels = torch.randint(CLASSES, (60,), generator=random)
        scale = 1 + 0.1 * torch.rand(sessions, 1, generator=random, dtype=dtype)
        self.reference = flatten(self.module) * scale
        self.batches = torch.randint(60, (sessions, steps, 5), generator=random)
        logits = 3 * torch.randn(sessions, CLASSES, CLASSES, generator=random, dtype=dtype)
        self.teachers = Teachers(logits, torch.rand(sessions, CLASSES, generator=random) < 0.6, 0.3)
        self.lr = 0.02 + 0.05 * torch.rand(sessions, generator=random, dtype=dtype)

    def with_gaps(self) -> Case:
        self.batches[::2, :, 3:] = -1
        return self

    def make(self, kind: type, sgd: LocalSGD, **options: object) -> Loop | Stacked:
        return kind(self.module, self.images, self.labels, CLASSES, sgd, **options)

    def layers(self, sgd: LocalSGD, kind: type[NetworkStack] = PlainStack, **options: Any) -> Stacked:
        """A trainer of `layers`, which needs a GPU, made to take another stack."""
        trainer = Stacked(self.module, self.images, self.labels, CLASSES, sgd, path="module", **options)
        assert trainer.choice.network is not None
        trainer.path, trainer.layers = "layers", kind(trainer, trainer.choice.network)
        return trainer

    def naive(self, sgd: LocalSGD, teachers: Teachers | None, lr: Tensor | None) -> Trained:
        """As anyone would write it: a copy of the module, an optimiser, a loss."""
        sums = self.images.new_zeros(len(self.reference), CLASSES, CLASSES)
        counts = self.images.new_zeros(len(self.reference), CLASSES)
        out = []
        for m, start in enumerate(self.reference):
            module = unflatten(deepcopy(self.module), start)
            rate = sgd.lr if lr is None else float(lr[m])
            optimiser = torch.optim.SGD(module.parameters(), rate, sgd.momentum, weight_decay=sgd.weight_decay)
            begin = [p.detach().clone() for p in module.parameters()]
            for row in self.batches[m]:
                index = row[row >= 0]
                z, y = module(self.images[index]), self.labels[index]
                loss = functional.cross_entropy(z, y)
                if teachers is not None:
                    soft, valid = teachers.logits[m, y].softmax(1), teachers.valid[m, y]
                    each = functional.cross_entropy(z, soft, reduction="none")
                    loss = loss + teachers.weight * each[valid].sum() / len(y)
                pull = sum(((p - b) ** 2).sum() for p, b in zip(module.parameters(), begin, strict=True))
                optimiser.zero_grad()
                (loss + sgd.proximal / 2 * pull).backward()
                optimiser.step()
                sums[m].index_add_(0, y, z.detach())
                counts[m].index_add_(0, y, torch.ones(len(y), dtype=counts.dtype))
            out.append(flatten(module))
        return Trained(torch.stack(out), sums, counts)


def close(one: Trained, other: Trained, tolerance: float) -> bool:
    assert one.sums is not None
    assert other.sums is not None
    assert one.counts is not None
    assert other.counts is not None
    differences = [(one.parameters - other.parameters).abs().max(), (one.sums - other.sums).abs().max()]
    return torch.equal(one.counts, other.counts) and float(max(differences)) < tolerance


@pytest.mark.parametrize("option", list(OPTIONS))
@pytest.mark.parametrize("distil", [False, True])
@pytest.mark.parametrize("name", ["mlp", "lenet", "residual", "dense"])
def test_all_paths_agree_with_a_naive_session(name: str, option: str, distil: bool) -> None:
    case = Case(name, 3)
    sgd, teachers = OPTIONS[option], case.teachers if distil else None
    expected = case.naive(sgd, teachers, None)
    made = [case.make(Loop, sgd), case.make(Stacked, sgd, path="module", chunk=2), case.make(Stacked, sgd)]
    for trainer in made:
        assert close(trainer.run(case.reference, case.batches, teachers=teachers, collect=True), expected, 1e-9)


@pytest.mark.parametrize("name", ["residual", "overflow"])
def test_sessions_that_diverge_leave_those_beside_them_alone(name: str) -> None:
    case = Case(name, 9, steps=4)
    trainer = case.make(Stacked, LocalSGD(), path="module", chunk=4)
    sound = trainer.run(case.reference, case.batches, collect=True)
    begin, lr = case.reference.clone(), torch.full((9,), LocalSGD().lr, dtype=case.reference.dtype)
    begin[1] = torch.inf  # has diverged before
    lr[[3, 8]] = 1e300  # diverge now
    got = trainer.run(begin, case.batches, lr=lr, collect=True)
    assert not got.parameters[[1, 3, 8]].isfinite().all(1).any()
    others = [0, 2, 4, 5, 6, 7]
    assert got.sums is not None
    assert got.sums[1].isnan().all()
    for part in ("parameters", "sums", "counts"):
        assert torch.allclose(getattr(got, part)[others], getattr(sound, part)[others], rtol=0, atol=1e-9)
    assert torch.equal(got.counts, sound.counts)  # type: ignore[arg-type]
    alone = trainer.run(begin[3:4], case.batches[3:4], lr=lr[3:4]).parameters
    assert torch.equal(alone[0].nan_to_num(), got.parameters[3].nan_to_num())


@pytest.mark.parametrize("name", ["mlp", "lenet", "residual", "norm first"])
@pytest.mark.parametrize("option", ["plain", "all"])
def test_short_batches_and_a_rate_for_each_session(name: str, option: str) -> None:
    case = Case(name, 3, steps=4).with_gaps()
    expected = case.naive(OPTIONS[option], case.teachers, case.lr)
    for kind, options in [(Loop, {}), (Stacked, {"path": "module"}), (Stacked, {})]:
        trainer = case.make(kind, OPTIONS[option], **options)
        got = trainer.run(case.reference, case.batches, lr=case.lr, teachers=case.teachers, collect=True)
        assert close(got, expected, 1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["mlp", "lenet", "residual", "dense"])
def test_bits_do_not_depend_on_the_company(name: str, dtype: torch.dtype) -> None:
    case = Case(name, 70 if name != "lenet" else 19, steps=3, dtype=dtype)
    for trainer in [case.make(Loop, LocalSGD()), case.make(Stacked, LocalSGD())]:
        together = trainer.run(case.reference, case.batches, teachers=case.teachers, collect=True)
        for rows in (slice(4, 5), slice(7, 17), slice(len(case.reference) - 2, None)):
            few = Teachers(case.teachers.logits[rows], case.teachers.valid[rows], 0.3)
            alone = trainer.run(case.reference[rows], case.batches[rows], teachers=few, collect=True)
            assert torch.equal(alone.parameters, together.parameters[rows])
            assert alone.sums is not None
            assert together.sums is not None
            assert torch.equal(alone.sums, together.sums[rows])


def test_the_given_module_and_reference_are_left_alone() -> None:
    case = Case("residual", 2, steps=2)
    before, reference = flatten(case.module).clone(), case.reference.clone()
    torch.set_num_threads(2)
    for kind in (Loop, Stacked):
        case.make(kind, LocalSGD()).run(case.reference, case.batches)
    assert torch.equal(flatten(case.module), before)
    assert torch.equal(case.reference, reference)
    assert torch.get_num_threads() == 2


def test_no_sessions_and_no_steps() -> None:
    case = Case("mlp", 2, steps=2)
    for kind, options in [(Loop, {}), (Stacked, {}), (Stacked, {"path": "module"})]:
        trainer = case.make(kind, LocalSGD(), **options)
        assert trainer.run(case.reference[:0], case.batches[:0]).parameters.shape == (0, size(case.module))
        assert torch.equal(trainer.run(case.reference, case.batches[:, :0]).parameters, case.reference)


def test_divergence_is_carried_not_raised() -> None:
    case = Case("mlp", 2, steps=3)
    case.reference[0] = float("inf")
    for kind, options in [(Loop, {}), (Stacked, {}), (Stacked, {"path": "module"})]:
        trainer = case.make(kind, LocalSGD(), **options)
        out = trainer.run(case.reference, case.batches).parameters
        assert not out[0].isfinite().all()
        assert out[1].isfinite().all()
        assert not trainer.run(case.reference[:1], case.batches[:1]).parameters.isfinite().any()  # nobody is left


def test_the_path_is_chosen_by_the_module() -> None:
    for name, path in [("mlp", "dense"), ("dense", "dense"), ("lenet", "module"), ("residual", "module")]:
        case = Case(name, 1, steps=1)
        assert choose(case.module, case.images).path == path
        assert isinstance(executor(case.module, case.images, case.labels, CLASSES), Stacked) == (path == "dense")
    hooked = Case("mlp", 1, steps=1)
    hooked.module.register_forward_hook(lambda *_: None)
    assert choose(hooked.module, hooked.images).path == "module"


def test_what_torch_func_cannot_follow_is_trained_one_session_after_another() -> None:
    case = Case("conditional", 2, steps=2)
    choice = choose(case.module, case.images, gpu=True)
    assert choice.path is None
    assert str(choice).startswith("one session after another (torch.func cannot follow it: ")
    with pytest.raises(InputError, match="trainer = stacked: torch"):
        case.make(Stacked, LocalSGD())
    with patch.object(Tensor, "is_cuda", True):
        trainer = executor(case.module, case.images, case.labels, CLASSES)
    assert isinstance(trainer, Loop)


def test_bad_input_gets_one_sentence() -> None:
    case = Case("mlp", 2, steps=2)
    with pytest.raises(InputError, match="precision = fp8: needs one of fp32, tf32, bf16"):
        case.make(Stacked, LocalSGD(), precision="fp8")
    with pytest.raises(InputError, match="path = conv: this module on cpu takes dense or module"):
        case.make(Stacked, LocalSGD(), path="conv")
    for wrong in ({"lr": 0.0}, {"momentum": -1.0}, {"weight_decay": float("nan")}, {"proximal": True}):
        with pytest.raises(InputError, match=f"{next(iter(wrong))} = .*: needs a number"):
            LocalSGD(**wrong)


def interpreted() -> None:
    """The kernels, run by Triton's interpreter on the CPU, against the loop."""
    from pipecycle.train.kernels_chain import layers
    from pipecycle.train.kernels_conv import ConvStack
    from pipecycle.train.kernels_plan import fits
    from pipecycle.train.stack import StackedLogits

    random = torch.Generator().manual_seed(1)
    for shape, sgd, gaps in [((3, 16, 18), LocalSGD(), True), ((1, 17, 16), OPTIONS["all"], False)]:
        case = Case("mlp", 2, steps=2, dtype=torch.float32)
        sides = [((side - 4) // 2 - 4) // 2 for side in shape[1:]]
        module = nn.Sequential(
            *(nn.Conv2d(shape[0], 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(16 * sides[0] * sides[1], 40), nn.ReLU(), nn.Linear(40, 20), nn.ReLU()),
            nn.Linear(20, CLASSES),
        )
        images = torch.randn(60, *shape, generator=random)
        case.module, case.images, case.reference = module, images, flatten(module) * torch.tensor([[1.0], [1.1]])
        if gaps:
            case.with_gaps()
        expected = case.make(Loop, sgd).run(case.reference, case.batches, teachers=case.teachers, collect=True)
        trainer = case.make(Stacked, sgd, path="module")
        chain = layers(module)
        assert isinstance(trainer, Stacked)
        assert chain is not None
        assert fits(chain, images)
        trainer.path, trainer.conv = "conv", ConvStack(trainer, chain)
        got = trainer.run(case.reference, case.batches, teachers=case.teachers, collect=True)
        assert close(got, expected, 1e-5)
        # The same kernels look at models: images that fill no whole number of parts, and models in several portions.
        images = torch.randn(150, *shape, generator=random)
        rows = torch.cat([case.reference, got.parameters, case.reference[:1] * 0.9])
        wanted = torch.stack([applied(module, row, images) for row in rows])
        looker = Stacked(module, images, torch.zeros(150), CLASSES, sgd)
        looking = (ConvStack(looker, chain) for _ in range(2))
        assert float((StackedLogits(next(looking))(rows) - wanted).abs().max()) < 1e-4
        with patch("pipecycle.train.stack.MOST", 6):
            assert float((StackedLogits(next(looking))(rows) - wanted).abs().max()) < 1e-4


def applied(module: nn.Module, row: Tensor, images: Tensor) -> Tensor:
    weights = dict(zip([name for name, _ in module.named_parameters()], split(module, row), strict=True))
    with torch.no_grad():
        logits: Tensor = torch.func.functional_call(module, weights, (images,))
    return logits


@pytest.mark.triton
def test_kernels_in_the_interpreter() -> None:
    pytest.importorskip("triton")
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    command = [sys.executable, "-c", "from tests.train import test_sessions; test_sessions.interpreted()"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def gpu(test: Any) -> Any:
    skip = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
    return pytest.mark.gpu(skip(test))


def on_device(name: str, sessions: int, steps: int = 20) -> tuple[nn.Module, Tensor, Tensor, Tensor, Tensor]:
    """A module, images, labels, references and batches of 15."""
    random = torch.Generator().manual_seed(5)
    if name in ("lenet", "cnn64", "wide", "resnet8-gn"):
        module, shape = build(name, (3, 32, 32), CLASSES, streams(3)("model").words(2)), (3, 32, 32)
    else:
        module, shape = model(name)
    images = torch.randn(600, *shape, generator=random)
    labels = torch.randint(CLASSES, (600,), generator=random)
    reference = flatten(module) * (1 + 0.1 * torch.rand(sessions, 1, generator=random))
    return module, images, labels, reference, torch.randint(600, (sessions, steps, 15), generator=random)


@gpu
@pytest.mark.parametrize("name", ["mlp", "dense", "residual", "conditional", "uncaptured", "lenet", "cnn64", "wide"])
@pytest.mark.parametrize("option", ["plain", "all"])
def test_float32_on_the_device_is_the_cpus(name: str, option: str) -> None:
    module, images, labels, reference, batches = on_device(name, 3)
    sgd = OPTIONS[option]
    batches[1, :, 11:] = -1
    random = torch.Generator().manual_seed(6)
    logits = 3 * torch.randn(3, CLASSES, CLASSES, generator=random)
    teachers = None if option == "plain" else Teachers(logits, torch.rand(3, CLASSES, generator=random) < 0.6, 0.3)
    # In float64, because a float32 loop may itself fall on the wrong side of a tie in a pooling window.
    exact = Loop(module, images.double(), labels, CLASSES, sgd)
    expected = exact.run(reference, batches, teachers=teachers, collect=True)
    trainer = executor(module, images.cuda(), labels.cuda(), CLASSES, sgd)
    if isinstance(trainer, Stacked):
        own = {"mlp": "layers", "dense": "layers", "residual": "module", "uncaptured": "module"}
        assert trainer.path == own.get(name, "conv")
    else:
        assert name == "conditional"
    got = trainer.run(reference, batches, teachers=teachers, collect=True)
    got = Trained(got.parameters.cpu(), got.sums.cpu(), got.counts.cpu())  # type: ignore[union-attr]
    assert close(got, expected, 1e-3)


@gpu
@pytest.mark.parametrize("name", ["lenet", "cnn64", "wide"])
@pytest.mark.parametrize("precision", ["bf16", "tf32"])
def test_fewer_bits_are_no_worse_than_torchs(name: str, precision: Any) -> None:
    """A flipped ReLU or pooling window moves a gradient by per cents, so the yardstick is what torch's own products
    in as few bits do to the same sessions."""
    module, images, labels, reference, batches = on_device(name, 12, steps=5)
    exact = Loop(module, images.double(), labels, CLASSES).run(reference, batches).parameters
    got = Stacked(module, images.cuda(), labels, CLASSES, precision=precision).run(reference, batches).parameters
    if precision == "tf32":
        reduced = Stacked(module, images.cuda(), labels, CLASSES, precision="tf32", path="module")
        torchs = reduced.run(reference, batches).parameters
    else:
        nets = [unflatten(deepcopy(module), start).cuda() for start in reference]
        for net, rows in zip(nets, batches, strict=True):
            for row in rows:
                with torch.autocast("cuda", torch.bfloat16):
                    loss = functional.cross_entropy(net(images[row].cuda()), labels[row].cuda())
                for p, g in zip(net.parameters(), torch.autograd.grad(loss, list(net.parameters())), strict=True):
                    p.data -= 0.05 * g
        torchs = torch.stack([flatten(net) for net in nets])
    error, yardstick = (float((values.cpu() - exact).norm()) for values in (got, torchs))
    assert error < 1.5 * yardstick


@gpu
@pytest.mark.parametrize(
    ("name", "precision"),
    [("mlp", "fp32"), ("residual", "fp32"), ("lenet", "fp32"), ("lenet", "tf32"), ("lenet", "bf16"), ("cnn64", "bf16")],
)
def test_bits_on_the_device_do_not_depend_on_the_company(
    name: str, precision: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, images, labels, reference, batches = on_device(name, 800, steps=4)
    trainer = Stacked(module, images.cuda(), labels, CLASSES, precision=precision)
    many = trainer.run(reference, batches).parameters
    assert torch.equal(trainer.run(reference, batches).parameters, many)
    assert torch.equal(trainer.run(reference.flip(0), batches.flip(0)).parameters.flip(0), many)
    for rows in (slice(0, 1), slice(417, 418), slice(399, 439), slice(799, 800)):
        assert torch.equal(trainer.run(reference[rows], batches[rows]).parameters, many[rows])
    # A session that diverges takes no other with it, nor those that use its place later.
    broken = reference.clone()
    broken[5] = float("inf")
    others = torch.arange(len(reference)) != 5
    assert torch.equal(trainer.run(broken, batches).parameters[others.cuda()], many[others.cuda()])
    monkeypatch.setattr("pipecycle.train.stack.MOST", 64)
    assert torch.equal(trainer.run(reference, batches).parameters, many)


@gpu
def test_a_batch_too_large_for_the_kernels_is_trained_all_the_same() -> None:
    module, images, labels, reference, _ = on_device("lenet", 2)
    batches = torch.arange(2 * 2 * 80).reshape(2, 2, 80)
    expected = Loop(module, images.double(), labels, CLASSES).run(reference, batches).parameters
    got = Stacked(module, images.cuda(), labels, CLASSES).run(reference, batches).parameters.cpu()
    assert float((got - expected).abs().max()) < 1e-3


@gpu
@pytest.mark.parametrize("name", ["lenet", "cnn64", "wide", "resnet8-gn"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_models_looked_at_on_the_device(name: str, precision: Any) -> None:
    module, images, labels, reference, _ = on_device(name, 40)
    rows = reference * (1 + 0.2 * torch.randn(reference.shape, generator=torch.Generator().manual_seed(2)))
    rows[7] = float("inf")
    some = [0, 3, 7]
    exact = Examiner(deepcopy(module).double(), images.double(), labels, CLASSES).examine(rows[some].double()).read()
    found = Examiner(module.cuda(), images.cuda(), labels.cuda(), CLASSES, precision)
    assert found.together
    scores = found.examine(rows.cuda()).read()
    for got, wanted in zip([scores[index] for index in some], exact, strict=True):
        assert got.finite == wanted.finite
        assert got.accuracy == pytest.approx(wanted.accuracy, abs=0.2 if precision == "fp32" else 2.0)
        assert got.loss == pytest.approx(wanted.loss, rel=1e-4 if precision == "fp32" else 1e-2, nan_ok=True)
    # Neither the company nor the place matters.
    assert found.examine(rows[3:4].cuda()).read()[0] == scores[3]
    assert found.examine(rows[[30, 3, 8]].cuda()).read() == [scores[30], scores[3], scores[8]]
