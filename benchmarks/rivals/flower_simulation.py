"""Flower's simulation with one worker from a Python program, the shortest way to its engine.

Two cores for the worker and two in all, which is Flower's default and makes one worker; it still trains with one
thread."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "flower_app"))

from flwr.simulation import run_simulation
from lenet_rounds.app import client, server

from rivals.work import CLIENTS


def main() -> None:
    run_simulation(
        server,
        client,
        num_supernodes=CLIENTS,
        backend_config={"client_resources": {"num_cpus": 2}, "init_args": {"num_cpus": 2, "log_to_driver": False}},
    )


if __name__ == "__main__":
    main()
