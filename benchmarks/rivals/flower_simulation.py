"""Flower's simulation with one worker, called from a Python program, the most direct way to its engine.

The worker gets two cores (Flower's default) of two, so there is one worker; it still trains with one thread."""

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
