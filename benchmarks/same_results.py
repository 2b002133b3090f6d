"""Whether two checkouts of pipecycle give the same results, byte by byte, on this machine.

    python benchmarks/same_results.py OLD NEW [--flower PYTHON] [--allow POLICY] [--only WORD] [--keep FOLDER]

OLD and NEW are folders with a checkout each, for example one made by `git worktree add /tmp/old COMMIT`.  Small runs on
the handwritten digits are made with both: every scheduler on both trainers (`mlp` is trained stacked on a CPU, `lenet`
in a loop, and the Python interface asks for either by name), random views of images, a run that is killed and resumed,
and a sweep.  With --flower, the Python of an environment that has Flower, every scheduler also runs live on the logical
clock, with all nodes in one process.

Compared are the digest of the schedule, config.toml, metrics.csv, model.safetensors and result.json (but for `source`,
which names the code).  Prints a table; exit code 1 if anything differs that --allow does not allow.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

FILES = ("config.toml", "metrics.csv", "model.safetensors", "result.json")
SMALL = ["--clients", "8", "--session", "10", "--slots", "150", "--delta", "0.6", "--set", "look.every=50"]
LONG = ["--clients", "20", "--session", "20", "--slots", "900", "--model", "lenet", "--save-every", "0.05"]
SWEEP = """trials = 2
[base.world]
clients = 8
session = 10
slots = 150
[base.data]
alpha = 0.3
[base.train]
momentum = 0.5
lr_decay = 0.9
[base.look]
every = 50
clients_every = 150
[matrix]
policy = ["pipecycle", "mifa", "flda"]
"""
TRAINERS = """
import sys
from pipecycle import build, plan
from pipecycle.train import problem, train
for model in ("mlp", "lenet"):
    for policy in ("pipecycle", "flda"):
        learnt = problem("digits", model, clients=8, alpha=0.3)
        schedule = plan(build(policy), 0.6, 8, 150, session=10, samples=learnt.samples(10))
        history = train(schedule, learnt, device="cpu", trainer=sys.argv[1])
        print(model, policy, schedule.digest(), history.csv())
"""
LIVE = """
import sys
from pathlib import Path
from pipecycle.schedule.schedule import Schedule
from tests.deploy.shared import in_process
settings = {"clients": 6, "session": 5, "slots": 60, "harvest": "always", "evaluate-every": 20, "policy": sys.argv[2]}
in_process(Path(sys.argv[1]), settings)
print(Schedule.load(Path(sys.argv[1]) / "schedule.npz").digest())
"""
PATIENCE = 600.0
"""Seconds after which a command that gives no sign is an error."""


@dataclass(frozen=True)
class Side:
    """A checkout, and where its results go."""

    checkout: Path
    home: Path

    def start(self, *command: str, python: str = sys.executable) -> subprocess.Popen[str]:
        paths = [self.checkout / "src", self.checkout / "experiments" / "src", self.checkout]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths)), "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(
            [python, *command],
            cwd=self.home,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def call(self, *command: str, python: str = sys.executable) -> str:
        """What a command prints; it has to end well."""
        with self.start(*command, python=python) as process:
            output, errors = process.communicate(timeout=PATIENCE)
        if process.returncode:
            raise RuntimeError(f"{self.checkout}: {' '.join(command[:6])} failed: {errors.strip()[-1000:]}")
        return output

    def pipecycle(self, *arguments: str) -> str:
        return self.call("-m", "pipecycle", *arguments)


Contents = dict[str, object]
"""What is compared, by name."""


@dataclass(frozen=True)
class Case:
    """Something that is done with both checkouts."""

    name: str
    policy: str | None
    """The scheduler that `--allow` would have to name, if there is one."""
    make: Callable[[Side], Contents]


def folder(path: Path) -> Contents:
    """The files of a run's folder and the digest of its schedule."""
    contents: Contents = {name: (path / name).read_bytes() for name in FILES}
    result = json.loads((path / "result.json").read_text())
    result.pop("source", None)
    return contents | {"result.json": result, "schedule": result.get("plan", {}).get("digest")}


def plan(policy: str) -> Case:
    def make(side: Side) -> Contents:
        return {"schedule": json.loads(side.pipecycle("plan", policy, "--slots", "2000", "--json"))["digest"]}

    return Case(f"plan {policy}", policy, make)


def run(policy: str, model: str, *options: str) -> Case:
    name = " ".join(["run", policy, model, *options])

    def make(side: Side) -> Contents:
        side.pipecycle("run", policy, "--model", model, *SMALL, *options, "--device", "cpu", "--out", name)
        return folder(side.home / name)

    return Case(name, policy, make)


def killed(policy: str) -> Case:
    name = f"killed and resumed {policy}"

    def make(side: Side) -> Contents:
        whole, command = f"{name}, whole", ("run", policy, *LONG, "--device", "cpu", "--out")
        side.pipecycle(*command, whole)
        with side.start("-m", "pipecycle", *command, name) as process:
            deadline = time.monotonic() + PATIENCE
            while not (side.home / name / "checkpoint" / "state.safetensors").exists():
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"{side.checkout}: {name} ended without a checkpoint, so it was not killed")
                time.sleep(0.005)
            process.send_signal(signal.SIGKILL)
        if (side.home / name / "result.json").exists():
            raise RuntimeError(f"{side.checkout}: {name} finished before it was killed")
        side.pipecycle(*command, name)
        contents = folder(side.home / name)
        if contents != folder(side.home / whole):
            raise RuntimeError(f"{side.checkout}: {name} ended differently than without being killed")
        return contents

    return Case(name, policy, make)


def sweep(side: Side) -> Contents:
    (side.home / "sweep.toml").write_text(SWEEP)
    side.pipecycle("sweep", "sweep.toml", "--out", "sweep", "--device", "cpu", "--workers", "1")
    rows = list(csv.DictReader(io.StringIO((side.home / "sweep" / "results.csv").read_text())))
    contents: Contents = {"results.csv": [{**row, "source": ""} for row in rows]}
    for path in sorted((side.home / "sweep").iterdir()):
        if path.is_dir():
            contents |= {f"{path.name}/{key}": value for key, value in folder(path).items()}
    return contents


def trainer(name: str) -> Case:
    return Case(f"trainer {name}", None, lambda side: {"history": side.call("-c", TRAINERS, name)})


def live(policy: str, python: str) -> Case:
    name = f"live {policy}"

    def make(side: Side) -> Contents:
        digest = side.call("-c", LIVE, str(side.home / name), policy, python=python)
        return folder(side.home / name) | {"schedule": digest}

    return Case(name, policy, make)


def cases(policies: list[str], flower: str | None) -> list[Case]:
    made = [plan(policy) for policy in policies]
    made += [run(policy, model) for policy in policies for model in ("mlp", "lenet")]
    made += [run("pipecycle", model, "--augment", "crop:1+flip", "--scale", "half") for model in ("mlp", "lenet")]
    made += [trainer("loop"), trainer("stacked"), killed("pipecycle"), killed("flda"), Case("sweep", None, sweep)]
    if flower is not None:
        made += [live(policy, flower) for policy in policies if policy != "isolated"]
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path, help="a checkout")
    parser.add_argument("new", type=Path, help="another")
    parser.add_argument("--flower", metavar="PYTHON", help="Python of an environment with Flower: live runs too")
    parser.add_argument("--allow", metavar="POLICY", action="append", default=[], help="may differ (repeatable)")
    parser.add_argument("--only", metavar="WORD", default="", help="cases whose name holds this")
    parser.add_argument("--keep", metavar="FOLDER", type=Path, help="keep the runs here [default: a temporary folder]")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        home = (options.keep or Path(temporary)).resolve()
        sides = []
        for word, checkout in (("old", options.old), ("new", options.new)):
            if not (checkout / "src" / "pipecycle").is_dir():
                parser.error(f"{checkout}: is no checkout of pipecycle, it has no src/pipecycle")
            (home / word).mkdir(parents=True, exist_ok=False)
            sides.append(Side(checkout.resolve(), home / word))
        return compare(sides, options.flower, options.allow, options.only)


def compare(sides: list[Side], flower: str | None, allow: list[str], only: str) -> int:
    old, new = (list(json.loads(side.pipecycle("policies", "--json"))) for side in sides)
    table = Table("case", "compared", "result", title="Results of two checkouts", title_justify="left")
    differing = 0
    for case in cases([policy for policy in old if policy in new], flower):
        if only not in case.name:
            continue
        try:
            with ThreadPoolExecutor(2) as pool:
                a, b = pool.map(case.make, sides)
            differences = sorted(key for key in a.keys() | b.keys() if a.get(key) != b.get(key))
            compared = f"{len(a)} items"
        except (RuntimeError, OSError, ValueError) as error:
            differences, compared = [str(error)], "-"
        allowed = bool(differences) and case.policy in allow
        differing += bool(differences) and not allowed
        word = "equal" if not differences else "allowed" if allowed else "DIFFERS"
        result = f"{word}: {', '.join(differences[:8])}" if differences else word
        table.add_row(case.name, compared, result)
        print(f"{case.name}: {result}", file=sys.stderr)
    console = Console(width=160)
    console.print(table)
    for policy in sorted({*old} ^ {*new}):
        console.print(f"{policy}: only one of the checkouts has it, so it is not compared.", highlight=False)
    console.print(f"{differing} of {table.row_count} cases differ.", highlight=False)
    return int(bool(differing))


if __name__ == "__main__":
    sys.exit(main())
