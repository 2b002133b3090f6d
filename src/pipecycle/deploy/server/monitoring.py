"""A live run for those who watch it: figures in Prometheus' text format, and the served model, each a file that is
always whole.

A file rather than a port, because Flower starts the server anywhere and a server that died would answer nobody:
node_exporter's textfile collector reads the file, and its age tells whether the server still runs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from attrs import frozen
from safetensors.numpy import save

import pipecycle
from pipecycle.deploy.server.replay import APPLIED
from pipecycle.deploy.wire.arrays import Arrays
from pipecycle.files import write
from pipecycle.world.energy import at, units

if TYPE_CHECKING:
    from pipecycle.deploy.server.driver import Driver

METRICS, MODEL = "metrics.prom", "model.safetensors"
PERIOD = 5.0
"""Seconds between two writes, at least."""
Labels = Mapping[str, object]


@frozen
class Family:
    """One metric, with a sample for every set of labels."""

    name: str
    about: str
    samples: Iterable[tuple[Labels, float]]
    kind: str = "gauge"


class Monitor:
    """Writes both files when they are out of date; without a folder, nothing."""

    def __init__(self, driver: Driver, folder: Path | None) -> None:
        self.driver, self.folder = driver, folder
        self._next = -float("inf")
        self._served: dict[str, str] = {}

    def update(self, *, ended: bool = False) -> None:
        now = self.driver.timer.monotonic()
        if self.folder is None or (now < self._next and not ended):
            return
        self._next = now + PERIOD
        if (about := self._about()) != self._served:
            driver = self.driver
            arrays = driver.model.named(driver.weights.version(driver.lineage.published))
            write(self.folder / MODEL, with_metadata(arrays, about))
            self._served = about
        write(self.folder / METRICS, exposition(families(self.driver, ended), {"run": self.folder}))

    def _about(self) -> dict[str, str]:
        """Of the served model: which it is, the slots elapsed when it was published, and its scores, if it has any."""
        version = self.driver.lineage.published
        slots = [0, *(slot + 1 for slot, _ in self.driver.lineage.publications[-1:])]
        about = {"version": str(version), "slot": str(slots[-1])}
        for row in self.driver.model.history.rows[-1:]:
            scores = {"accuracy": row.accuracy, "loss": row.loss} if row.version == version else {}
            about |= {name: repr(value) for name, value in scores.items() if isfinite(value)}
        return about


def with_metadata(arrays: Arrays, metadata: Mapping[str, str]) -> bytes:
    """A safetensors file with metadata in their order (the package shuffles them, and equal runs have equal bytes)."""
    data = save({name: np.asarray(value, order="C") for name, value in arrays.items()})
    start = 8 + int.from_bytes(data[:8], "little")
    header = {"__metadata__": dict(metadata), **json.loads(data[8:start])}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data[start:]


def exposition(families: Iterable[Family], common: Labels) -> str:
    """Prometheus' text format, version 0.0.4."""
    lines = []
    for family in families:
        about = family.about.replace("\\", r"\\").replace("\n", r"\n")
        lines += [f"# HELP {family.name} {about}", f"# TYPE {family.name} {family.kind}"]
        for labels, value in family.samples:
            pairs = ",".join(f'{name}="{_escaped(text)}"' for name, text in {**common, **labels}.items())
            lines.append(f"{family.name}{{{pairs}}} {float(value)!r}")
    return "\n".join(lines) + "\n"


def _escaped(text: object) -> str:
    return str(text).replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def families(driver: Driver, ended: bool) -> Iterator[Family]:
    """The figures of a run, as the server knows them."""
    fleet, run, ledger = driver.fleet, driver.settings, driver.fleet.ledger

    def one(value: float, **labels: object) -> list[tuple[Labels, float]]:
        return [(labels, value)] if isfinite(value) else []

    def per_client(values: Iterable[float]) -> list[tuple[Labels, float]]:
        return [({"client": client}, value) for client, value in zip(known, values, strict=True)]

    known = sorted(fleet.reports)
    capacity = np.broadcast_to(at(fleet.capacity, np.array(known, np.int64)), (len(known),))
    training = [fleet.sessions[session] for session in fleet.training().tolist()]
    groups = {(session.slot, session.reference) for session in training}
    uploads = ledger.to_hub + ledger.to_server + int(fleet.paid.sum())
    spent = [({"purpose": "training"}, units(ledger.training)), ({"purpose": "upload"}, units(uploads))]
    rows = driver.model.history.rows
    accuracy, loss = (rows[-1].accuracy / 100, rows[-1].loss) if rows else (float("nan"), float("nan"))

    about = one(1, policy=run.policy, clock=run.clock, version=pipecycle.__version__)
    yield Family("pipecycle_run_info", "The run's policy and clock, and the server's version of pipecycle.", about)
    yield Family("pipecycle_run_ended", "1 once the run has come to its end.", one(ended))
    yield Family("pipecycle_run_duration_seconds", "How long servers have worked on it.", one(driver.trace.time()))
    yield Family("pipecycle_slots_elapsed", "Slots that are over.", one(len(driver.levels)))
    yield Family("pipecycle_slots_planned", "Slots of the whole run.", one(run.slots))
    yield Family("pipecycle_nodes_expected", "Nodes that the run is meant to have.", one(run.clients))
    yield Family("pipecycle_nodes_known", "Nodes that have reported at least once.", one(len(known)))
    yield Family("pipecycle_nodes_present", "Nodes that can be reached.", one(int(fleet.reachable.sum())))
    present = per_client(fleet.reachable[known].tolist())
    yield Family("pipecycle_node_present", "1 for a node that can be reached, 0 for one that is away.", present)
    level = per_client(map(units, fleet.true_level()[known].tolist()))
    yield Family("pipecycle_node_battery_units", "Battery as last reported, and forecast since.", level)
    full = per_client(map(units, capacity.tolist()))
    yield Family("pipecycle_node_battery_capacity_units", "The most that the battery can hold.", full)
    yield Family("pipecycle_groups_training", "Groups under way: started together, from one version.", one(len(groups)))
    yield Family("pipecycle_sessions_training", "Sessions under way.", one(len(training)))
    yield Family("pipecycle_sessions_started_total", "Sessions ordered so far.", one(len(fleet.sessions)), "counter")
    events = [({"event": kind}, driver.counts[kind]) for kind in APPLIED]
    yield Family("pipecycle_events_total", "What was heard of nodes, by the trace's names.", events, "counter")
    refused = [({"reason": name}, times) for name, times in sorted(driver.refused.items())]
    yield Family("pipecycle_replies_refused_total", "Replies refused, by what was wrong.", refused, "counter")
    harvested, lost = one(units(ledger.harvested)), one(units(ledger.overflowed))
    yield Family("pipecycle_energy_harvested_units", "Gained by all batteries, with their initial charge.", harvested)
    yield Family("pipecycle_energy_spent_units", "Spent on this run.", spent)
    yield Family("pipecycle_energy_lost_units", "What batteries could not hold, or something else has used.", lost)
    yield Family("pipecycle_model_version", "The version that is served.", one(driver.lineage.published))
    yield Family("pipecycle_model_accuracy_ratio", "Accuracy at the latest evaluation, 0 to 1.", one(accuracy))
    yield Family("pipecycle_model_loss", "Loss at the latest evaluation.", one(loss))
