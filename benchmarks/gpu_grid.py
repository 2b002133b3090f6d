"""Where the time of a whole grid of runs goes on one GPU: training, evaluation, the host, and stacks that are not full.

    python benchmarks/gpu_grid.py [--model cnn64] [--slots 900] [--augment crop:4+flip] [--out FILE]

The grid is the 54 runs of gpu_runs.py on random images.  A first run is timed: the device's time in stacks and in
evaluations by events, the host's by function, the widths of the stacks.  A second one is cut off after some stacks and
summarised by torch.profiler.  One JSON object a line.  `--device cpu --model mlp --slots 60` is a rehearsal without a
GPU: the same lines but the device's.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from gpu_runs import jobs, synthetic
from lines import Lines
from pipecycle import build, plan
from pipecycle.train import engine
from pipecycle.train.examiner import Examiner, Pending
from pipecycle.train.job import Job, Watch
from pipecycle.train.problems import problem
from pipecycle.train.stacked import Stacked

DELTAS = (0.3, 0.5, 1.0)
WATCHED: list[tuple[Any, str, str, bool]] = [
    (Stacked, "run", "train", True),
    (Examiner, "examine", "evaluate", True),
    (Pending, "read", "wait for scores", False),
    (engine.Band, "_pick", "pick sessions", False),
    (engine, "_inputs", "draw batches and views", False),
    (Job, "trained", "record and combine", True),
    (Job, "report", "report", False),
    (engine.Band, "_train", "prepare stacks", False),
]
"""Who does what under which name, and whether the device's time counts too."""
lines = Lines()
say = lines.say


class Clock:
    """Host seconds by name, without what is nested inside, and device seconds of some of them."""

    def __init__(self, on_gpu: bool) -> None:
        self.on_gpu = on_gpu
        self.host: dict[str, float] = defaultdict(float)
        self.events: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = defaultdict(list)
        self.inner: list[float] = []
        self.widths: list[int] = []
        self.undo: list[Callable[[], None]] = []

    def watch(self, owner: Any, method: str, name: str, on_device: bool) -> None:
        plain = getattr(owner, method)
        on_device = on_device and self.on_gpu

        def timed(*args: Any, **kwargs: Any) -> Any:
            if on_device:
                marks = (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
                marks[0].record()
            if name == "train":
                self.widths.append(len(args[1]))
            begin = time.perf_counter()
            self.inner.append(0.0)
            try:
                return plain(*args, **kwargs)
            finally:
                spent = time.perf_counter() - begin
                self.host[name] += spent - self.inner.pop()
                if self.inner:
                    self.inner[-1] += spent
                if on_device:
                    marks[1].record()
                    self.events[name].append(marks)

        setattr(owner, method, timed)
        self.undo.append(lambda: setattr(owner, method, plain))

    def device(self, name: str) -> float:
        return float(sum(begin.elapsed_time(end) for begin, end in self.events[name])) / 1e3


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="cnn64")
    parser.add_argument("--slots", type=int, default=900)
    parser.add_argument("--augment", default="crop:4+flip")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    lines.file = options.out
    on_gpu = options.device == "cuda"
    train: dict[str, Any] = {"device": options.device, "precision": "bf16" if on_gpu else "fp32"}
    learnt = problem(synthetic(), options.model, augment=options.augment)
    watch = Watch(every=150)
    engine.train_many([Job(plan(build("pipecycle"), 0.5, slots=200), learnt, watch)], **train)
    clock = Clock(on_gpu)
    for watched in WATCHED:
        clock.watch(*watched)
    grid = jobs(learnt, options.slots, DELTAS, watch)
    wait: Callable[[], None] = torch.cuda.synchronize if on_gpu else lambda: None
    wait()
    begin = time.perf_counter()
    engine.train_many(grid, **train)
    wait()
    whole = time.perf_counter() - begin
    for undo in clock.undo:
        undo()
    steps = sum(job.steps_done for job in grid)
    say(model=options.model, augment=options.augment, runs=len(grid), steps=steps, seconds=round(whole, 2),
        steps_per_second=round(steps / whole))  # fmt: skip
    busy = {name: round(clock.device(name) / whole, 3) for name in clock.events}
    say(share_of_time_on_device=busy, elsewhere_or_idle=round(1 - sum(busy.values()), 3))
    say(host_seconds={name: round(spent, 2) for name, spent in sorted(clock.host.items(), key=lambda x: -x[1])})
    widths = torch.tensor(clock.widths, dtype=torch.float64)
    rate = {f"sessions {low} to {high}": round(float(((widths >= low) & (widths < high)).double().mean()), 3)
            for low, high in ((1, 64), (64, 256), (256, 512), (512, 4097))}  # fmt: skip
    say(stacks=len(widths), mean_width=round(float(widths.mean())), share_of_stacks=rate,
        sessions_in_narrow_stacks=round(float(widths[widths < 256].sum() / widths.sum()), 3))  # fmt: skip
    if on_gpu:
        profiled(jobs(learnt, options.slots, DELTAS, watch), train)


class _Enough(Exception):
    pass


def profiled(grid: list[Job], train: dict[str, Any], stacks: int = 30) -> None:
    """The longest kernels of some stacks, and how much of their time any kernel ran."""
    from torch.profiler import ProfilerActivity, profile

    left = stacks

    def enough(_: Any) -> None:
        nonlocal left
        left -= 1
        if not left:
            raise _Enough

    try:
        with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as seen:
            begin = time.perf_counter()
            with suppress(_Enough):
                engine.train_many(grid, **train, tick=enough)
            torch.cuda.synchronize()
            whole = time.perf_counter() - begin
    except RuntimeError as problem:  # a machine may not let itself be profiled
        say(profile=str(problem)[:300])
        return
    events = seen.key_averages()
    kernels = sorted((event for event in events if event.self_device_time_total), key=_on_device)
    total = -sum(map(_on_device, kernels))
    say(profiled_stacks=stacks, seconds=round(whole, 2), device_busy=round(total / 1e6 / whole, 3))
    for event in kernels[:10]:
        say(kernel=event.key[:70], share=round(-_on_device(event) / total, 3), calls=event.count)
    hosts = sorted(events, key=lambda event: -event.self_cpu_time_total)
    say(
        host_operations=[
            f"{event.key[:40]} {event.self_cpu_time_total / 1e6:.2f}s x{event.count}" for event in hosts[:8]
        ]
    )


def _on_device(event: Any) -> float:
    return -float(event.self_device_time_total)


if __name__ == "__main__":
    main()
