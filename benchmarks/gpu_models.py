"""Client-steps a second of many networks on one GPU, by every path, in one run of a few minutes.

    python benchmarks/gpu_models.py [--out FILE] [--only "NAME;NAME"] [--sessions 512] [--checks-only]

For each network: a plain loop, each path of `Stacked` (with crop:4+flip, bf16), the rate as a multiple of the plain
loop and as a share of a large bf16 product measured in the same run, the longest kernels of a step, the error of a
session against float64 on the CPU beside that of torch's own bf16, and whether bits depend on the company or on the
width of the stack.  One JSON object a line, all of them in FILE as a list.  Without a GPU it rehearses the paths of a
CPU, with few sessions.
"""

from __future__ import annotations

import argparse
import sys
import time
from copy import deepcopy
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from gpu_sessions import BATCH, CLASSES, SHAPE, ceiling, seconds, wait
from lines import Lines
from pipecycle.data import Augment, Views
from pipecycle.train import stack
from pipecycle.train.loop import Loop
from pipecycle.train.models import build, flatten, unflatten
from pipecycle.train.paths import choose
from pipecycle.train.stacked import Stacked
from pipecycle.train.views import Frame
from pipecycle.world.streams import streams

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, IMAGES = 10, 20_000 if DEVICE == "cuda" else 2_000
AUGMENT = Augment(4, flip=True)
FRAME = Frame(AUGMENT.crop, (-1.99, -1.98, -1.71))
LEAST = {"cnn64, dense 384/192": 60_000, "3x3 (32, 64)": 30_000, "3x3 (16, 32)": 30_000, "resnet8-gn": 10_000}
"""What issue 17 asks for."""
lines = Lines()
say = lines.say


class TwoBranches(nn.Module):
    """Convolutions of two sizes side by side, joined."""

    def __init__(self) -> None:
        super().__init__()
        self.near, self.far = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(3, 16, 5, padding=2)
        self.pool, self.both = nn.MaxPool2d(2), nn.Conv2d(32, 32, 3)
        self.hidden, self.last = nn.Linear(32 * 7 * 7, 128), nn.Linear(128, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        y = self.pool(torch.cat([torch.relu(self.near(x)), torch.relu(self.far(x))], 1))
        y = self.pool(torch.relu(self.both(y)))
        return self.last(torch.relu(self.hidden(y.view(y.size(0), -1))))  # type: ignore[no-any-return]


class Scaled(nn.Module):
    """A residual network that torch.fx follows but that has a factor there is no layer for: it takes `module`."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.inner = nn.Conv2d(3, 32, 3, 2, 1), nn.Conv2d(32, 32, 3, padding=1)
        self.norm, self.last = nn.GroupNorm(8, 32), nn.Linear(32 * 8 * 8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.stem(x))
        y = y + 0.5 * torch.relu(self.norm(self.inner(y)))
        return self.last(nn.functional.max_pool2d(y, 2).flatten(1))  # type: ignore[no-any-return]


def convolutions(kernel: int, first: int, second: int, pools: bool, *hidden: int) -> nn.Module:
    pool = [nn.MaxPool2d(2)] if pools else []
    layers = [nn.Conv2d(3, first, kernel), nn.ReLU(), *pool, nn.Conv2d(first, second, kernel), nn.ReLU()]
    module = nn.Sequential(*layers, nn.MaxPool2d(2), nn.Flatten())
    width = module(torch.zeros(1, *SHAPE)).shape[1]
    for size in hidden:
        module.extend([nn.Linear(width, size), nn.ReLU()])
        width = size
    return module.append(nn.Linear(width, CLASSES))


def networks() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    words = streams(0)("model").words(2)
    return {
        "cnn64, dense 384/192": convolutions(5, 64, 64, True, 384, 192),
        "3x3 (32, 64)": convolutions(3, 32, 64, False, 128, 64),
        "3x3 (16, 32)": convolutions(3, 16, 32, False, 120, 84),
        "resnet8-gn": build("resnet8-gn", SHAPE, CLASSES, words),
        "two branches": TwoBranches(),
        "scaled residual": Scaled(),
        "cnn64": build("cnn64", SHAPE, CLASSES, words),
        "lenet": build("lenet", SHAPE, CLASSES, words),
        "cnn64-gn": build("cnn64-gn", SHAPE, CLASSES, words),
        "mlp": build("mlp", SHAPE, CLASSES, words),
    }


def flops(module: nn.Module) -> float:
    """Of one client-step: three products a layer, but no gradient of the images."""
    total: list[float] = []

    def count(layer: Any, inputs: Any, output: Tensor) -> None:
        pixels = output.shape[2] * output.shape[3] if output.ndim == 4 else 1
        first = inputs[0][0].numel() == prod(SHAPE)
        total.append(2.0 * layer.weight.numel() * pixels * BATCH * (2 if first else 3))

    hooks = [m.register_forward_hook(count) for m in module.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    with torch.no_grad():
        module(torch.zeros(1, *SHAPE))
    for hook in hooks:
        hook.remove()
    return sum(total)


class Data:
    def __init__(self) -> None:
        self.random = torch.Generator().manual_seed(0)
        self.images = torch.randn(IMAGES, *SHAPE, generator=self.random)
        self.labels = torch.randint(CLASSES, (IMAGES,), generator=self.random)

    def sessions(self, module: nn.Module, count: int, steps: int, most: int = IMAGES) -> tuple[Tensor, Tensor, Tensor]:
        scale = 1 + 0.01 * torch.rand(count, 1, generator=self.random)
        batches = torch.randint(most, (count, steps, BATCH), generator=self.random)
        clients = torch.arange(count).numpy()
        return flatten(module) * scale, batches, torch.from_numpy(Views(AUGMENT, 0, steps, BATCH)(clients, clients))


def plain(module: nn.Module, data: Data) -> float:
    """One client at a time: a copy of the module, optim.SGD, indexing."""
    net, images, labels = deepcopy(module).to(DEVICE), data.images[:2000].to(DEVICE), data.labels[:2000].to(DEVICE)
    batches = torch.randint(2000, (1, 20, BATCH)).to(DEVICE)

    def work() -> None:
        for rows in batches:
            own = deepcopy(net)
            optimiser = torch.optim.SGD(own.parameters(), lr=0.05)
            for row in rows:
                optimiser.zero_grad()
                nn.functional.cross_entropy(own(images[row]), labels[row]).backward()
                optimiser.step()

    return batches.shape[1] / seconds(work, 3)


def autocast(module: nn.Module, data: Data, reference: Tensor, batches: Tensor) -> Tensor:
    """Sessions by torch's own bf16."""
    out = []
    for start, rows in zip(reference, batches, strict=True):
        net = unflatten(deepcopy(module), start).to(DEVICE)
        for row in rows:
            with torch.autocast(DEVICE, torch.bfloat16):
                loss = nn.functional.cross_entropy(net(data.images[row].to(DEVICE)), data.labels[row].to(DEVICE))
            grads = torch.autograd.grad(loss, list(net.parameters()))
            for parameter, grad in zip(net.parameters(), grads, strict=True):
                parameter.data -= 0.05 * grad
        out.append(flatten(net).cpu())
    return torch.stack(out).double()


def kernels(run: Any) -> list[str]:
    """Where the time of a step goes: name, share, microseconds a call."""
    from torch.profiler import ProfilerActivity, profile

    if DEVICE == "cpu":
        return []
    try:
        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            run()
            torch.cuda.synchronize()
    except RuntimeError as problem:  # a machine may not let itself be profiled
        return [str(problem)[:200]]
    events = sorted(seen.key_averages(), key=lambda event: -event.self_device_time_total)
    whole = sum(event.self_device_time_total for event in events) or 1.0
    return [
        f"{event.key[:60]} {event.self_device_time_total / whole:.0%} "
        f"{event.self_device_time_total / max(1, event.count):.0f}us x{event.count}"
        for event in events[:9]
    ]


def rates(name: str, module: nn.Module, data: Data, count: int, top: float) -> None:
    base, work = plain(module, data), flops(module)
    say(network=name, how="plain loop", client_steps_per_s=round(base), megaflop=round(work / 1e6, 1),
        parameters=len(flatten(module)))  # fmt: skip
    images, labels = data.images.to(DEVICE), data.labels.to(DEVICE)
    for path in choose(module, images).paths:
        trainer = Stacked(module, images, labels, CLASSES, precision="bf16", frame=FRAME, path=path)
        many = min(count, 256) if path == "module" else count
        reference, batches, views = (value.to(DEVICE) for value in data.sessions(module, many, STEPS))

        def run(trainer: Stacked = trainer, work: Any = (reference, batches, views)) -> None:
            trainer.run(work[0], work[1], views=work[2])

        try:
            begin = time.perf_counter()
            run()
            wait()
            first = time.perf_counter() - begin
            rate = many * STEPS / seconds(run, 3)
            facts: dict[str, Any] = {"first_s": round(first, 1)}
            if path in ("layers", "module"):
                facts["kernels"] = kernels(run)
            if path == "module":
                facts["captured"] = all(graph is not None for graph in trainer.any.graphs.values())
        except Exception as problem:
            say(network=name, how=path, failed=f"{type(problem).__name__}: {problem}"[:400])
            continue
        say(network=name, how=path, sessions=many, client_steps_per_s=round(rate), times_plain=round(rate / base, 1),
            share_of_bf16_ceiling=round(rate * work / top, 4),
            enough=None if name not in LEAST or path == "module" else rate >= LEAST[name], **facts)  # fmt: skip
        del trainer
        torch.cuda.empty_cache()


def checks(name: str, module: nn.Module, data: Data) -> None:
    """Errors of the update of five steps by precision, and bits beside others, alone and in narrower stacks."""
    images, labels = data.images[:600].to(DEVICE), data.labels[:600].to(DEVICE)
    reference, batches, _ = data.sessions(module, 6, 5, 600)
    exact = Loop(deepcopy(module).double(), data.images[:600].double(), data.labels[:600], CLASSES)
    wanted = exact.run(reference.double(), batches).parameters
    update = (wanted - reference).norm()
    theirs = float((autocast(module, data, reference, batches) - wanted).norm() / update)
    for path in choose(module, images).paths:
        errors = {"torch.autocast bf16": round(theirs, 5)}
        facts: dict[str, Any] = {}
        try:
            for precision in ("fp32", "tf32", "bf16"):
                trainer = Stacked(module, images, labels, CLASSES, precision=precision, frame=FRAME, path=path)
                got = trainer.run(reference, batches).parameters.cpu().double()
                errors[precision] = round(float((got - wanted).norm() / update), 6)
            start, rows, seen = data.sessions(module, 70, 2, 600)
            whole = trainer.run(start, rows, views=seen).parameters
            facts["alone"] = all(
                torch.equal(
                    trainer.run(start[i : i + 1], rows[i : i + 1], views=seen[i : i + 1]).parameters[0], whole[i]
                )
                for i in (0, 33, 69)
            )
            turned = trainer.run(start.flip(0), rows.flip(0), views=seen.flip(0)).parameters.flip(0)
            facts["other_places"] = bool(torch.equal(turned, whole))
            before, stack.MOST = stack.MOST, 32
            facts["narrower"] = bool(torch.equal(trainer.run(start, rows, views=seen).parameters, whole))
            stack.MOST = before
        except Exception as problem:
            facts["failed"] = f"{type(problem).__name__}: {problem}"[:400]
        say(check=name, how=path, relative_error=errors, same_bits=facts)
        torch.cuda.empty_cache()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--sessions", type=int, default=512)
    parser.add_argument("--checks-only", action="store_true")
    options = parser.parse_args()
    lines.file = options.out
    begin, data = time.perf_counter(), Data()
    top = ceiling()
    say(
        device=torch.cuda.get_device_name() if DEVICE == "cuda" else "cpu",
        torch=torch.__version__,
        bf16_tflop_per_s=round(top / 1e12, 1),
        batch=BATCH,
    )
    chosen = {name: net for name, net in networks().items() if not options.only or name in options.only.split(";")}
    for name, module in chosen.items():
        try:
            if not options.checks_only:
                rates(name, module, data, options.sessions, top)
            checks(name, module, data)
        except Exception as problem:
            say(network=name, failed=f"{type(problem).__name__}: {problem}"[:400])
        say(network=name, elapsed_s=round(time.perf_counter() - begin))


if __name__ == "__main__":
    main()
