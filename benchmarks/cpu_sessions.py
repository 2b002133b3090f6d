"""Client-steps a second on one core: our executors against a plain PyTorch loop, in one run.

    python benchmarks/cpu_sessions.py [--repeats 5]

The executors and the plain loop take turns of a few sessions of 20 steps on batches of 15, timed by the process's CPU
time.  Figures are medians over the turns; ratios are taken turn by turn.  Prints one JSON object per line.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from pipecycle.train.models import build, flatten
from pipecycle.train.stacked import Stacked, executor
from pipecycle.world.streams import streams

BATCH, STEPS, CLASSES = 15, 20, 10


def plain(module: nn.Module, images: Tensor, labels: Tensor, batches: Tensor) -> None:
    """A copy of the module for each session, optim.SGD, contiguous tensors, indexing."""
    for rows in batches:
        net = deepcopy(module)
        optimiser = torch.optim.SGD(net.parameters(), lr=0.05)
        for row in rows:
            optimiser.zero_grad()
            nn.functional.cross_entropy(net(images[row]), labels[row]).backward()
            optimiser.step()


def users() -> nn.Module:
    """A dense module as a user might write it."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 100), nn.Tanh(), nn.Linear(100, 50), nn.ReLU(), nn.Linear(50, 10))


def compare(name: str, module: nn.Module, shape: tuple[int, ...], few: int, many: int, repeats: int) -> None:
    random = torch.Generator().manual_seed(0)
    images = torch.randn(1437, *shape, generator=random)
    labels = torch.randint(CLASSES, (1437,), generator=random)
    ours = executor(module, images, labels, CLASSES)
    start = flatten(module)

    def timed(work: Callable[[Tensor], object], sessions: int) -> float:
        batches = torch.randint(1437, (sessions, STEPS, BATCH), generator=random)
        begin = time.process_time()
        work(batches)
        return sessions * STEPS / (time.process_time() - begin)

    def run(batches: Tensor) -> None:
        ours.run(start.expand(len(batches), -1), batches)

    rates: dict[str, list[float]] = {"plain": [], "ours": []}
    for turn in range(repeats + 1):
        both = timed(lambda batches: plain(module, images, labels, batches), few), timed(run, many)
        if turn:
            rates["plain"].append(both[0])
            rates["ours"].append(both[1])
    ratios = [one / other for one, other in zip(rates["ours"], rates["plain"], strict=True)]
    facts = {
        "model": name,
        "path": ours.path if isinstance(ours, Stacked) else "loop",
        "plain_client_steps_per_s": round(statistics.median(rates["plain"])),
        "ours_client_steps_per_s": round(statistics.median(rates["ours"])),
        "ratio": round(statistics.median(ratios), 2),
        "lowest_ratio": round(min(ratios), 2),
    }
    print(json.dumps(facts), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    words = streams(0)("model").words(2)
    compare("lenet 3x32x32", build("lenet", (3, 32, 32), CLASSES, words), (3, 32, 32), 3, 3, repeats)
    compare("mlp 1x8x8", build("mlp", (1, 8, 8), CLASSES, words), (1, 8, 8), 15, 256, repeats)
    compare("a user's dense 64-100-50-10", users(), (1, 8, 8), 15, 128, repeats)


if __name__ == "__main__":
    main()
