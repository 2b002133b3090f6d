"""How fast a million different clients are planned when links fail, beside a million equal ones with perfect links.

    python benchmarks/field_speed.py [--slots 1000]

Figures are million client-slots per second of CPU time, on one core, and both worlds are planned in turns in this
process.  Exit code 1 if the fleet of `million.toml` is planned at less than 50.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"

from pipecycle import Schedule, build, plan  # noqa: E402

CLIENTS, LEAST = 1_000_000, 50.0
FLEET = Path(__file__).with_name("million.toml")


def speed(make: Callable[[], Schedule], slots: int) -> tuple[float, Schedule]:
    before = _cpu()
    schedule = make()
    return CLIENTS * slots / (_cpu() - before) / 1e6, schedule


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    parser.add_argument("--slots", type=int, default=1000)
    slots: int = parser.parse_args().slots

    def equal() -> Schedule:
        return plan(build("pipecycle", {"groups": 10}), 0.5, CLIENTS, slots)

    def different() -> Schedule:
        return plan(build("pipecycle", {"groups": 10}), clients=CLIENTS, slots=slots, fleet=FLEET)

    usual, _ = speed(equal, slots)
    rough, schedule = speed(different, slots)
    print(schedule, schedule.status_counts())
    print(f"equal clients, perfect links: {usual:.0f} million client-slots per CPU second")
    print(f"different clients, links that fail: {rough:.0f} million ({rough / usual:.2f} of it), needs {LEAST:.0f}")
    sys.exit(rough < LEAST)


if __name__ == "__main__":
    main()
