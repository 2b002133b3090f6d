"""How far a live run is, on a terminal and for programs."""

from __future__ import annotations

from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from pipecycle.deploy.local.progress import COUNTED, OUTCOMES, Progress
from pipecycle.words import number


def table(progress: Progress) -> Group:
    """The table, and the run in a line below it."""
    rows = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for head in ("node", "battery", "slot", "doing", "from", "since", "reported", "declined", "lost", "refused"):
        rows.add_column(head, justify="left" if head == "doing" else "right", no_wrap=True)
    for client, device in sorted(progress.devices.items()):
        trains = device.since is not None
        rows.add_row(
            str(client),
            "-" if device.battery is None else f"{device.battery:,.1f}",
            "-" if device.at is None or device.at < 0 else str(device.at),
            Text(device.last, style="green" if trains else ""),
            str(device.reference) if trains else "",
            str(device.since) if trains else "",
            *(str(device.tally[kind] or "") for kind in COUNTED),
        )
    if progress.strangers:
        parts = ", ".join(f"{times} {OUTCOMES[kind]}" for kind, times in progress.strangers.items())
        rows.add_row("?", "-", "", f"unknown nodes: {parts}")
    notes = [Text(f"Note: {text}", style="yellow") for text in progress.warnings]
    return Group(rows, Text(line(progress)), *notes)


def figures(progress: Progress) -> dict[str, Any]:
    """The same for programs."""
    return {
        "slot": progress.slot,
        "slots": progress.settings.get("slots"),
        "version": progress.version,
        "aggregations": progress.aggregations,
        "accuracy": progress.evaluation.get("accuracy"),
        "best": progress.best,
        "ended": None if progress.ended is None else progress.ended.get("ended", "finished"),
        **{OUTCOMES[kind]: progress.total[kind] for kind in COUNTED},
        "nodes": {
            client: {"battery": device.battery, "at": device.at, "doing": device.last}
            for client, device in progress.devices.items()
        },
    }


def line(progress: Progress) -> str:
    """The run in one sentence."""
    slots, groups, now = progress.settings.get("slots"), progress.groups, progress.now
    flying = "".join(" {" + ", ".join(map(str, group)) + "}" for group in groups)
    parts = [
        f"slot {number(now) if now is not None and now >= 0 else '-'}" + (f" of {number(slots)}" if slots else ""),
        f"groups in flight: {len(groups)}{flying}",
        f"version {progress.version} served, {number(progress.aggregations)} aggregations",
    ]
    if progress.best is not None:
        accuracy = progress.evaluation.get("accuracy")
        parts.append(f"accuracy {'-' if accuracy is None else format(accuracy, '.1f')} %, best {progress.best:.1f} %")
    return "; ".join(parts)
