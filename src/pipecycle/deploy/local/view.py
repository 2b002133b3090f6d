"""A live run as people watch it: read from its trace alone, while it is written or afterwards."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

from attrs import define, field
from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from pipecycle.schedule.summary import number

OUTCOMES = {
    "roll-call": "present",
    "reply": "reported",
    "decline": "declined",
    "lost": "lost",
    "refused": "refused",
    "away": "away",
}
COUNTED = ("reply", "decline", "lost", "refused")
Event = dict[str, Any]


@define
class Device:
    """What is known of one client."""

    battery: float | None = None
    since: int | None = None
    """The slot in which the session began that it has not answered yet."""
    reference: int | None = None
    """The version from which that started."""
    last: str = "expected"
    tally: Counter[str] = field(factory=Counter)


@define
class View:
    """Where a run is; `hear` every event in order."""

    settings: dict[str, Any] = field(factory=dict)
    slot: int | None = None
    devices: dict[int, Device] = field(factory=dict)
    strangers: Counter[str] = field(factory=Counter)
    """Outcomes of nodes that have never said which client they are."""
    warnings: list[str] = field(factory=list)
    version: int = 0
    aggregations: int = 0
    evaluation: Event = field(factory=dict)
    best: float | None = None
    ended: Event | None = None
    waited: float = field(default=0.0, eq=False)
    """Seconds since the last event, if the run is going on."""

    def hear(self, event: Event) -> None:
        """Unknown events and missing fields are passed over: a picture may lack something, it must not break."""
        if "slot" in event:
            self.slot = int(event["slot"])
        match event:
            case {"event": "start", "settings": settings}:
                self.settings = settings
                self.devices = {client: Device() for client in range(int(settings.get("clients", 0)))}
            case {"event": "launch"}:
                self._launched(event)
            case {"event": "aggregation", "kind": "aggregation"}:
                self.aggregations += 1
            case {"event": "publish", "version": version}:
                self.version = int(version)
            case {"event": "evaluation"}:
                self.evaluation = event
                seen = [value for value in (self.best, event.get("accuracy")) if value is not None]
                self.best = max(seen, default=None)
            case {"event": "warning", "why": why}:
                self.warnings.append(str(why))
            case {"event": "end"}:
                self._over(event)
            case {"event": kind, "client": _} if kind in OUTCOMES:
                self._answered(kind, event)
            case {"event": kind} if kind in OUTCOMES:
                self.strangers[kind] += 1

    def _launched(self, event: Event) -> None:
        references = event.get("reference")
        for place, client in enumerate(event.get("clients", [])):
            device = self._device(client)
            device.since, device.last = self.slot, "training"
            device.reference = references[place] if isinstance(references, list) else references

    def _answered(self, kind: str, event: Event) -> None:
        device = self._device(event["client"])
        if "session" in event or kind in ("lost", "away"):
            device.since = device.reference = None
        if device.since is None:
            device.last = OUTCOMES[kind]
        device.tally[kind] += 1
        if event.get("battery") is not None:
            device.battery = float(event["battery"])

    def _over(self, event: Event) -> None:
        self.ended = event
        for device in self.devices.values():
            if device.since is not None:
                device.since, device.reference, device.last = None, None, "too late"

    def _device(self, client: Any) -> Device:
        return self.devices.setdefault(int(client), Device())

    @property
    def now(self) -> int | None:
        """The slot; with a wall clock it passes while nothing happens."""
        if self.slot is None or self.ended is not None or self.settings.get("clock") != "wall":
            return self.slot
        passed = int(self.waited / float(self.settings.get("slot-seconds", 1.0)))
        return min(self.slot + passed, max(self.slot, int(self.settings.get("slots", 0)) - 1))

    @property
    def groups(self) -> list[list[int]]:
        """Clients in training, by what they started together from the same version."""
        groups: dict[Any, list[int]] = {}
        for client, device in sorted(self.devices.items()):
            if device.since is not None:
                groups.setdefault((device.since, device.reference), []).append(client)
        return list(groups.values())

    @property
    def total(self) -> Counter[str]:
        return sum((device.tally for device in self.devices.values()), self.strangers.copy())

    def render(self) -> Group:
        """The table, and the run in a line below it."""
        table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
        for head in ("node", "battery", "doing", "from", "since slot", "reported", "declined", "lost", "refused"):
            table.add_column(head, justify="left" if head == "doing" else "right", no_wrap=True)
        for client, device in sorted(self.devices.items()):
            trains = device.since is not None
            table.add_row(
                str(client),
                "-" if device.battery is None else f"{device.battery:,.1f}",
                Text(device.last, style="green" if trains else ""),
                str(device.reference) if trains else "",
                str(device.since) if trains else "",
                *(str(device.tally[kind] or "") for kind in COUNTED),
            )
        if self.strangers:
            parts = ", ".join(f"{times} {OUTCOMES[kind]}" for kind, times in self.strangers.items())
            table.add_row("?", "-", f"unknown nodes: {parts}")
        notes = [Text(f"Note: {text}", style="yellow") for text in self.warnings]
        return Group(table, Text(self.line()), *notes)

    def figures(self) -> dict[str, Any]:
        """The same for programs."""
        return {
            "slot": self.slot,
            "slots": self.settings.get("slots"),
            "version": self.version,
            "aggregations": self.aggregations,
            "accuracy": self.evaluation.get("accuracy"),
            "best": self.best,
            "ended": None if self.ended is None else self.ended.get("ended", "finished"),
            **{OUTCOMES[kind]: self.total[kind] for kind in COUNTED},
            "nodes": {
                client: {"battery": device.battery, "doing": device.last} for client, device in self.devices.items()
            },
        }

    def line(self) -> str:
        """The run in one sentence."""
        slots, groups, now = self.settings.get("slots"), self.groups, self.now
        flying = "".join(" {" + ", ".join(map(str, group)) + "}" for group in groups)
        parts = [
            f"slot {number(now) if now is not None and now >= 0 else '-'}" + (f" of {number(slots)}" if slots else ""),
            f"groups in flight: {len(groups)}{flying}",
            f"version {self.version} served, {number(self.aggregations)} aggregations",
        ]
        if self.best is not None:
            accuracy = self.evaluation.get("accuracy")
            parts.append(f"accuracy {'-' if accuracy is None else format(accuracy, '.1f')} %, best {self.best:.1f} %")
        return "; ".join(parts)


@define
class Tail:
    """The trace of a run while it grows; only whole lines are taken."""

    path: Path
    live: bool = False
    """Whether somebody writes it: then time passes."""
    view: View = field(factory=View)
    offset: int = 0
    last: bytes = b""

    def read(self) -> View:
        """What there is now; one that was cut back (by a run that resumes) is read from its beginning."""
        try:
            with self.path.open("rb") as file:
                file.seek(self.offset - len(self.last))
                if file.read(len(self.last)) != self.last:
                    self.view, self.offset, self.last = View(), 0, b""
                    file.seek(0)
                data = file.read()
        except OSError:
            return self.view
        whole = data[: data.rfind(b"\n") + 1]
        self.offset += len(whole)
        self.last = (self.last + whole)[-1000:]
        for line in whole.splitlines():
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if isinstance(event, dict):
                self.view.hear(event)
        if self.live:
            self.view.waited = max(0.0, time.time() - self.path.stat().st_mtime)
        return self.view
