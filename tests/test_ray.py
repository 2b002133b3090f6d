"""Shards on a Ray cluster of this machine; run by `make ray-test`, which installs Ray."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

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
def test_a_sweep_on_ray_gives_the_same_files(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    (tmp_path / "s.toml").write_text(FILE)
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    base = [sys.executable, "-m", "pipecycle", "sweep", "s.toml", "--json", "--out"]
    local = subprocess.run([*base, "local"], check=True, capture_output=True, text=True, cwd=tmp_path, env=environment)
    remote = subprocess.run(
        [*base, "remote", "--on", "ray"], check=True, capture_output=True, text=True, cwd=tmp_path, env=environment
    )
    assert json.loads(remote.stdout)["finished"] == json.loads(local.stdout)["finished"] == 4
    assert (tmp_path / "local" / "results.csv").read_bytes() == (tmp_path / "remote" / "results.csv").read_bytes()
