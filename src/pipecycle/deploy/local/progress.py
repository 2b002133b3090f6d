"""How far a live run is: read from its trace alone, while it is written or afterwards."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

from attrs import define, field

OUTCOMES = {
    "roll-call": "present",
    "reply": "reported",
    "decline": "declined",
    "lost": "lost",
    "refused": "refused",
    "away": "away",
}
COUNTED = ("reply", "decline", "lost", "refused")
NOTES = 5
"""Warnings that are shown."""
Event = dict[str, Any]


@define
class Device:
    """The state of one client."""

    battery: float | None = None
    """Units, as it reported last."""
    at: int | None = None
    """The slot at whose end it held them."""
    since: int | None = None
    """The first slot of its session under way."""
    reference: int | None = None
    """The version from which that session started."""
    last: str = "expected"
    tally: Counter[str] = field(factory=Counter)


@define
class Progress:
    """The state of a run; `add` every event in order."""

    settings: dict[str, Any] = field(factory=dict)
    slot: int | None = None
    devices: dict[int, Device] = field(factory=dict)
    strangers: Counter[str] = field(factory=Counter)
    """Outcomes of nodes that are no client yet."""
    warnings: list[str] = field(factory=list)
    version: int = 0
    aggregations: int = 0
    evaluation: Event = field(factory=dict)
    best: float | None = None
    ended: Event | None = None
    waited: float = field(default=0.0, eq=False)
    """Seconds since the last event of a run that is under way."""

    def add(self, event: Event) -> None:
        """Unknown events and missing fields are ignored: an incomplete picture is better than none."""
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
                self._warn(str(why))
            case {"event": "resume"}:
                self.ended = None
                self.settings |= {"slots": event["slots"]} if "slots" in event else {}
            case {"event": "end"}:
                self._over(event)
            case {"event": "late", "client": client}:
                self._reported(self._device(client), event)
            case {"event": kind} if kind in OUTCOMES:
                self._answered(kind, event)

    def _warn(self, why: str) -> None:
        """Each once, and the latest few."""
        self.warnings = [*(other for other in self.warnings if other != why), why][-NOTES:]

    def _launched(self, event: Event) -> None:
        references = event.get("reference")
        for place, client in enumerate(event.get("clients", [])):
            device = self._device(client)
            device.since, device.last = self.slot, "training"
            device.reference = references[place] if isinstance(references, list) else references

    def _answered(self, kind: str, event: Event) -> None:
        if "client" not in event:
            self.strangers[kind] += 1
            self._warn(f"an unknown node: {event.get('why', kind)}")
            return
        device = self._device(event["client"])
        if kind == "roll-call" and "why" in event:  # it is let in with another version than the server's
            self._warn(f"node {event['client']}: {event['why']}")
        if "session" in event or kind in ("lost", "away"):
            device.since = device.reference = None
        if device.since is None:
            device.last = OUTCOMES[kind]
        device.tally[kind] += 1
        self._reported(device, event)

    def _reported(self, device: Device, event: Event) -> None:
        if event.get("battery") is not None:
            device.battery = float(event["battery"])
            device.at = int(event["report"][0]) if "report" in event else self.slot

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
        """Clients in training; those that started together from the same version are a group."""
        groups: dict[Any, list[int]] = {}
        for client, device in sorted(self.devices.items()):
            if device.since is not None:
                groups.setdefault((device.since, device.reference), []).append(client)
        return list(groups.values())

    @property
    def total(self) -> Counter[str]:
        return sum((device.tally for device in self.devices.values()), self.strangers.copy())


@define
class Tail:
    """The trace of a run, read while it grows; only complete lines count."""

    path: Path
    live: bool = False
    """Whether it is still being written: then time passes."""
    progress: Progress = field(factory=Progress)
    offset: int = 0
    last: bytes = b""

    def read(self) -> Progress:
        """Read on to the end; a trace that was cut back (by a run that resumed) is read from its beginning."""
        try:
            with self.path.open("rb") as file:
                file.seek(self.offset - len(self.last))
                if file.read(len(self.last)) != self.last:
                    self.progress, self.offset, self.last = Progress(), 0, b""
                    file.seek(0)
                data = file.read()
        except OSError:
            return self.progress
        complete = data[: data.rfind(b"\n") + 1]
        self.offset += len(complete)
        self.last = (self.last + complete)[-1000:]
        for line in complete.splitlines():
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if isinstance(event, dict):
                self.progress.add(event)
        if self.live:
            self.progress.waited = max(0.0, time.time() - self.path.stat().st_mtime)
        return self.progress
