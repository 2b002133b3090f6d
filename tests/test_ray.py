"""Shards on a Ray cluster of this machine; run by `make ray-test`, which installs Ray."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

FILE = """
trials = 2
[base.world]
clients = 10
slots = 200
session = 5
[matrix]
policy = ["pipecycle", "fedavg"]
"""


@pytest.mark.ray
def test_a_sweep_on_ray_gives_the_same_files(tmp_path: Path, on_loopback: Callable[[Any, float], set[str]]) -> None:
    pytest.importorskip("ray")
    psutil = pytest.importorskip("psutil")
    (tmp_path / "s.toml").write_text(FILE)
    base = [sys.executable, "-m", "pipecycle", "sweep", "s.toml", "--json", "--out"]
    local = subprocess.run([*base, "local"], check=True, capture_output=True, text=True, cwd=tmp_path)
    with (tmp_path / "said").open("w") as said:
        remote = psutil.Popen([*base, "remote", "--on", "ray"], cwd=tmp_path, stdout=said)
    assert {"gcs_server", "raylet"} <= on_loopback(remote, 120)
    assert remote.returncode == 0
    assert json.loads((tmp_path / "said").read_text())["finished"] == json.loads(local.stdout)["finished"] == 4
    assert (tmp_path / "local" / "results.csv").read_bytes() == (tmp_path / "remote" / "results.csv").read_bytes()
