"""A whole Flower federation on this machine: SuperLink and SuperNodes on loopback, started, watched and stopped.

Everything is in one folder: Flower's home, keys, a log per process and the nodes' files.  Nothing leaves the machine:
telemetry, update checks and installation at run time are switched off, and every socket is bound to 127.0.0.1.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from attrs import define, field

from pipecycle.deploy.local.certificates import Authority, make_authority, make_node_key
from pipecycle.deploy.local.loopback import HOST, Failed, answers, environment, free_port, program, supernode
from pipecycle.deploy.local.processes import MARK, end, kill_family, members, start_guard
from pipecycle.errors import InputError
from pipecycle.files import make_folder, write
from pipecycle.runs.config import toml
from pipecycle.stopping import undisturbed

NAME = "pipecycle"
"""The SuperLink's name in Flower's own configuration: `flwr list pipecycle`."""
ANSWER = 120.0
"""Seconds that a `flwr` command may take."""
LOOKS = 50
"""How often in a second all nodes together look for work.  A look takes 8 ms of a core.  By itself each of Flower's
nodes looks once a second, which is late where they are few and too often where hundreds share a machine."""
STARTING, TURN = 8, 30.0
"""How many nodes may start at a time, and the seconds after which the next one does in any case.  When fifty start at
once, Flower repeats requests that take long, and then refuses some nodes because they are registered already."""
Settings = Mapping[str, bool | int | float | str]


@define
class Federation:
    """SuperLink and SuperNodes; a context manager that leaves no process behind."""

    folder: Path
    tls: bool = False
    expected: int = 10
    """How many nodes there will be."""
    port: int = 0
    link: subprocess.Popen[bytes] | None = None
    nodes: dict[int, subprocess.Popen[bytes]] = field(factory=dict)
    registered: set[int] = field(factory=set)
    run: str = ""
    guard: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Federation:
        """Start the SuperLink; nodes follow one by one with `start_node`."""
        self.folder = self.folder.absolute()
        self._claim()
        try:
            self.guard = start_guard(self.folder)
            self.start_link()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    @property
    def authority(self) -> Authority:
        return Authority(self.folder / "keys")

    def log(self, name: str) -> Path:
        return self.folder / "logs" / f"{name}.log"

    # Starting.

    def start_link(self) -> None:
        """Start the SuperLink, wait until it answers, and tell Flower's commands where it is."""
        authority = self.authority
        if self.tls and not authority.lasts:  # nobody else has a copy of them
            make_authority(authority.folder)
        self.port = self.port or free_port()
        command = [program("flower-superlink"), "--host", HOST, "--port", str(self.port)]
        command += ["--database", str(self.folder / "superlink.db")]
        connection: dict[str, bool | str] = {"address": f"{HOST}:{self.port}"}
        if self.tls:
            command += ["--ssl-ca-certfile", str(authority.root), "--ssl-certfile", str(authority.certificate)]
            command += ["--ssl-keyfile", str(authority.key), "--enable-supernode-auth"]
            connection["root-certificates"] = str(authority.root)
        else:
            command += ["--insecure"]
            connection["insecure"] = True
        text = f'[superlink]\ndefault = "{NAME}"\n\n[superlink.{NAME}]\n{lines(connection)}'
        write(make_folder(self.folder / "home") / "config.toml", text)
        self.link = self._start("superlink", command)
        self._wait_for_link()
        self._note()

    def start_node(self, number: int, settings: Settings, *, key: Path | None = None, root: Path | None = None) -> None:
        """Start a SuperNode; with TLS its key is made and registered on first use, unless one is given.

        `settings` become its node configuration, in a file beside its ledger."""
        until = time.monotonic() + TURN
        while sum(not self.online(node) for node in self.nodes) >= STARTING and time.monotonic() < until:
            time.sleep(0.1)
        folder = make_folder(self.folder / "nodes" / str(number))
        write(folder / "node.toml", lines(settings))
        if self.tls:
            root, key = root or self.authority.root, key or self._registered(number)
        command = supernode(f"{HOST}:{self.port}", folder / "node.toml", root, key)
        pause = max(0.2, self.expected / LOOKS)
        self.nodes[number] = self._start(f"node-{number}", command, FLWR_SUPEREXEC_TASK_POLL_INTERVAL=f"{pause:g}")
        self._note()

    def _registered(self, number: int) -> Path:
        """The node's key, known to the SuperLink from now on."""
        key = make_node_key(self.authority.folder, number)
        if number not in self.registered:
            self.flwr("supernode", "register", f"{key}.pub", NAME)
            self.registered.add(number)
        return key

    def _start(self, name: str, command: Sequence[str], **switches: str) -> subprocess.Popen[bytes]:
        path = self.log(name)
        make_folder(path.parent)
        with path.open("ab") as log:
            log.write(f"\n--- {time.strftime('%Y-%m-%d %H:%M:%S')} {' '.join(command)}\n".encode())
            log.flush()
            return subprocess.Popen(
                command,
                env={**environment(self.folder / "home"), **switches, MARK: str(self.folder)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                start_new_session=True,  # a Ctrl-C at the terminal reaches us alone
            )

    def _wait_for_link(self, seconds: float = 60.0) -> None:
        """Until /health answers."""
        assert self.link is not None
        until = time.monotonic() + seconds
        while not answers(self.port, self.authority.root if self.tls else None):
            if self.link.poll() is not None:
                raise Failed(f"The SuperLink ended with code {self.link.returncode}: {self.last_words('superlink')}")
            if time.monotonic() > until:
                raise Failed(f"The SuperLink did not answer within {seconds:g} s: see {self.log('superlink')}")
            time.sleep(0.1)

    # Running an app.

    def submit(self, app: Path, settings: Settings) -> str:
        """Hand an app to the SuperLink with settings of this run; the number of the run."""
        file = self.folder / "run.toml"
        write(file, lines(settings))
        self.run = str(self.flwr("run", str(app), NAME, "--run-config", str(file))["run-id"])
        self._note()
        return self.run

    def verdict(self, run: str | None = None) -> tuple[str, str]:
        """The run's state (`running`, `finished:completed`, `finished:failed`, ...) and why; `flwr run` ends with exit
        code 0 even if the run fails."""
        listed = self.flwr("list", NAME, "--run-id", run or self.run)["runs"]
        return (str(listed[0]["status"]), str(listed[0].get("status-details") or "")) if listed else ("unknown", "")

    def flwr(self, *arguments: str) -> dict[str, Any]:
        """The result of one of Flower's commands, from its JSON."""
        process = self._call(*arguments, "--format", "json")
        try:
            result: dict[str, Any] = json.loads(process.stdout)
        except ValueError:
            result = {}
        if process.returncode or not result or result.get("success") is False:
            why = str(result.get("error-message") or process.stderr.strip() or process.stdout.strip())
            raise Failed(f"`flwr {' '.join(arguments[:2])}` failed: {' '.join(why.split())[-400:]}")
        return result

    def _call(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [program("flwr"), *arguments]
        options: Any = {"cwd": self.folder, "capture_output": True, "text": True, "timeout": ANSWER}
        try:
            return subprocess.run(command, check=False, env=environment(self.folder / "home"), **options)
        except subprocess.TimeoutExpired:
            raise Failed(f"`flwr {' '.join(arguments[:2])}` did not end within {ANSWER:g} s") from None

    def keep_server_log(self) -> Path:
        """What the ServerApp has printed, which the SuperLink holds, as a file beside the other logs."""
        process = self._call("log", self.run, NAME, "--show")
        write(self.log("serverapp"), process.stdout + process.stderr)
        return self.log("serverapp")

    def last_words(self, name: str) -> str:
        """The last line of a part's log, and where the log is."""
        path = self.log(name)
        written = [line.strip() for line in path.read_text(errors="replace").splitlines() if line.strip()]
        return f"{written[-1][-300:] if written else 'its log is empty'} (see {path})"

    # Watching and stopping.

    def online(self, number: int) -> bool:
        """Whether the SuperLink has let the node in."""
        return "SuperNode ID" in self.log(f"node-{number}").read_text(errors="replace")

    def dead(self) -> dict[str, int]:
        """Parts that have ended, with their exit codes."""
        parts = {"superlink": self.link, **{f"node-{number}": process for number, process in self.nodes.items()}}
        ended = {name: process.poll() for name, process in parts.items() if process is not None}
        return {name: code for name, code in ended.items() if code is not None}

    @property
    def serving(self) -> bool:
        """Whether the ServerApp's process runs."""
        for process in members(self.folder):
            with suppress(psutil.Error):  # it has just ended
                if process.name() == "flwr-serverapp":
                    return True
        return False

    def stop(self) -> None:
        """Stop everything; a second Ctrl-C kills instead of waiting, and leaves nothing behind either."""
        with undisturbed() as asked_again:
            if self.link is not None:  # first and at once: a server that saw its nodes go would count them as lost
                kill_family(self.link.pid)
            end(self.folder, hurry=asked_again.is_set)
            for started in [self.link, *self.nodes.values()]:
                if started is not None:
                    started.wait()
            self.nodes, self.link = {}, None
            if self.guard is not None:
                self.guard.communicate()  # closes its input, which ends it
                self.guard = None
            (self.folder / "running.json").unlink(missing_ok=True)

    def _claim(self) -> None:
        """One federation at a time in a folder; what a crash has left there is removed."""
        make_folder(self.folder)
        if (running := status(self.folder)) is not None:
            raise InputError(f"{self.folder}: a federation runs there already (process {running['pid']})")
        for stale in ("superlink.db", "superlink.db-wal", "superlink.db-shm"):
            (self.folder / stale).unlink(missing_ok=True)
        self._note()

    def _note(self) -> None:
        """Write for `status` what runs here."""
        noted = {
            "pid": os.getpid(),
            "born": psutil.Process().create_time(),
            "address": f"{HOST}:{self.port}",
            "tls": self.tls,
            "run": self.run,
            "superlink": self.link.pid if self.link else None,
            "nodes": {number: process.pid for number, process in self.nodes.items() if process.poll() is None},
        }
        write(self.folder / "running.json", json.dumps(noted))


def status(folder: Path) -> dict[str, Any] | None:
    """The federation that runs in a folder, None if none does."""
    try:
        noted: dict[str, Any] = json.loads((folder / "running.json").read_text())
        alive = psutil.Process(noted["pid"]).create_time() == noted["born"]
    except (OSError, ValueError, KeyError, psutil.Error):
        return None
    return noted if alive else None


def lines(settings: Settings) -> str:
    """Scalars as TOML, as Flower reads configurations from files (on a command line some values cannot be quoted)."""
    return "".join(f"{key} = {toml(value)}\n" for key, value in settings.items())
