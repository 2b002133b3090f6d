"""Client-steps a second on one GPU: a plain loop, torch.func and our kernels, in one run.

    python benchmarks/gpu_sessions.py            all figures, one JSON object per line
    python benchmarks/gpu_sessions.py --tune     each kernel with several tile sizes
    python benchmarks/gpu_sessions.py --parts augment
                                                 lenet and cnn64, 800 sessions, with and without crop:4+flip

A client-step is one SGD step of one client on a batch of 15.  Every figure is also given as a multiple of the plain
loop and as a share of the rate of a large bf16 matrix product, both measured in the same run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from attrs import evolve
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from pipecycle.data import Augment, Views
from pipecycle.train.kernels_chain import layers
from pipecycle.train.loop import Loop
from pipecycle.train.models import build, flatten, unflatten
from pipecycle.train.sessions import LocalSGD
from pipecycle.train.stacked import Stacked
from pipecycle.train.views import Frame
from pipecycle.world.streams import streams

BATCH, STEPS, CLASSES, IMAGES, SHAPE = 15, 20, 10, 50_000, (3, 32, 32)

KERNELS = ("conv1", "conv2", "dense", "head", "back", "inputs2", "weights2", "weights1", "biases")


def candidates(kernel: str, precision: str) -> list[tuple[int, int, int]]:
    """Tiles worth trying: rows, warps, stages."""
    if kernel == "biases":
        return [(128, 4, 2)]
    if kernel in ("dense", "back", "head"):
        return [(size, warps, 3 if kernel == "dense" else 1) for size in (32, 64) for warps in (4, 8)]
    sizes = (32, 64, 128) if precision == "bf16" else (16, 32, 64)
    tiles = [(size, 4, stages) for size in sizes for stages in (2, 3, 4)]
    return [*tiles, (sizes[-1], 8, 2), (sizes[-1], 8, 3)]


def say(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def flops(module: nn.Module) -> float:
    """FLOP of one client-step: forward, gradients of weights, and gradients of inputs but for the first layer."""
    total, x, first = 0.0, torch.zeros(1, *SHAPE), True
    for layer in module:  # type: ignore[attr-defined]
        x = layer(x)
        if isinstance(layer, nn.Conv2d | nn.Linear):
            per = layer.weight.numel() * (x.shape[2] * x.shape[3] if x.ndim == 4 else 1)
            total += 2.0 * per * (2 if first else 3) * BATCH
            first = False
    return total


def wait() -> None:
    """For all that a GPU has been asked to do, if there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def seconds(work: Any, repeats: int = 5) -> float:
    """The median of a few timings, after one that is discarded."""
    times = []
    for _ in range(repeats + 1):
        wait()
        begin = time.perf_counter()
        work()
        wait()
        times.append(time.perf_counter() - begin)
    return statistics.median(times[1:])


def kernel_seconds(work: Any, repeats: int = 7) -> float:
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)]
    work()
    for begin, end in events:
        begin.record()
        work()
        end.record()
    torch.cuda.synchronize()
    return float(statistics.median(begin.elapsed_time(end) for begin, end in events)) / 1e3


def ceiling() -> float:
    """FLOP/s of a large bf16 product of random matrices."""
    if not torch.cuda.is_available():
        return float("inf")
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    return 2 * 8192.0**3 / (kernel_seconds(lambda: [a @ b for _ in range(10)]) / 10)


class Setting:
    """A model, data on the device and sessions."""

    def __init__(self, name: str, images: int = IMAGES) -> None:
        random = torch.Generator().manual_seed(0)
        self.name = name
        self.module = build(name, SHAPE, CLASSES, streams(0)("model").words(2))
        self.images = torch.randn(images, *SHAPE, generator=random)
        self.labels = torch.randint(CLASSES, (images,), generator=random)
        self.random = random

    def sessions(self, count: int, steps: int = STEPS) -> tuple[Tensor, Tensor]:
        scale = 1 + 0.01 * torch.rand(count, 1, generator=self.random)
        return flatten(self.module) * scale, torch.randint(
            len(self.labels), (count, steps, BATCH), generator=self.random
        )

    def stacked(self, precision: Any = "bf16", path: Any = "auto", **rest: Any) -> Stacked:
        return Stacked(
            self.module, self.images.cuda(), self.labels.cuda(), CLASSES, precision=precision, path=path, **rest
        )


def plain(setting: Setting) -> float:
    """One client at a time: a copy of the module, optim.SGD, indexing."""
    module, images, labels = deepcopy(setting.module).cuda(), setting.images.cuda(), setting.labels.cuda()
    batches = setting.sessions(3)[1].cuda()

    def work() -> None:
        for rows in batches:
            net = deepcopy(module)
            optimiser = torch.optim.SGD(net.parameters(), lr=0.05)
            for row in rows:
                optimiser.zero_grad()
                nn.functional.cross_entropy(net(images[row]), labels[row]).backward()
                optimiser.step()

    return batches.shape[0] * STEPS / seconds(work, 3)


def autocast(setting: Setting, reference: Tensor, batches: Tensor) -> Tensor:
    """Sessions with torch's own bf16 (autocast)."""
    images, labels, out = setting.images.cuda(), setting.labels.cuda(), []
    for start, rows in zip(reference, batches.cuda(), strict=True):
        net = unflatten(deepcopy(setting.module), start).cuda()
        optimiser = torch.optim.SGD(net.parameters(), lr=0.05)
        for row in rows:
            optimiser.zero_grad()
            with torch.autocast("cuda", torch.bfloat16):
                loss = nn.functional.cross_entropy(net(images[row]), labels[row])
            loss.backward()
            optimiser.step()
        out.append(flatten(net))
    return torch.stack(out)


def errors(names: list[str]) -> None:
    """Relative error of the update of a five-step session, against float64 on the CPU, for each precision.

    The images are noise, for which a flipped pooling window costs most.  Torch's own bf16 is shown for comparison."""
    for name in names:
        setting = Setting(name, 600)
        reference, batches = setting.sessions(12, 5)
        exact = (
            Loop(setting.module, setting.images.double(), setting.labels, CLASSES).run(reference, batches).parameters
        )
        theirs = autocast(setting, reference, batches).cpu().double()
        error = float((theirs - exact).norm() / (exact - reference).norm())
        say(check=name, precision="torch.autocast bf16", relative_error=error)
        for precision in ("fp32", "tf32", "bf16"):
            try:
                got = setting.stacked(precision).run(reference, batches).parameters.cpu().double()
                error = float((got - exact).norm() / (exact - reference).norm())
                say(check=name, precision=precision, relative_error=error, finite=bool(got.isfinite().all()))
            except Exception as problem:
                say(check=name, precision=precision, failed=str(problem)[:300])


def rates(name: str, counts: list[int], top: float, precisions: list[str]) -> None:
    setting = Setting(name)
    work = flops(setting.module)
    base = plain(setting)
    say(model=name, how="plain loop", client_steps_per_s=round(base), megaflop=round(work / 1e6, 1))

    def show(how: str, count: int, trainer: Stacked) -> None:
        reference, batches = (value.cuda() for value in setting.sessions(count))
        try:
            rate = count * STEPS / seconds(lambda: trainer.run(reference, batches), 3)
        except Exception as problem:
            say(model=name, how=how, sessions=count, failed=str(problem)[:300])
            return
        share = round(rate * work / top, 4)
        say(model=name, how=how, sessions=count, client_steps_per_s=round(rate), times_plain=round(rate / base, 1),
            tflop_per_s=round(rate * work / 1e12, 1), share_of_bf16_ceiling=share)  # fmt: skip

    for chunk in (64, 256):
        show(f"torch.func fp32, chunks of {chunk}", 256, setting.stacked("fp32", "module", chunk=chunk))
    for precision in precisions:
        trainer = setting.stacked(precision)
        for count in counts:
            show(f"{trainer.path} {precision}", count, trainer)


def augmented(name: str, count: int, precision: str, repeats: int = 9) -> None:
    """The same sessions alternately with and without augmentation, and the ratio of the medians."""
    setting = Setting(name)
    augment = Augment(4, flip=True)
    clients = torch.arange(count).numpy()
    views = torch.from_numpy(Views(augment, 0, STEPS, BATCH)(clients, clients)).cuda()
    reference, batches = (value.cuda() for value in setting.sessions(count))
    trainer = setting.stacked(precision, frame=Frame(augment.crop, (-1.99, -1.98, -1.71)))
    ways = {"none": None, str(augment): views}
    times: dict[str, list[float]] = {how: [] for how in ways}
    for repeat in range(repeats + 2):
        for how, seen in ways.items():
            torch.cuda.synchronize()
            begin = time.perf_counter()
            trainer.run(reference, batches, views=seen)
            torch.cuda.synchronize()
            if repeat >= 2:  # the first two compile and allocate
                times[how].append(time.perf_counter() - begin)
    rates = {how: count * STEPS / statistics.median(spent) for how, spent in times.items()}
    pairs = [plain / seen for plain, seen in zip(*times.values(), strict=True)]
    say(model=name, sessions=count, precision=precision, repeats=repeats,
        client_steps_per_s={how: round(rate) for how, rate in rates.items()},
        augmented_share=round(rates[str(augment)] / rates["none"], 4),
        lowest_pair=round(min(pairs), 4), highest_pair=round(max(pairs), 4))  # fmt: skip


def tune(name: str, count: int, precision: str, kernel: str | None, compile_only: bool) -> None:
    """Seconds of each kernel for each tile; the learning rate is 0, so that weights do not change."""
    setting = Setting(name, 600 if compile_only else 20_000)
    trainer = setting.stacked(precision)
    if compile_only:
        count = 16
    reference, batches = (value.cuda() for value in setting.sessions(count, 1))
    chain = layers(setting.module)
    assert chain is not None
    conv = trainer.conv
    conv.sgd = LocalSGD()
    if not compile_only:
        trainer.run(reference, batches, lr=torch.zeros(count))
    else:
        conv.reserve(count, 1, BATCH)
        conv.load(reference)
    for part in KERNELS:
        if kernel and part != kernel:
            continue
        best: tuple[float, Any] = (float("inf"), None)
        for tile in candidates(part, precision):
            if (
                part in ("dense", "back")
                and conv.plan.offsets[5] - conv.plan.offsets[4]
                < -(-conv.plan.inputs // tile[0]) * tile[0] * conv.plan.d1
            ):
                continue
            conv.tiles = evolve(conv.tiles, **({part: tile} if part != "biases" else {}))
            try:
                spent = kernel_seconds(
                    lambda part=part: conv.step(0, False, False, only=part), 1 if compile_only else 7
                )
            except Exception as problem:
                say(tune=name, kernel=part, tile=tile, failed=str(problem)[:160])
                continue
            if not compile_only:
                say(tune=name, kernel=part, tile=tile, us_per_client_step=round(spent / count * 1e6, 3))
            best = min(best, (spent, tile))
        if not compile_only and best[1]:
            say(tune=name, kernel=part, best=best[1], us_per_client_step=round(best[0] / count * 1e6, 3))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--models", default="lenet,cnn64")
    parser.add_argument("--precisions", default="bf16,tf32,fp32")
    parser.add_argument("--kernel")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--parts", default="all", choices=["all", "augment"])
    options = parser.parse_args()
    names, precisions = options.models.split(","), options.precisions.split(",")
    counts = {"lenet": [40, 800, 4000], "cnn64": [40, 800, 2000], "wide": [40, 800]}
    if options.compile:
        tune(names[0], 16, precisions[0], options.kernel, True)
        return
    if options.tune:
        command = [sys.executable, __file__, "--compile", "--precisions", precisions[0]]
        jobs = [[*command, "--models", name, "--kernel", kernel] for name in names for kernel in KERNELS]
        for job in [subprocess.Popen(job, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for job in jobs]:
            job.wait()
        for name in names:
            tune(name, {"lenet": 4000}.get(name, 1000), precisions[0], options.kernel, False)
        return
    if options.parts == "augment":
        say(device=torch.cuda.get_device_name(), torch=torch.__version__)
        for name in names:
            augmented(name, 800, precisions[0])
        return
    top = ceiling()
    say(device=torch.cuda.get_device_name(), torch=torch.__version__, bf16_ceiling_tflop_per_s=round(top / 1e12, 1))
    errors([*names, *(["wide"] if "wide" not in names else [])])
    for name in names:
        rates(name, counts[name], top, precisions)


if __name__ == "__main__":
    main()
