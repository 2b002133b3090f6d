"""The processes of a sweep: how they start, and how they are asked to stop."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from multiprocessing import resource_tracker, spawn

import pytest
import torch

from pipecycle.runs.workers import Tally, Worker
from tests.commands import PATIENCE

ENDLESS = [("a folder", "x" * 1_000_000)]
"""A shard that no pipe holds: whoever writes it waits for who reads it."""


def ended(worker: Worker) -> str:
    tally, deadline = Tally(), time.monotonic() + PATIENCE
    while worker.heard(tally):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return tally.ended[worker.number]


def test_a_worker_that_dies_as_it_starts_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    resource_tracker.ensure_running()
    monkeypatch.setattr(spawn, "_python_exe", os.fsencode(shutil.which("false") or ""))
    workers: list[Worker] = []
    starting = threading.Thread(target=lambda: workers.append(Worker(0, "cpu", ENDLESS, 60.0)), daemon=True)
    starting.start()
    starting.join(PATIENCE / 10)
    assert [ended(worker) for worker in workers] == ["its process ended with code 1"]


def test_a_worker_that_is_still_starting_is_not_asked_but_ended() -> None:
    worker = Worker(0, "cpu", ENDLESS, 60.0)
    worker.ask(signal.SIGINT)
    assert ended(worker) == "its process was killed by signal 9"


@pytest.mark.skipif(torch.version.cuda is not None or torch.version.hip is not None, reason="torch knows GPUs")
def test_no_torch_is_imported_to_find_no_gpu() -> None:
    code = (
        "import sys; from pipecycle.runs.workers import share; share([], 'auto', None); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("False\n", "")
