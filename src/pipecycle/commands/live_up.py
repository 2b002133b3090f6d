"""`pipecycle deploy up`: an app's folder, and a run of the app on a federation of this machine."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from attrs import field, frozen

from pipecycle.commands.live_app import quoted, read_app, write_app
from pipecycle.deploy.local.federation import Federation, lines, status
from pipecycle.deploy.local.loopback import Failed
from pipecycle.deploy.local.progress import Progress, Tail
from pipecycle.deploy.node.battery import battery
from pipecycle.deploy.node.settings import NodeSettings
from pipecycle.deploy.server.trace import STATE
from pipecycle.deploy.wire.settings import CHANGEABLE, RunSettings, Scalar
from pipecycle.errors import InputError
from pipecycle.files import read_toml, write
from pipecycle.runs.config import toml
from pipecycle.stopping import as_ctrl_c

ASK, AGAIN = 30.0, 1.0
"""Seconds between two `flwr list` for the state of the run, which takes a second of a core: while it lasts, and once
it seems to be over."""
PATIENCE = 5
"""How many in a row may fail."""
Say = Callable[[str], None]
Show = Callable[[Progress, Federation], None]


@frozen
class StartOptions:
    """How the nodes of a run are started; a resumed run starts them as before."""

    tls: bool = False
    node: Mapping[str, Scalar] = field(factory=dict)

    def again(self, given: StartOptions) -> StartOptions:
        """The same for a run that is resumed; options that say something else are refused."""
        if given.tls and not self.tls:
            raise InputError("--tls: the run was started without it")
        for key, value in given.node.items():
            if self.node.get(key) != value:
                raise InputError(f"--node {key}={value}: the run was started with {self.node.get(key, 'no ' + key)}")
        return self

    def text(self) -> str:
        return f"# How `pipecycle deploy up` started the nodes.\ntls = {toml(self.tls)}\n\n[node]\n{lines(self.node)}"

    @staticmethod
    def read(path: Path) -> StartOptions:
        values = read_toml(path)
        node = values.get("node", {})
        described = NodeSettings.of(node).flat()
        return StartOptions(values.get("tls") is True, {key: described[key] for key in node})


@frozen
class Site:
    """The folder of an app, and what a federation of this machine puts into it."""

    folder: Path

    @property
    def out(self) -> Path:
        """Results: trace, checkpoint, model."""
        return self.folder / "run"

    @property
    def federation(self) -> Path:
        """Keys, logs, Flower's home, and a folder per node."""
        return self.folder / "federation"

    @property
    def trace(self) -> Path:
        return self.out / "trace.jsonl"

    @property
    def resumable(self) -> bool:
        return (self.out / STATE).exists()

    def ledger(self, node: int) -> Path:
        return self.federation / "nodes" / str(node) / "ledger.json"

    @property
    def options_file(self) -> Path:
        return self.federation / "nodes.toml"

    @property
    def has_app(self) -> bool:
        return (self.folder / "pyproject.toml").exists()

    @property
    def policy(self) -> str:
        """The policy whose settings are meant if none is named."""
        return read_app(self.folder).settings.policy if self.has_app else RunSettings().policy

    def prepare(self, options: Mapping[str, Scalar], start: StartOptions, *, resume: bool, fresh: bool) -> RunSettings:
        """The settings of the next run.  An app is written if there is none; a run in the way is refused, or with
        `fresh` deleted once nothing else is wrong."""
        begun, fresh_one = self.trace.exists(), "--fresh deletes it and its ledgers, and starts from scratch"
        if resume and not begun:
            raise InputError(f"{self.out}: holds no run to resume (leave out --resume)")
        if resume and not self.resumable:
            raise InputError(f"{self.out}: that run ended before its first checkpoint ({fresh_one})")
        if begun and not resume and not fresh:
            raise InputError(self._in_the_way(Tail(self.trace).read(), fresh_one))
        if status(self.federation) is not None:
            look = f"`pipecycle deploy status {quoted(self.folder)}` shows it"
            raise InputError(f"{self.folder}: a federation runs there already ({look})")
        app = read_app(self.folder) if self.has_app else None
        place: dict[str, Scalar] = {"out": str(self.out.absolute()), "resume": resume}
        if resume:
            chosen = self._continued(options, place, fresh_one)
        else:  # without keys, ids change whenever a node starts
            keys = {"pin-nodes": start.tls}
            chosen = RunSettings.of({**(app.settings.flat() if app else {}), **keys, **options, **place})
        battery(chosen, NodeSettings.of(start.node), time)  # refuses one that does not fit the run
        if app is None:
            write_app(self.folder, RunSettings.of(options))
        else:
            app.overrides(chosen)  # refuses what the app does not list
        if fresh:
            for old in (self.out, self.federation / "logs", self.federation / "nodes"):  # nodes: other batteries
                shutil.rmtree(old, ignore_errors=True)
        return chosen

    def start_options(self, given: StartOptions, *, resume: bool) -> StartOptions:
        """How to start the nodes, given the options."""
        return StartOptions.read(self.options_file).again(given) if resume and self.options_file.exists() else given

    def _continued(self, options: Mapping[str, Scalar], place: Mapping[str, Scalar], fresh_one: str) -> RunSettings:
        """The settings that the run was started with, and what was or is changed since; checked before they are
        written anywhere."""
        begun, path = Tail(self.trace).read(), self.federation / "run.toml"
        last = _last(path) if path.exists() else {}
        changed = {key: last[key] for key in CHANGEABLE if key in last}
        chosen = RunSettings.of({**begun.settings, **changed, **options, **place}, strict=False)
        chosen.check_continues(begun.settings)
        if begun.ended is not None and chosen.slots <= int(begun.ended["slot"]) + 1:
            raise InputError(self._in_the_way(begun, fresh_one))
        return chosen

    def _in_the_way(self, begun: Progress, fresh_one: str) -> str:
        """What can be done with the run that is there."""
        if begun.ended is None:
            return f"{self.out}: holds a run already (--resume continues it, {fresh_one})"
        more = f"--resume --set slots=N with N above {int(begun.ended['slot']) + 1} extends it"
        return f"{self.out}: that run has ended ({more}, {fresh_one})"


def _last(path: Path) -> dict[str, Any]:
    """A run's settings as they were handed to Flower, whether or not they carry our prefix."""
    values = read_toml(path)
    return {**values, **values.get("pipecycle", {})}


@frozen
class Outcome:
    """How a run ended."""

    verdict: str
    why: str
    progress: Progress

    @property
    def completed(self) -> bool:
        return self.verdict == "finished:completed"


def run_app(site: Site, settings: RunSettings, options: StartOptions, *, say: Say, show: Show) -> Outcome:
    """Start everything, run the app, watch it, and stop everything, also after an interruption."""
    overrides = read_app(site.folder).overrides(settings)
    with as_ctrl_c(), Federation(site.federation, options.tls, settings.clients) as federation:
        link, keys = (" with TLS", " with registered keys") if options.tls else ("", "")
        say(f"SuperLink on 127.0.0.1:{federation.port}{link}, logs in {site.federation / 'logs'}")
        write(site.options_file, options.text())
        for number in range(settings.clients):
            own = {**options.node, "partition-id": number, "ledger": str(site.ledger(number).absolute())}
            federation.start_node(number, own)
        federation.submit(site.folder.absolute(), overrides)
        say(f"{settings.clients} nodes started{keys}, run {federation.run} accepted")
        return _watch(federation, Tail(site.trace, live=True), show)


def _watch(federation: Federation, tail: Tail, show: Show) -> Outcome:
    """Until the SuperLink says that the run is over."""
    asked, unanswered, served, serving = time.monotonic(), 0, False, False
    while True:
        progress = tail.read()
        show(progress, federation)
        served, serving = served or serving, federation.serving
        if "superlink" in federation.dead():
            return Outcome("finished:failed", f"the SuperLink ended: {federation.last_words('superlink')}", progress)
        over = not serving and (served or progress.ended is not None)
        if time.monotonic() - asked > (AGAIN if over else ASK):
            try:
                verdict, why = federation.verdict()
                unanswered = 0
            except Failed:  # the machine is busy, which is no reason to end a run
                verdict, unanswered = "", unanswered + 1
                if unanswered == PATIENCE:
                    raise
            asked = time.monotonic()
            if verdict.startswith("finished"):
                log = federation.keep_server_log()
                if not verdict.endswith("completed"):
                    why = f"{why.rstrip('.') or 'no reason was given'} (see {log})"
                return Outcome(verdict, why, tail.read())
        time.sleep(0.5)
