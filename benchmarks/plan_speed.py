"""How fast schedules are planned, on one core, and how that compares with a plain Python loop and with simpy.

    python benchmarks/plan_speed.py [--quick] [--json FILE]

Prints four tables, which takes minutes; exit code 1 if a requirement is missed.  Times are wall clock, so other load
on the machine affects them: programs that are compared take turns, and medians are reported.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import platform
import resource
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from statistics import correlation, linear_regression, median
from time import perf_counter
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

ONE_CORE = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
DELTA = 0.5
PAPER_CLIENTS, PAPER_SLOTS, PAPER_SECONDS = 100, 15_000, 0.5
MILLION, MANY_CLIENTS = 1e6, 1_000_000
PIPECYCLE_SPEED, OTHER_SPEED, PIPECYCLE_GIB = 100.0, 20.0, 2.0  # million client-slots a second
GROUPS = {"groups": 10}
WORLDS = ("pipecycle", "naive", "simpy")

Row = dict[str, Any]
Say = Callable[[str], None]


@dataclass(frozen=True)
class Case:
    """What is planned; `name` is its name in the tables."""

    policy: str
    clients: int
    slots: int
    options: dict[str, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return " ".join([self.policy, *(f"{key}={value}" for key, value in self.options.items())])

    @property
    def size(self) -> int:
        return self.clients * self.slots


@dataclass(frozen=True)
class Measured:
    seconds: float
    peak: int
    """Bytes, of the whole process."""
    aggregations: int
    spent: int


def measure(case: Case, world: str = "pipecycle") -> Measured:
    """Plan once with the library, or with one of its two rivals."""
    if world == "pipecycle":
        plan = partial(ours, case.policy)
    else:
        plan = getattr(importlib.import_module(f"{world}_world"), case.policy)
    plan(10, 100, DELTA, **case.options)  # warm up: imports and first calls are not measured
    begin = perf_counter()
    aggregations, spent = plan(case.clients, case.slots, DELTA, **case.options)
    seconds = perf_counter() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return Measured(seconds, peak, aggregations, spent)


def ours(policy: str, clients: int, slots: int, delta: float, **options: int) -> tuple[int, int]:
    """Plans a whole schedule, and returns only the figures that the rivals return too."""
    import numpy as np

    from pipecycle import build, plan
    from pipecycle.world.energy import UNIT
    from pipecycle.world.lineage import Kind

    schedule = plan(build(policy, options), delta, clients, slots)
    return int(np.count_nonzero(schedule.versions.kind == Kind.AGGREGATION)), int(schedule.energy.spent[-1]) // UNIT


def fresh(case: Case, world: str = "pipecycle") -> Measured:
    """`measure` in a new process, to get its own peak memory.

    On Linux a process inherits the peak of its parent, so the parent must not measure anything large itself."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(measure, case, world).result()


def in_turns(what: str, repeats: int, jobs: Sequence[Callable[[], Measured]], say: Say) -> list[list[Measured]]:
    """Every job `repeats` times, in rounds over all jobs, so that a slow minute of the machine affects all equally."""
    found: list[list[Measured]] = [[] for _ in jobs]
    for turn in range(repeats):
        say(f"{what}: round {turn + 1} of {repeats}")
        for job, measured in zip(jobs, found, strict=True):
            measured.append(job())
    return found


def cases(clients: int, slots: int, *, defaults: bool) -> list[Case]:
    """Every policy, with ten groups if it has groups; with `defaults`, also with its default settings."""
    from pipecycle.policies import REGISTRY
    from pipecycle.policies.registry import parameters

    found = []
    for name, policy in REGISTRY.items():
        grouped = "groups" in parameters(policy)
        if defaults or not grouped:
            found.append(Case(name, clients, slots))
        if grouped:
            found.append(Case(name, clients, slots, GROUPS))
    return found


def paper_run(quick: bool, say: Say) -> list[Row]:
    """The paper's run for every policy."""
    every = cases(PAPER_CLIENTS, PAPER_SLOTS, defaults=True)
    found = in_turns("paper's run", 3 if quick else 5, [partial(measure, case) for case in every], say)
    rows = []
    for case, runs in zip(every, found, strict=True):
        times = [run.seconds for run in runs]
        rows.append(
            {
                "policy": case.name,
                "seconds": median(times),
                "fastest": min(times),
                "slowest": max(times),
                "needs": f"< {PAPER_SECONDS} s",
                "pass": median(times) < PAPER_SECONDS,
            }
        )
    return rows


def rivals(quick: bool, say: Say) -> list[Row]:
    """The library, the naive loop and simpy in the same worlds; the largest without simpy, which would take minutes."""
    settings = [
        (Case("pipecycle", PAPER_CLIENTS, PAPER_SLOTS), WORLDS),
        (Case("pipecycle", PAPER_CLIENTS, PAPER_SLOTS, GROUPS), WORLDS),
        (Case("fedavg", PAPER_CLIENTS, PAPER_SLOTS), WORLDS),
        (Case("pipecycle", 10_000, 200, GROUPS), WORLDS),
        (Case("pipecycle", 100_000, 200, GROUPS), WORLDS[:2]),
    ]
    runs = [(case, world) for case, worlds in settings for world in worlds]
    found = in_turns("rivals", 1 if quick else 3, [partial(fresh, *run) for run in runs], say)
    rows: list[Row] = []
    reference = math.nan
    for (case, world), measured in zip(runs, found, strict=True):
        seconds = median(run.seconds for run in measured)
        if world == "pipecycle":
            reference = seconds
        rows.append(
            {
                "policy": case.name,
                "clients": case.clients,
                "slots": case.slots,
                "planned by": "this library" if world == "pipecycle" else world,
                "seconds": seconds,
                "million client-slots/s": case.size / seconds / MILLION,
                "times ours": seconds / reference,
                "aggregations": measured[0].aggregations,
                "units spent": measured[0].spent,
            }
        )
    return rows


def million(quick: bool, say: Say) -> list[Row]:
    """A million clients, every policy, each in its own process."""
    rows = []
    for case in cases(MANY_CLIENTS, 100 if quick else 1_000, defaults=False):
        headline = case.policy == "pipecycle"
        repeats = 3 if headline and not quick else 1
        (runs,) = in_turns(f"a million clients, {case.name}", repeats, [partial(fresh, case)], say)
        speed = case.size / median(run.seconds for run in runs) / MILLION
        peak = max(run.peak for run in runs) / 2**30
        least = PIPECYCLE_SPEED if headline else OTHER_SPEED
        rows.append(
            {
                "policy": case.name,
                "slots": case.slots,
                "seconds": median(run.seconds for run in runs),
                "million client-slots/s": speed,
                "peak GiB": peak,
                "needs": f">= {least:.0f} M/s" + (f", < {PIPECYCLE_GIB:.0f} GiB" if headline else ""),
                "pass": speed >= least and (peak < PIPECYCLE_GIB or not headline),
            }
        )
    return rows


def growth(quick: bool, say: Say) -> tuple[list[Row], list[Row]]:
    """Time over N x slots, and fits of log time against log(N x slots)."""
    grid = [Case("pipecycle", clients, 200, GROUPS) for clients in (10_000, 30_000, 100_000, 300_000, 1_000_000)]
    wide = len(grid)
    grid += [Case("pipecycle", 100_000, slots, GROUPS) for slots in (250, 500, 1_000, 2_000)]
    found = in_turns("growth", 1 if quick else 3, [partial(fresh, case) for case in grid], say)
    seconds = [median(run.seconds for run in runs) for runs in found]
    x, y = [math.log(case.size) for case in grid], [math.log(value) for value in seconds]
    line = linear_regression(x, y)
    points = [
        {
            "clients": case.clients,
            "slots": case.slots,
            "seconds": value,
            "ns per client-slot": value / case.size * 1e9,
            "measured / fit": math.exp(y_value - line.intercept - line.slope * x_value),
        }
        for case, value, x_value, y_value in zip(grid, seconds, x, y, strict=True)
    ]
    parts = {"all": slice(None), "more clients": slice(wide), "more slots": slice(wide, None)}
    fits = [fit(name, [case.size for case in grid[part]], seconds[part]) for name, part in parts.items()]
    return points, fits


def fit(name: str, sizes: list[int], seconds: list[float]) -> Row:
    """A fit of log against log, and a straight line, which shows the fixed cost of a run."""
    x, y = [math.log(size) for size in sizes], [math.log(value) for value in seconds]
    line = linear_regression(sizes, seconds)
    return {
        "points": name,
        "slope": linear_regression(x, y).slope,
        "R^2": correlation(x, y) ** 2,
        "straight line: seconds at 0": line.intercept,
        "then ns per client-slot": line.slope * 1e9,
        "its R^2": correlation(sizes, seconds) ** 2,
    }


FORMATS = {
    "seconds": "{:.3f}",
    "fastest": "{:.3f}",
    "slowest": "{:.3f}",
    "million client-slots/s": "{:.2f}",
    "times ours": "{:.1f}",
    "peak GiB": "{:.2f}",
    "ns per client-slot": "{:.2f}",
    "measured / fit": "{:.2f}",
    "slope": "{:.3f}",
    "R^2": "{:.4f}",
    "straight line: seconds at 0": "{:.3f}",
    "then ns per client-slot": "{:.2f}",
    "its R^2": "{:.4f}",
}


def text(column: str, value: Any) -> str:
    if column == "pass":
        return "[green]PASS[/]" if value else "[bold red]FAIL[/]"
    return FORMATS.get(column, "{:,}" if isinstance(value, int) else "{}").format(value)


def show(console: Console, title: str, rows: Sequence[Row]) -> None:
    """A table: with boxes on a terminal, otherwise as Markdown."""
    table = Table(box=box.ROUNDED if console.is_terminal else box.MARKDOWN)
    for column, value in rows[0].items():
        table.add_column("" if column == "pass" else column, justify="left" if isinstance(value, str) else "right")
    for row in rows:
        table.add_row(*(text(column, value) for column, value in row.items()))
    console.print(f"\n[bold]{title}[/]", highlight=False)
    console.print(table)


def failures(rows: Iterable[Row]) -> int:
    return sum(row.get("pass") is False for row in rows)


def cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def machine() -> Row:
    return {
        "python": platform.python_version(),
        "numpy": version("numpy"),
        "simpy": version("simpy"),
        "cpu": cpu(),
        "cores": os.cpu_count(),
        "load average before": [round(load, 2) for load in os.getloadavg()],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer slots and repeats, about a minute")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to a file as well")
    args = parser.parse_args()
    if args.json and not args.json.parent.is_dir():
        parser.error(f"--json {args.json}: its folder does not exist")
    os.environ.update(ONE_CORE)  # before numpy is imported, here or in a child

    begin = perf_counter()
    console = Console(width=None if sys.stdout.isatty() else 160)

    def say(what: str) -> None:
        print(f"[{perf_counter() - begin:4.0f} s] {what}", file=sys.stderr, flush=True)

    result: dict[str, Any] = {"machine": machine(), "quick": args.quick}
    console.print(", ".join(f"{key} {value}" for key, value in result["machine"].items()), highlight=False)
    result["paper_run"] = paper_run(args.quick, say)
    show(console, f"The paper's run: {PAPER_CLIENTS} clients, {PAPER_SLOTS:,} slots", result["paper_run"])
    result["rivals"] = rivals(args.quick, say)
    show(console, "Against a naive Python loop and simpy", result["rivals"])
    result["million"] = million(args.quick, say)
    show(console, "A million clients", result["million"])
    result["growth"], result["fits"] = growth(args.quick, say)
    show(console, "Growth with clients x slots, pipecycle groups=10", result["growth"])
    show(console, "Fits of log seconds against log(clients x slots); slope 1 is linear", result["fits"])

    failed = failures(result["paper_run"] + result["million"])
    result["failed"] = failed
    result["wall seconds"] = perf_counter() - begin
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n")
    console.print(f"\n{'all requirements met' if not failed else f'{failed} requirements missed'}", highlight=False)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
