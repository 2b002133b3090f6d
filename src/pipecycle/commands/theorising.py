"""`pipecycle theory`: the paper's bounds at your settings, what they are worth, and what plans and runs say instead."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress, TaskID

from pipecycle.checks import MOST_PLANS, at_least
from pipecycle.commands.fields import Given, fields
from pipecycle.commands.shared import Json, check_execution, complete_policy, configured
from pipecycle.errors import InputError, shown
from pipecycle.files import writable, write
from pipecycle.runs.config import Config
from pipecycle.screen import progress, screen
from pipecycle.theory.plans import Planned, plan_at
from pipecycle.theory.study import Family, Study, families, finite, largest
from pipecycle.theory.system import AMOUNT, POSITIVE, Constants

USUAL = [1, 2, 5, 10]


@fields(Config(), "delta", "harvest", "clients", "session", "slots", "train.lr", "trial")
def theory(
    *,
    groups: Annotated[
        str | None, typer.Option(help="Which G to look at, such as 1,2,5-8. \\[default: 1,2,5,10 and those measured]")
    ] = None,
    given: Given,
    policy: Annotated[
        str | None,
        typer.Option(help="A scheduler that has groups. \\[default: pipecycle]", autocompletion=complete_policy),
    ] = None,
    smoothness: Annotated[
        float | None, typer.Option("--L", help="Smoothness of the clients' losses. \\[default: 1]")
    ] = None,
    sigma2: Annotated[float | None, typer.Option(help="Variance of a stochastic gradient. \\[default: 1]")] = None,
    alpha: Annotated[
        float | None,
        typer.Option(help="Largest distance between a client's gradient and its group's mean. \\[default: 0.1]"),
    ] = None,
    beta: Annotated[
        float | None,
        typer.Option(
            help="Largest distance between a group's mean gradient and the mean over all clients. \\[default: 0.1]"
        ),
    ] = None,
    omega2: Annotated[
        float | None, typer.Option(help="Largest sum of squared weights in a group. \\[default: 1]")
    ] = None,
    gap: Annotated[
        float | None, typer.Option(help="Loss at the start less the smallest possible, f(x_0) - f*. \\[default: 2.3]")
    ] = None,
    measure: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="RUN",
            help="A finished run, or a folder of them (a sweep): measure the constants there. Repeatable.",
        ),
    ] = None,
    models: Annotated[int, typer.Option(min=2, metavar="N", help="Models to look at in each run.")] = 9,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:NUMBER; for --measure.")] = "auto",
    figure: Annotated[Path | None, typer.Option(help="Draw it: a .png, .pdf or .svg file.")] = None,
    steps: Annotated[
        Path | None,
        typer.Option(help="results.parquet of a sweep over step: draw accuracy over it (--figure), and nothing else."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Evaluate the paper's bound and best G at your settings, say whether they help, and recommend a G.

    The recommendation comes from plans of every G, and from runs where --measure names some. Examples:
    pipecycle theory --groups 1-10 --delta 0.3; pipecycle theory --measure runs/my-sweep --figure theory.png"""
    check_execution(device)
    at_least(2, "models", most=10_000).of("models", models)
    kind = _kind(figure)
    if steps is not None:
        if figure is None or kind is None:
            raise InputError("--steps: needs --figure, the file to draw")
        _draw_steps(steps, figure, kind)
        return
    known = _constants(L=smoothness, sigma2=sigma2, alpha=alpha, beta=beta, omega2=omega2, f0_gap=gap)
    wanted = None if groups is None else _numbers(groups)
    with progress() as bar:
        if measure:
            _refuse(policy, {**given, **known})
            studies = [_measured(family, wanted, models, device, bar) for family in families(measure)]
        else:
            chosen = configured(Config(), None, policy, given, {})
            plans = _plans(chosen, wanted or USUAL, bar)
            studies = [Study(chosen, Constants(**{"L": 1.0, **known}), True, plans, ())]
    if figure is not None and kind is not None:
        from pipecycle.report.figures import figure_style, save
        from pipecycle.theory.figure import draw

        with figure_style(formulas=True):
            write(figure, save(draw(studies), kind))
    if as_json:
        print(json.dumps(finite({"studies": [study.figures() for study in studies], "figure": figure and str(figure)})))
        return
    from pipecycle.theory.tables import show

    console = screen()
    for place, study in enumerate(studies):
        if place:
            console.rule()
        show(study, console)
    if figure is not None:
        console.print(f"Figure: {figure}", soft_wrap=True)


def _draw_steps(results: Path, figure: Path, kind: str) -> None:
    from pipecycle.report.figures import figure_style, save
    from pipecycle.theory.steps_figure import draw, read

    curves = read(results)
    with figure_style():
        write(figure, save(draw(curves), kind))
    screen().print(f"Figure: {figure}", soft_wrap=True)


def _plans(config: Config, groups: list[int], bar: Progress) -> tuple[Planned, ...]:
    task = bar.add_task(f"planning {config.policy}", total=len(groups) * config.world.slots)
    plans = tuple(plan_at(config, count, lambda: bar.advance(task)) for count in groups)
    bar.remove_task(task)
    return plans


def _measured(family: Family, wanted: list[int] | None, models: int, device: str, bar: Progress) -> Study:
    from pipecycle.theory.measure import measure

    measured = []
    for label, record in family.runs.items():
        task = bar.add_task(label, total=1.0)
        shown = partial(_advance, bar, task)
        measured.append(measure(record, label, models=models, device=device, progress=shown))
        bar.remove_task(task)
    chosen = wanted or sorted({*family.groups, *USUAL})
    plans = _plans(family.config, chosen, bar) if family.grouped else ()
    return Study(family.config, largest(measured), False, plans, tuple(measured))


def _advance(bar: Progress, task: TaskID, what: str, share: float) -> None:
    bar.update(task, description=what, completed=share)


def _constants(**given: float | None) -> dict[str, float]:
    known = {name: value for name, value in given.items() if value is not None}
    for name, value in known.items():
        check = POSITIVE if name in ("L", "f0_gap") else AMOUNT
        check.of("gap" if name == "f0_gap" else name, value)
    return known


def _refuse(policy: str | None, given: dict[str, object]) -> None:
    """A run brings its own settings and constants."""
    for key, value in {"policy": policy, **given}.items():
        if value is not None:
            option = "gap" if key == "f0_gap" else key.rpartition(".")[2]
            raise InputError(f"--measure and --{option}: a run has its own, give one of them")


def _numbers(text: str) -> list[int]:
    """1,2,5-8 as a list without repetitions."""
    numbers: set[int] = set()
    for part in text.split(","):
        ends = re.fullmatch(r"\s*([0-9]{1,9})(?:-([0-9]{1,9}))?\s*", part)
        if ends is None:
            raise InputError(f"--groups {shown(text)}: needs whole numbers or ranges, such as 1,2,5-8")
        several = range(int(ends[1]), int(ends[2] or ends[1]) + 1)
        if not several:
            raise InputError(
                f"--groups {shown(text)}: the range {part.strip()} is empty, needs the smaller number first"
            )
        numbers.update(several[: MOST_PLANS + 1])
    if len(numbers) > MOST_PLANS:
        raise InputError(f"--groups {shown(text)}: needs at most {MOST_PLANS:,} different numbers")
    if min(numbers) < 1:
        raise InputError(f"--groups {text}: needs at least 1 concurrent group")
    return sorted(numbers)


def _kind(figure: Path | None) -> str | None:
    if figure is None:
        return None
    from pipecycle.report.figures import FORMATS

    kind = figure.suffix.lower().lstrip(".")
    if kind not in FORMATS:
        raise InputError(
            f"--figure {figure}: needs a name that ends in {', '.join(f'.{ending}' for ending in FORMATS)}"
        )
    writable(figure)
    return kind
