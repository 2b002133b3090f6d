"""`pipecycle deploy node`: one SuperNode on this device, started again until the SuperLink lets it in."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attrs import frozen

from pipecycle.commands.live_machines import port_of
from pipecycle.deploy.local.loopback import SWITCHES, program, supernode
from pipecycle.deploy.node.settings import NodeSettings
from pipecycle.deploy.wire.settings import FOREIGN, PREFIX, ours
from pipecycle.errors import InputError, shown
from pipecycle.files import read_toml
from pipecycle.stopping import as_ctrl_c

NOT_LET_IN = b"Failed to activate SuperNode"
"""Flower's words (code 2004) for a key that is not registered, and also for a node that it still counts as online."""
NOT_YET = (
    "The SuperLink does not let this node in (code 2004). After a power cut it counts the node as online for up to a "
    "minute; if this goes on, the key is not registered, or is in use by another process."
)
SIGNATURE = (
    "The SuperNode ended by itself, as it does when the SuperLink does not accept its signature. Is this device's "
    "clock right? It may be at most 5 s fast or 5 minutes slow."
)
"""Where Flower says nothing but that it terminated gracefully, with exit code 0."""
PAUSE = 10.0
"""Seconds between two starts."""
GRACE = 10.0
"""Seconds for a SuperNode to sign off."""
LINUX = ctypes.CDLL(None) if sys.platform == "linux" else None


@frozen
class Device:
    """What a SuperNode is started with."""

    settings: Path
    superlink: str
    root: Path | None
    key: Path | None

    def environment(self, node: NodeSettings) -> dict[str, str]:
        """Ours unless the user says otherwise; Flower's files lie beside the ledger."""
        home = {"FLWR_HOME": str(Path(node.ledger).parent / "flower")} if node.ledger else {}
        ours = {key: value for key, value in SWITCHES.items() if key != "NO_PROXY"}
        path = f"{Path(program('flower-supernode')).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        return {**ours, **home, **os.environ, "PATH": path}

    def check(self) -> NodeSettings:
        """The node's settings; what is missing or wrong is found here rather than in a log of Flower's."""
        for path in (self.settings, self.root, self.key):
            if path is not None and not os.access(path, os.R_OK):
                raise InputError(f"{path}: cannot be read")
        if self.settings.suffix != ".toml":
            raise InputError(f"{self.settings}: needs the name of a .toml file, which is how Flower knows a file")
        if self.key is not None and self.root is None:
            raise InputError(f"--key {self.key}: needs --root, since Flower admits keys over TLS alone")
        port_of(self.superlink)
        values = self._values()
        node = NodeSettings.of(ours(values, strict=False), strict=any(key.startswith(PREFIX) for key in values))
        if node.data and not Path(node.data).exists():
            raise InputError(f"data = {node.data}: there is no such file or folder")
        return node

    def foreign(self) -> list[str]:
        """Keys that are none of our settings: those of a user's own app, or mistyped ones."""
        values = self._values()
        known = {*FOREIGN, *(ours(values, strict=False).keys() & NodeSettings.fields().keys())}
        return [key for key in values if key.removeprefix(PREFIX) not in known]

    def _values(self) -> dict[str, Any]:
        values = read_toml(self.settings)
        table: Any = values.pop("pipecycle", {})  # which Flower makes keys with our prefix
        if not isinstance(table, dict):
            raise InputError(f"{self.settings}: pipecycle = {shown(table)}: needs a table, [pipecycle]")
        return values | {PREFIX + key: value for key, value in table.items()}


def run_node(device: Device, say: Callable[[str], None]) -> int:
    """Run the SuperNode until it is stopped; its exit code if it ends for another reason than not being let in."""
    environment = device.environment(device.check())
    if keys := device.foreign():
        say(f"{device.settings}: {', '.join(keys)}: no setting of pipecycle's, left to an app of your own.")
    while True:
        code, refused = _run(supernode(device.superlink, device.settings, device.root, device.key), environment)
        if code and not refused:
            say(f"The SuperNode ended with code {code}.")
            return code
        say(f"{NOT_YET if refused else SIGNATURE} Trying again in {PAUSE:g} s.")
        time.sleep(PAUSE)


def _end_with_us() -> None:
    """Linux: the SuperNode is asked to sign off when this process is gone, however it died.  One that went on would
    keep the next start of the node from being let in.  (It runs in the new process before its program does, where
    threads are a danger; this calls no more than what is loaded already.)"""
    if LINUX is not None:
        LINUX.prctl(1, signal.SIGTERM, 0, 0, 0)  # PR_SET_PDEATHSIG


def _run(command: list[str], environment: dict[str, str]) -> tuple[int, bool]:
    """One start: its exit code, and whether it was not let in.  What it prints goes on to our own output."""
    refused = threading.Event()
    process = subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        preexec_fn=_end_with_us,  # noqa: PLW1509
    )

    def copy() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if NOT_LET_IN in line:
                refused.set()
            os.write(1, line)

    # Not to the end of its output: its SuperExec holds that open, and leaves only when the SuperNode was waited for.
    reader = threading.Thread(target=copy, daemon=True)
    reader.start()
    try:
        with as_ctrl_c():
            code = process.wait()
    except KeyboardInterrupt:
        process.terminate()
        try:
            process.wait(GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        raise
    reader.join(1.0)
    return code, code != 0 and refused.is_set()
