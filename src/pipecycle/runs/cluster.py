"""Runs on the workers of a Ray cluster."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipecycle.errors import InputError, sentence
from pipecycle.runs.folders import finished
from pipecycle.runs.run import RunFolder
from pipecycle.runs.workers import GRACE, Progress, Shard, Tally, dealt, work
from pipecycle.stopping import Interrupted, listening


def execute_on_ray(
    folders: Sequence[RunFolder], *, address: str | None = None, save_every: float = 60.0, watch: Progress | None = None
) -> dict[str, str]:
    """`execute` on a Ray cluster: one task per shard, the folders on storage that all its machines see."""
    if address is None and "RAY_ADDRESS" not in os.environ:  # a cluster of this machine listens to it alone
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise InputError("--on ray: needs the extra, pip install 'pipecycle[ray]'") from None
    ray.init(address=address, ignore_reinit_error=True, include_dashboard=False, log_to_driver=False)
    resources = ray.cluster_resources()
    gpus, cpus = int(resources.get("GPU", 0)), int(resources.get("CPU", 1))
    shards = [[(str(Path(path).resolve()), text) for path, text in shard] for shard in dealt(folders, gpus or cpus)]
    shards = [shard for shard in shards if shard]
    needs, device = ({"num_gpus": 1}, "auto") if gpus else ({"num_cpus": 1}, "cpu")  # each task sees its GPU alone
    train = ray.remote(_ray_work).options(**needs)
    waiting = {train.remote(number, shard, save_every, device): number for number, shard in enumerate(shards)}
    tally = Tally()
    heard: list[int] = []
    try:
        with listening(lambda number, frame: heard.append(number)):
            while waiting and not heard:
                ready, _ = ray.wait(list(waiting), num_returns=1, timeout=0.5)
                for task in ready:
                    worker = waiting.pop(task)
                    try:
                        for event in ray.get(task):
                            tally.hear(*event)
                    except ray.exceptions.RayError as error:
                        tally.ended[worker] = sentence(error)
                if watch is not None:
                    watch(tally)
            for task in waiting:
                ray.cancel(task)
            if waiting:
                ray.wait(list(waiting), num_returns=len(waiting), timeout=GRACE)  # they are saving
    finally:
        ray.shutdown()
    if heard:
        raise Interrupted(heard[0])
    for number, shard in enumerate(shards):
        lost = (path for path, text in shard if path not in tally.failed and not finished(Path(path), text))
        tally.failed |= {path: tally.ended.get(number, "its Ray task ended without a result") for path in lost}
    return tally.failed


def _ray_work(number: int, shard: Shard, save_every: float, device: str) -> list[Any]:
    events: list[Any] = []
    work(number, shard, device, save_every, events.append)
    return [event for event in events if event[0] != "steps"] + [event for event in events if event[0] == "steps"][-1:]
