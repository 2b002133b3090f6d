"""lenet sessions on one core: this library against a plain PyTorch loop, pfl-research and Flower's simulation.

    make bench-rivals
    python benchmarks/cpu_rivals.py [--repeats 3] [--json FILE]     if the rivals are installed

All contenders do the same work: 10 rounds of FedAvg over 20 clients, that is 200 sessions of 20 SGD steps on batches
of 15 CIFAR-shaped images, with one torch thread, the same initial weights and the same batches in the same order.  The
resulting models are compared.

`warm`          each contender has its own process.  They take turns round by round while the others wait, so that
                other load on the machine affects all equally.  The first round is left out.  A ratio is the median
                over the ratios of consecutive rounds.
`command line`  new processes, one after the other: `pipecycle run` from its start to its exit, which includes writing
                a run folder, against `flwr run` and a program that calls Flower's simulation, both only from their
                start to the end of the last session.  Each runs between two runs of ours and is compared with their
                mean.  The program has no requirement: Flower has deprecated that call, and it skips the work of a
                command.

Flower has one worker; its own processes may use the other cores.  Exit code 1 if a requirement is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
from dataclasses import dataclass
from importlib.metadata import version
from math import isnan, nan
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn.functional import cross_entropy

from rivals.prepare import prepare
from rivals.processes import Process, swept
from rivals.work import CLIENTS, ROUNDS, STEPS, fill, lenet

AGREE = 0.06
"""How far a model may end from the plain loop's, as a share of the way that training went.  Rounding makes up to 0.05
(a maximum of a pooling falls to another pixel, and 200 steps follow); leaving out the last round makes 0.36."""

BUSY = 0.9
"""Our command is one thread that never waits: below this share of a core, its time was taken by others."""


@dataclass(frozen=True)
class Contender:
    title: str
    command: tuple[str, ...]
    turns: bool = True


@dataclass(frozen=True)
class Target:
    """We have to be `needs` times as fast as the rival; NaN if there is no requirement."""

    rival: str
    needs: float

    @property
    def warm(self) -> bool:
        return CONTENDERS[self.rival].turns


@dataclass(frozen=True)
class Outcome:
    rounds: list[float]
    """Seconds of each but the first; none where only the whole is measured."""
    seconds: float
    """From the command to the end."""
    model: Tensor
    cpu: float = nan
    """Seconds of CPU, where that is known."""

    @property
    def speed(self) -> float:
        return CLIENTS * STEPS / median(self.rounds) if self.rounds else nan


APP = str(Path(__file__).resolve().parent / "rivals" / "flower_app")
ONE_WORKER = "client-resources-num-cpus=2 init-args-num-cpus=2 init-args-log-to-driver=false"
CONTENDERS = {
    "ours": Contender("pipecycle", ("python", "-m", "rivals.ours")),
    "plain": Contender("plain PyTorch loop", ("python", "-m", "rivals.plain")),
    "pfl": Contender("pfl-research", ("python", "-m", "rivals.pfl_research")),
    "flower": Contender("Flower, one worker", ("python", "-m", "rivals.flower_simulation")),
    "flwr": Contender(
        "Flower, flwr run",
        ("flwr", "run", APP, "local", "--stream", "--federation-config", f"num-supernodes={CLIENTS} {ONE_WORKER}"),
        turns=False,
    ),
    "program": Contender("Flower, run_simulation", ("python", "-m", "rivals.flower_simulation"), turns=False),
    "run": Contender(
        "pipecycle run",
        ("pipecycle", "run", "--config", "config.toml", "--out", "run", "--device", "cpu", "--json"),
        turns=False,
    ),
}
TARGETS = (Target("plain", 1.2), Target("pfl", 1.2), Target("flower", 1.4), Target("flwr", 2.0), Target("program", nan))


def in_turns(folder: Path) -> dict[str, Outcome]:
    """Contenders that take turns: each starts and does its first round alone, then they alternate."""
    with swept(folder):
        processes = []
        for name, contender in CONTENDERS.items():
            if contender.turns:
                (folder / f"{name}.npz").unlink(missing_ok=True)
                processes.append(Process(name, contender.command, folder, turns=True))
                processes[-1].wait_round()
        for turn in range(1, ROUNDS):
            for process in processes if turn % 2 else reversed(processes):
                process.go()
                process.wait_round()
        for process in processes:
            process.wait()
            process.close()
    return {process.name: outcome(folder / f"{process.name}.npz", process.started) for process in processes}


def alone(name: str, folder: Path) -> Outcome:
    """One contender, from its start to its end."""
    shutil.rmtree(folder / "run", ignore_errors=True)
    result = folder / "flower.npz"
    result.unlink(missing_ok=True)
    with swept(folder):
        process = Process(name, CONTENDERS[name].command, folder, turns=False)
        ended, cpu = process.wait()
    if name == "run":
        return Outcome([], ended - process.started, saved_model(folder / "run" / "model.safetensors"), cpu)
    if not result.exists():  # Flower's command exits with 0 even if the run failed
        process.fail("did not finish")
    return outcome(result, process.started)


def bracketed(folder: Path) -> dict[str, Outcome]:
    """The rivals' commands, each between two runs of ours, which are kept as `before NAME` and `after NAME`."""
    ours = alone("run", folder)
    found = {"run": ours}
    for name in ("flwr", "program"):
        found[f"before {name}"] = ours
        found[name] = alone(name, folder)
        found[f"after {name}"] = ours = alone("run", folder)
    return found


def outcome(path: Path, started: float) -> Outcome:
    with np.load(path) as found:
        begins, ends, model = found["begins"], found["ends"], torch.from_numpy(found["model"])
    rounds = ends[1:] - begins
    return Outcome(rounds.tolist(), float(ends[0] - started + rounds.sum()), model)


def saved_model(path: Path) -> Tensor:
    from safetensors.torch import load_file

    weights = load_file(path)
    return torch.cat([weights[name].reshape(-1) for name in lenet().state_dict()])


def judge(target: Target, repeats: list[dict[str, Outcome]]) -> dict[str, Any]:
    """How many times as fast as the rival we were (median)."""
    name = target.rival
    if target.warm:
        pairs = [zip(repeat["ours"].rounds, repeat[name].rounds, strict=True) for repeat in repeats]
        ratios = [its / ours for pair in pairs for ours, its in pair]
    else:
        ours = [(repeat[f"before {name}"].seconds + repeat[f"after {name}"].seconds) / 2 for repeat in repeats]
        ratios = [repeat[name].seconds / mean for repeat, mean in zip(repeats, ours, strict=True)]
    low, high = np.quantile(ratios, (0.25, 0.75))
    return {
        "measure": "warm" if target.warm else "command line",
        "we": CONTENDERS["ours" if target.warm else "run"].title,
        "rival": CONTENDERS[name].title,
        "ratio": median(ratios),
        "quartiles": f"{low:.2f}-{high:.2f}",
        "pairs": len(ratios),
        "needs": target.needs,
        "pass": None if isnan(target.needs) else median(ratios) >= target.needs,
    }


def check(folder: Path, repeats: list[dict[str, Outcome]]) -> list[dict[str, Any]]:
    """All contenders have learnt, and have learnt the same."""
    with np.load(folder / "data.npz") as data:
        x, y = torch.from_numpy(data["x_test"]), torch.from_numpy(data["y_test"])

    @torch.no_grad()
    def loss(model: Tensor) -> float:
        return float(cross_entropy(fill(lenet(), model)(x), y))

    initial = torch.from_numpy(np.load(folder / "initial.npy"))
    before, reference = loss(initial), repeats[0]["plain"].model
    way = float((reference - initial).norm())
    rows = []
    for name, contender in CONTENDERS.items():
        found = [repeat[name] for repeat in repeats]
        off = max(float((one.model - reference).norm()) / way for one in found)
        after = median(loss(one.model) for one in found)
        rows.append(
            {
                "contender": contender.title,
                "steps/s warm": median(one.speed for one in found),
                "seconds in all": median(one.seconds for one in found),
                "loss before": before,
                "loss after": after,
                "off by": off,
                "pass": off <= AGREE and after < 0.75 * before,
            }
        )
    return rows


FORMATS = {
    "ratio": "{:.2f}",
    "needs": ">= {:.1f}",
    "steps/s warm": "{:.0f}",
    "seconds in all": "{:.1f}",
    "loss before": "{:.3f}",
    "loss after": "{:.3f}",
    "off by": "{:.1%}",
}


def show(console: Console, title: str, rows: list[dict[str, Any]]) -> None:
    table = Table(box=box.ROUNDED if console.is_terminal else box.MARKDOWN)
    for column, value in rows[0].items():
        table.add_column("" if column == "pass" else column, justify="left" if isinstance(value, str) else "right")
    for row in rows:
        table.add_row(*(text(column, value) for column, value in row.items()))
    console.print(f"\n[bold]{title}[/]", highlight=False)
    console.print(table)


def text(column: str, value: Any) -> str:
    if column == "pass":
        return "" if value is None else "[green]PASS[/]" if value else "[bold red]FAIL[/]"
    return "" if isinstance(value, float) and isnan(value) else FORMATS.get(column, "{}").format(value)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=3, help="starts of each command (3, about three minutes each)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to a file as well")
    args = parser.parse_args()
    if args.repeats < 1:
        parser.error(f"--repeats {args.repeats}: needs at least 1")
    if args.json and not args.json.parent.is_dir():
        parser.error(f"--json {args.json}: its folder does not exist")
    torch.set_num_threads(1)
    console = Console(width=None if sys.stdout.isatty() else 160)
    packages = ("torch", "numpy", "pfl", "flwr", "ray")
    machine = {"python": platform.python_version()} | {name: version(name) for name in packages}
    console.print(", ".join(f"{key} {value}" for key, value in machine.items()), highlight=False)
    repeats: list[dict[str, Outcome]] = []
    with tempfile.TemporaryDirectory(prefix="rivals-", ignore_cleanup_errors=True) as temporary:
        folder = Path(temporary)
        prepare(folder)
        for repeat in range(args.repeats):
            found = in_turns(folder) | bracketed(folder)
            repeats.append(found)
            seconds = ", ".join(f"{name} {one.seconds:.1f} s" for name, one in found.items())
            print(f"{repeat + 1}: {seconds}; load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
        same = check(folder, repeats)
    ratios = [judge(target, repeats) for target in TARGETS]
    show(console, f"{CLIENTS * ROUNDS} sessions of lenet, medians of {args.repeats}; do they all learn the same?", same)
    show(console, "How many times as fast as the rival", ratios)
    share = min(one.cpu / one.seconds for repeat in repeats for one in repeat.values() if not isnan(one.cpu))
    if share < BUSY:
        console.print(f"\nThe machine was busy: a pipecycle run got only {share:.0%} of a core.", highlight=False)
    failed = sum(row["pass"] is not None and not row["pass"] for row in same + ratios)
    if args.json:
        figures = {"machine": machine, "same": same, "ratios": ratios, "least share of a core": share}
        args.json.write_text(json.dumps(figures, indent=2) + "\n")
    console.print(f"\n{'all requirements met' if not failed else f'{failed} requirements missed'}", highlight=False)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
