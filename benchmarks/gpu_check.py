"""All that a GPU can tell about this project in ten minutes: its tests, the speed of networks, the speed of a grid.

    python benchmarks/gpu_check.py [--out gpu-check] [--minutes 9.5] [--parts tests,models,grid]

Each part is a process of its own with a time of its own; one that fails or takes too long stops no other.  In the
folder are the output of each part (tests.log, models.log, grid.log), its results as they come (tests.xml, models.json,
grid.json), and summary.md, a table of all of it beside the figures in experiments/results/gpu-speed.  Needs torch with
CUDA, Triton, pytest and what this project depends on; with pytest-xdist the tests run side by side.  Without a GPU it
is a rehearsal: the tests are skipped and the rest is small.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
BEFORE = ROOT / "experiments" / "results" / "gpu-speed"
MOST = {"tests": 0.5, "models": 0.75, "grid": 1.0}
"""The share of the time that is left which a part may take."""


def commands(out: Path, on_gpu: bool) -> dict[str, list[str]]:
    def program(name: str, *options: str) -> list[str]:
        return [f"benchmarks/gpu_{name}.py", "--out", str(out / f"{name}.json"), *options]

    tests = ["-m", "pytest", "tests/train", "-m", "gpu", "--tb=short", f"--junitxml={out / 'tests.xml'}"]
    if find_spec("xdist"):
        tests += ["-n", str(min(6, os.cpu_count() or 1)), "--dist", "worksteal"]
    small = [] if on_gpu else ["--device", "cpu", "--model", "mlp", "--slots", "60"]
    few = [] if on_gpu else ["--only", "lenet;mlp", "--sessions", "2"]
    return {"tests": tests, "models": program("models", *few), "grid": program("grid", *small)}


def read(path: Path) -> list[dict[str, Any]]:
    with suppress(OSError, ValueError):
        found: list[dict[str, Any]] = json.loads(path.read_text())
        return found
    return []


def tests(out: Path) -> Iterator[str]:
    """How many passed, and which did not."""
    with suppress(OSError, ET.ParseError):
        cases = list(ET.parse(out / "tests.xml").iter("testcase"))
        bad = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
        skipped = sum(case.find("skipped") is not None for case in cases)
        yield f"tests: {len(cases) - len(bad) - skipped} passed, {len(bad)} failed, {skipped} skipped"
        yield from (f"- FAILED {case.get('classname')}::{case.get('name')}" for case in bad)
        return
    log = out / "tests.log"
    if log.exists():
        yield "tests: no results; " + " ".join(log.read_text().split())[-300:]


def models(out: Path) -> Iterator[str]:
    """Client-steps a second of every network and path, beside those before, and whether it computes what it should."""
    lines = read(out / "models.json")
    before = {(line.get("network"), line.get("how")): line for line in read(BEFORE / "models.json")}
    checks = {(line["check"], line["how"]): line for line in lines if "check" in line}
    if lines:
        yield f"{lines[0].get('device')}, torch {lines[0].get('torch')}"
        yield "| network | path | client-steps/s | before | ratio | error fp32, bf16 (torch's) | same bits |"
        yield "| --- | --- | --- | --- | --- | --- | --- |"
    for line in lines:
        name, how, rate = line.get("network"), line.get("how"), line.get("client_steps_per_s")
        if "failed" in line:
            yield f"| {name or line.get('check')} | {how} | FAILED {line['failed'][:150]} | | | | |"
        if rate is None:
            continue
        old = before.get((name, how), {}).get("client_steps_per_s")
        seen = checks.get((name, how), {})
        errors, bits = seen.get("relative_error", {}), seen.get("same_bits", {})
        error = f"{errors.get('fp32')}, {errors.get('bf16')} ({errors.get('torch.autocast bf16')})" if errors else ""
        same = "" if not bits else "FAILED " + bits["failed"] if "failed" in bits else str(all(bits.values()))
        ratio = f"{rate / old:.2f}" if old else ""
        yield f"| {name} | {how} | {rate:,} | {'' if old is None else f'{old:,}'} | {ratio} | {error} | {same} |"


def grid(out: Path) -> Iterator[str]:
    old: dict[str, Any] = next(iter(read(BEFORE / "grid.json")), {})
    for line in read(out / "grid.json")[:1]:
        yield (
            f"grid: {line['runs']} runs of {line['model']}, {line['steps']:,} client-steps in {line['seconds']} s, "
            f"{line['steps_per_second']:,} a second (before: {old.get('steps_per_second', 0):,})"
        )


def summary(out: Path, ended: dict[str, str]) -> str:
    text = [f"{part}: {how}" for part, how in ended.items()]
    for part, show in (("tests", tests), ("models", models), ("grid", grid)):
        if part in ended:
            text += ["", *show(out)]
    whole = "\n".join(text) + "\n"
    (out / "summary.md").write_text(whole)
    return whole


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("gpu-check"))
    parser.add_argument("--minutes", type=float, default=9.5)
    parser.add_argument("--parts", default="tests,models,grid")
    options = parser.parse_args()
    out: Path = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    known = commands(out, torch.cuda.is_available())
    wanted = options.parts.split(",")
    if not set(wanted) <= set(known):
        sys.exit(f"gpu_check.py: parts = {options.parts}: needs some of {','.join(known)}")
    paths = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    deadline = time.monotonic() + 60 * options.minutes
    ended: dict[str, str] = {}
    for part in wanted:
        for old in out.glob(f"{part}.*"):
            old.unlink()
        begin = time.monotonic()
        last = part == wanted[-1]
        most = max(0.0, deadline - begin) * (1.0 if last else MOST[part])
        with (out / f"{part}.log").open("w") as log:
            process = subprocess.Popen(
                [sys.executable, *known[part]],
                cwd=ROOT,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                while process.poll() is None and time.monotonic() - begin < most:
                    ended[part] = f"running for {time.monotonic() - begin:.0f} s"
                    summary(out, ended)
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(5.0)
            finally:
                late = process.poll() is None
                with suppress(ProcessLookupError):  # and all that it started: the next part needs the GPU
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        how = "stopped, its time was up" if late else f"ended with code {process.returncode}"
        ended[part] = f"{how}, after {time.monotonic() - begin:.0f} s"
        print(f"{part}: {ended[part]}", flush=True)
    print(summary(out, ended), flush=True)


if __name__ == "__main__":
    main()
