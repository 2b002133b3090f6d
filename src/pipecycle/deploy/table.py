"""A live run as people watch it: read from its trace alone, while it is written or afterwards."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from attrs import define, field
from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from pipecycle.summary import number

OUTCOMES = {"reply": "reported", "decline": "declined", "refused": "refused", "lost": "lost"}
Event = dict[str, Any]


@define
class Device:
    """What is known of one client."""

    battery: float | None = None
    at: int | None = None
    """The slot that the level is of."""
    training: Event | None = None
    """The launch that it has not answered yet."""
    last: str = "expected"
    tally: Counter[str] = field(factory=Counter)


@define
class View:
    """Where a run is; `hear` every event in order."""

    started: Event = field(factory=dict)
    slot: int | None = None
    devices: dict[int, Device] = field(factory=dict)
    version: int = 0
    aggregations: int = 0
    evaluation: Event = field(factory=dict)
    best: float | None = None
    ended: Event | None = None

    def hear(self, event: Event) -> None:
        """Unknown events and missing fields are passed over: a picture may lack something, it must not break."""
        kind = str(event.get("event", ""))
        if "slot" in event:
            self.slot = int(event["slot"])
        if kind == "start":
            self.started, self.ended = event, None
            for client in range(int(event.get("clients", 0))):
                self.devices.setdefault(client, Device())
            for device in self.devices.values():  # on a resumed run, nothing of before is in flight
                device.training = None
        elif kind == "roll-call":
            self._device(event).last = "idle"
            self._level(event)
        elif kind == "launch":
            device = self._device(event)
            device.training, device.last = event, "training"
        elif kind in OUTCOMES:
            device = self._device(event)
            device.training, device.last = None, OUTCOMES[kind]
            device.tally[kind] += 1
            self._level(event)
        elif kind == "aggregation":
            self.aggregations += 1
        elif kind == "publish":
            self.version = int(event.get("version", self.version))
        elif kind == "evaluation":
            self.evaluation = event
            accuracy = float(event.get("accuracy", 0.0))
            self.best = accuracy if self.best is None else max(self.best, accuracy)
        elif kind == "end":
            self.ended = event

    def _device(self, event: Event) -> Device:
        return self.devices.setdefault(int(event.get("client", -1)), Device())

    def _level(self, event: Event) -> None:
        if event.get("battery") is not None:
            device = self._device(event)
            device.battery, device.at = float(event["battery"]), event.get("slot")

    @property
    def groups(self) -> list[list[int]]:
        """Clients in training, by what they started together from the same version."""
        found: dict[Any, list[int]] = {}
        for client, device in sorted(self.devices.items()):
            if device.training is not None:
                found.setdefault((device.training.get("slot"), device.training.get("reference")), []).append(client)
        return list(found.values())

    @property
    def total(self) -> Counter[str]:
        return sum((device.tally for device in self.devices.values()), Counter())

    def render(self) -> Group:
        """The table and two lines below it."""
        table = Table(box=SIMPLE_HEAD, pad_edge=False)
        for head, side in (("node", "right"), ("battery", "right"), ("doing", "left")):
            table.add_column(head, justify=side, no_wrap=True)  # type: ignore[arg-type]
        for head in ("from version", "since slot", "reported", "declined", "lost", "refused"):
            table.add_column(head, justify="right", no_wrap=True)
        for client, device in sorted(self.devices.items()):
            launch = device.training or {}
            table.add_row(
                str(client),
                "-" if device.battery is None else f"{device.battery:,.1f}",
                Text("training" if device.training else device.last, style="green" if device.training else ""),
                str(launch.get("reference", "")),
                str(launch.get("slot", "")),
                *(str(device.tally[kind] or "") for kind in ("reply", "decline", "lost", "refused")),
            )
        return Group(table, Text(self.line()))

    def figures(self) -> dict[str, Any]:
        """The same for programs."""
        return {
            "slot": self.slot,
            "slots": self.started.get("slots"),
            "version": self.version,
            "aggregations": self.aggregations,
            "accuracy": self.evaluation.get("accuracy"),
            "best": self.best,
            "ended": None if self.ended is None else self.ended.get("ended", "finished"),
            **{OUTCOMES[kind]: self.total[kind] for kind in OUTCOMES},
            "nodes": {
                client: {"battery": device.battery, "doing": device.last} for client, device in self.devices.items()
            },
        }

    def line(self) -> str:
        """The run in one sentence."""
        slots = self.started.get("slots")
        parts = [f"slot {'-' if self.slot is None else number(self.slot)}" + (f" of {number(slots)}" if slots else "")]
        groups = self.groups
        flying = " ".join("{" + ", ".join(map(str, group)) + "}" for group in groups)
        parts.append(f"groups in flight: {len(groups)}{' ' + flying if flying else ''}")
        parts.append(f"version {self.version} served, {number(self.aggregations)} aggregations")
        if self.evaluation:
            parts.append(f"accuracy {self.evaluation.get('accuracy', 0.0):.1f} %, best {self.best:.1f} %")
        return "; ".join(parts)


@define
class Tail:
    """The trace of a run while it grows; only whole lines are taken."""

    path: Path
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
        return self.view
