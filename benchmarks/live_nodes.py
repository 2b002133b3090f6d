"""Where the time and the memory of a live run go: real Flower nodes on this machine, each with processes of its own.

    python benchmarks/live_nodes.py [--nodes 50] [--tls] [--out nodes.json]
    python benchmarks/live_nodes.py --within 1000

All nodes share this machine's cores, so sessions take as long as on a crowded machine.  CPU seconds, and memory per
node, are what they would be elsewhere.  It refuses to start, or stops, where less than 6 GiB of memory would be left.
Needs the extra `flower`.

`--within` has the nodes within this process, on a grid without a network, and shows what our own part of
the server takes with more nodes than a machine holds.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from attrs import define, field

from pipecycle.commands.live_app import write_app
from pipecycle.commands.live_up import _watch
from pipecycle.deploy import RunSettings
from pipecycle.deploy.local.federation import Federation
from pipecycle.deploy.local.processes import members
from pipecycle.deploy.local.progress import Tail

LEFT = 6 * 2**30
"""Bytes of memory that must stay free."""
TRIED = 2
"""Nodes whose memory is measured before the others start."""
GROUPS, SESSION, SLOTS = 2, 4, 12
PARTS = Path(__file__).with_name("live_parts")
MIB = 2**20


def settings(nodes: int, out: Path) -> dict[str, Any]:
    """Digits, groups of a tenth of the nodes; nobody is lost because this machine is slow."""
    policy = {"groups": GROUPS, "group_size": max(1, nodes // 10)}
    return {
        "clients": nodes,
        "policy-settings": json.dumps(policy),
        "harvest": "always",
        "initial": 20.0,
        "session": SESSION,
        "slots": SLOTS,
        "evaluate-every": 4,
        "deadline": 900.0,
        "roll-call": 900.0,
        "out": str(out),
    }


class TooFull(Exception):
    """Memory is running out."""


@define
class Usage:
    """CPU seconds and memory of a federation's processes, by program."""

    federation: Federation
    cpu: dict[psutil.Process, tuple[str, float]] = field(factory=dict)
    least: int = field(factory=lambda: psutil.virtual_memory().available)

    def look(self) -> None:
        self.least = min(self.least, psutil.virtual_memory().available)
        if self.least < LEFT:
            raise TooFull(
                f"{self.least / 2**30:.1f} GiB of memory are free, {LEFT / 2**30:.0f} must stay free: stopped"
            )
        for process in members(self.federation.folder):
            try:
                times = process.cpu_times()
                name = self.cpu[process][0] if process in self.cpu else _program(process)
                self.cpu[process] = (name, times.user + times.system)
            except psutil.Error:
                continue

    def by_program(self) -> dict[str, float]:
        total: dict[str, float] = {}
        for name, seconds in self.cpu.values():
            total[name] = total.get(name, 0.0) + seconds
        return total

    def memory(self) -> dict[str, list[int]]:
        """Bytes of each process by program; without pages that it shares with others."""
        sizes: dict[str, list[int]] = {}
        for process in members(self.federation.folder):
            try:
                sizes.setdefault(_program(process), []).append(process.memory_full_info().uss)
            except psutil.Error:
                continue
        return sizes


def _program(process: psutil.Process) -> str:
    words = process.cmdline()
    return next((Path(word).name for word in words[:3] if Path(word).name.startswith(("flower-", "flwr"))), "other")


def wait_for(condition: Any, usage: Usage, seconds: float = 1800.0) -> float:
    """Seconds until it holds."""
    began = time.monotonic()
    while not condition():
        usage.look()
        if time.monotonic() > began + seconds or usage.federation.dead():
            raise SystemExit(f"ended too early: {usage.federation.dead()}")
        time.sleep(0.5)
    return time.monotonic() - began


def measure(home: Path, nodes: int, *, tls: bool) -> dict[str, Any]:
    write_app(home / "app", RunSettings())
    (package,) = (path.parent for path in (home / "app").glob("*/server_app.py"))
    for module in PARTS.glob("*_app.py"):
        shutil.copy(module, package)
    figures: dict[str, Any] = {"nodes": nodes, "tls": tls, "load": os.getloadavg()[0], "cores": os.cpu_count()}
    before = time.monotonic()
    with Federation(home / "federation", tls, nodes) as federation:
        figures["superlink started"] = time.monotonic() - before
        usage = Usage(federation)

        def start(numbers: Iterable[int]) -> None:
            for node in numbers:
                folder = home / "nodes" / str(node)
                folder.mkdir(parents=True)
                federation.start_node(node, {"partition-id": node, "ledger": str(folder / "ledger.json")})
                usage.look()

        before = time.monotonic()
        start(range(min(TRIED, nodes)))
        wait_for(lambda: all(map(federation.online, federation.nodes)), usage)
        wait_for(lambda: len(usage.memory().get("flower-superexec", [])) > min(TRIED, nodes), usage)
        sizes = usage.memory()
        each = sum(max(sizes[name]) for name in ("flower-supernode", "flower-superexec"))
        if psutil.virtual_memory().available - each * (nodes - TRIED) < LEFT:
            raise TooFull(f"{nodes} nodes of {each / MIB:.0f} MiB: less than {LEFT / 2**30:.0f} GiB would stay free")
        start(range(min(TRIED, nodes), nodes))
        figures["node processes started"] = time.monotonic() - before
        figures["nodes online after"] = wait_for(lambda: all(map(federation.online, federation.nodes)), usage)
        time.sleep(5)  # SuperExecs follow their SuperNodes
        figures["memory"] = {name: [len(each), median(each)] for name, each in usage.memory().items()}
        figures["start CPU"] = usage.by_program()
        idle, since = usage.by_program(), time.monotonic()
        time.sleep(20)
        usage.look()
        rest = time.monotonic() - since
        figures["idle CPU"] = {name: (all_ - idle.get(name, 0.0)) / rest for name, all_ in usage.by_program().items()}
        before = time.time()
        federation.submit(home / "app", settings(nodes, home / "run"))
        tail = Tail(home / "run" / "trace.jsonl")
        figures["submitted"] = [before, time.time()]
        ended = _watch(federation, tail, lambda progress, federation: usage.look())
        if not ended.completed:
            raise SystemExit(f"{ended.verdict}: {ended.why}")
        figures["CPU"], figures["least memory"] = usage.by_program(), usage.least
    figures["server"] = json.loads((home / "run" / "times.json").read_text())
    times = [json.loads(line) for path in home.glob("nodes/*/times.jsonl") for line in path.read_text().splitlines()]
    figures["messages"] = [{**figures["server"]["messages"].get(one["message"], {}), **one} for one in times]
    events = [json.loads(line) for line in tail.path.read_text().splitlines()]
    figures["events"] = Counter(event["event"] for event in events)
    figures["trained"] = [event["seconds"] for event in events if event["event"] == "reply"]
    figures["accuracy"] = tail.progress.best
    return figures


def within(nodes: int, home: Path) -> None:
    """CPU seconds of each part of the server; what nodes and the grid do is within its messages."""
    sys.path.insert(0, str(PARTS.parents[1]))
    from live_parts.server_app import Parts, measure
    from pipecycle.deploy import client_app
    from pipecycle.deploy.server.driver import Driver
    from pipecycle.deploy.server.model import own
    from tests.deploy.local_grid import LocalGrid, VirtualTime

    run = RunSettings.of({**settings(nodes, home / "run"), "slots": 5 * SLOTS})
    grid = LocalGrid(client_app(timer=VirtualTime()), [{"partition-id": node} for node in range(nodes)], run.flat())
    parts = Parts("model and data loaded")
    driver = Driver(grid, run, own(run), grid.timer)
    parts.enter("everything else")
    measure(driver, grid, parts)
    schedule = driver.run()
    parts.enter("end")
    print(f"{nodes} nodes within this process: {schedule}; calls, CPU seconds\n")
    for part, (calls, _, cpu) in sorted(parts.spent.items(), key=lambda row: -row[1][2]):
        print(f"  {part:32} {calls:6.0f} {cpu:8.2f}")


def show(figures: dict[str, Any]) -> None:
    server, nodes = figures["server"], figures["nodes"]
    print(f"{nodes} nodes, {'TLS and keys' if figures['tls'] else 'no TLS'}, {figures['cores']} cores, ", end="")
    print(f"load before {figures['load']:.1f}; events: {dict(figures['events'])}; accuracy {figures['accuracy']:.1f} %")
    print("\nMemory at rest, MiB (without what processes share)\n")
    for name, (count, size) in sorted(figures["memory"].items()):
        print(f"  {name:20} {count:3} x {size / MIB:6.0f}")
    peaks = [one["peak"] * 1024 / MIB for one in figures["messages"]]
    print(f"  {'a message, at most':20}       {max(peaks):6.0f}   (resident); free at worst: ", end="")
    print(f"{figures['least memory'] / 2**30:.1f} GiB")

    print("\nWall time of the run, seconds\n")
    submitted, accepted = figures["submitted"]
    calls = [one for one in server["messages"].values() if one["what"] == "roll call" and "pulled" in one]
    called = max(one["pulled"] for one in calls[:nodes])
    for name, seconds in (
        ("SuperLink started", figures["superlink started"]),
        ("nodes started and online", figures["node processes started"] + figures["nodes online after"]),
        ("run submitted", accepted - submitted),
        ("until the ServerApp runs", server["began"] - accepted),
        ("first roll call", called - server["began"]),
        (f"{SLOTS} slots, {len(figures['trained'])} sessions", server["ended"] - called),
    ):
        print(f"  {name:40} {seconds:8.1f}")

    print("\nA message, seconds (median, longest)\n")
    for what in ("roll call", "session"):
        mine = [one for one in figures["messages"] if one.get("what") == what and "pulled" in one]
        print(f"  {what}: {len(mine)}")
        for name, spans in (
            ("until its process starts (Flower)", [one["process"] - one["pushed"] for one in mine]),
            ("Python and Flower start", [one["began"] - one["process"] for one in mine]),
            ("our part (imports, data, training)", [one["ended"] - one["began"] for one in mine]),
            ("until the server has the reply", [one["pulled"] - one["ended"] for one in mine]),
            ("in all", [one["pulled"] - one["pushed"] for one in mine]),
            ("CPU of its process", [one["cpu"] for one in mine]),
        ):
            print(f"    {name:38} {median(spans):8.2f} {max(spans):8.2f}")

    print("\nThe ServerApp, calls, seconds, CPU seconds\n")
    for part, (calls_, seconds, cpu) in sorted(server["parts"].items(), key=lambda row: -row[1][1]):
        print(f"  {part:32} {calls_:6.0f} {seconds:8.2f} {cpu:8.2f}")
    print(f"  {'its process':32}        {server['ended'] - server['began']:8.2f} {server['cpu']:8.2f}")

    print("\nCPU seconds by program: to start, in all; and cores in use while nothing happens\n")
    for name, seconds in sorted(figures["CPU"].items(), key=lambda row: -row[1]):
        start, idle = figures["start CPU"].get(name, 0.0), figures["idle CPU"].get(name, 0.0)
        print(f"  {name:20} {start:8.1f} {seconds:8.1f} {idle:8.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    parser.add_argument("--nodes", type=int, default=50)
    parser.add_argument("--tls", action="store_true")
    parser.add_argument("--within", type=int, metavar="NODES")
    parser.add_argument("--out", type=Path, help="a file for all figures, as JSON")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        if given.within:
            return within(given.within, Path(home))
        try:
            figures = measure(Path(home), given.nodes, tls=given.tls)
        except TooFull as error:
            sys.exit(str(error))
    show(figures)
    if given.out:
        given.out.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
