"""Whole runs on a GPU: client-steps per second from schedule to history, and what precision costs in accuracy.

    python benchmarks/gpu_runs.py [--data cifar10] [--minutes 5] [--json FILE]

Needs a CUDA device.  Without CIFAR-10 in the cache, `--data synthetic` measures speed on random images of its shape.
Every figure covers a whole run without planning, from the first stack to the last evaluation.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pipecycle import build, plan
from pipecycle.data import Task, load
from pipecycle.train.engine import train_many
from pipecycle.train.job import Job, Watch
from pipecycle.train.problems import Problem, problem

POLICIES: list[tuple[str, dict[str, Any]]] = [
    *(
        (name, {"groups": groups})
        for name in ("pipecycle", "pipecycle+", "cycp", "fedseq", "fedbacys")
        for groups in (2, 5, 10)
    ),
    ("fedavg", {}),
    ("mifa", {}),
    ("flda", {}),
]


def synthetic() -> Task:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(12_000, 3, 32, 32)).astype(np.float32)
    y = rng.integers(0, 10, 12_000)
    return Task(x[:10_000], y[:10_000], x[10_000:], y[10_000:], name="synthetic")


def jobs(learnt: Problem, slots: int, deltas: tuple[float, ...], watch: Watch) -> list[Job]:
    out = []
    for name, options in POLICIES:
        for delta in deltas:
            schedule = plan(build(name, options), delta, clients=len(learnt.split), slots=slots)
            out.append(Job(schedule, learnt, watch, name=f"{name} {options.get('groups', '')} {delta}"))
    return out


def timed(work: list[Job], precision: str) -> dict[str, Any]:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    train_many(work, device="cuda", precision=precision)  # type: ignore[arg-type]
    torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    steps = sum(job.steps_done for job in work)
    return {
        "jobs": len(work),
        "steps": steps,
        "seconds": round(seconds, 2),
        "steps_per_second": round(steps / seconds),
        "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2),
        "accuracy": [round(job.history.final.accuracy, 1) for job in work][:4],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="synthetic", help="synthetic or the name of a data set")
    parser.add_argument("--parts", default="single,lenet,cnn64,accuracy", help="what to measure (default: all parts)")
    parser.add_argument("--augment", help="random views of the images, such as crop:4+flip")
    parser.add_argument("--slots", type=int, default=1500, help="horizon of the stacked runs")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    task = synthetic() if options.data == "synthetic" else load(options.data)
    found: list[dict[str, Any]] = []

    def tell(what: str, figures: dict[str, Any]) -> None:
        found.append({"what": what, **figures})
        print(json.dumps(found[-1]), flush=True)
        if options.json:
            options.json.write_text(json.dumps(found, indent=1))

    if not torch.cuda.is_available():
        sys.exit("gpu_runs.py: needs a CUDA device")
    print(torch.cuda.get_device_name(), torch.__version__, flush=True)
    watch = Watch(every=150)
    for model in ("lenet", "cnn64"):
        learnt = problem(task, model, augment=options.augment)
        timed([Job(plan(build("pipecycle"), 0.5, slots=200), learnt, watch)], "bf16")  # compile kernels
        if "single" in options.parts:
            for precision in ("tf32", "bf16"):
                single = [Job(plan(build("pipecycle"), 0.5, slots=3000), learnt, watch)]
                tell(f"{model} one run, pipecycle G=2, delta 0.5, {precision}", timed(single, precision))
        if model in options.parts:
            for precision in ("tf32", "bf16"):
                stack = jobs(learnt, options.slots, (0.3, 0.5, 1.0), watch)
                tell(f"{model} {len(stack)} runs stacked, {precision}", timed(stack, precision))
    if "accuracy" in options.parts:
        learnt = problem(task, "cnn64", augment=options.augment)
        for precision in ("bf16", "tf32", "fp32"):
            job = Job(plan(build("pipecycle"), 0.5, budget=5e5), learnt, Watch(every=150, budget=5e5))
            figures = timed([job], precision)
            history = job.history
            reached = {level: history.metrics.energy_to(level) for level in (50, 55, 60, 65)}
            tell(
                f"cnn64 pipecycle G=2, delta 0.5, IID, 5e5 units, {precision}",
                {**figures, "at_budget": history.at_budget.accuracy, "best": history.final.best, "energy_to": reached},
            )


if __name__ == "__main__":
    main()
