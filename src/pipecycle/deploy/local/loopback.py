"""What Flower's programs need on this machine: their paths, a private environment, free ports."""

from __future__ import annotations

import os
import random
import shutil
import socket
import ssl
import sys
import urllib.request
from pathlib import Path

from pipecycle.errors import InputError

HOST = "127.0.0.1"
SWITCHES = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # on every system: Ray then listens on loopback alone
    "OMP_NUM_THREADS": "1",  # convolution gradients differ in bits between one thread and two
    "PYTHONUNBUFFERED": "1",
    "NO_PROXY": "*",
}
PORTS = range(20_000, 32_000)
"""Below the range that systems take for outgoing connections, so that a free one stays free."""


class Failed(RuntimeError):
    """A part of the federation failed; the sentence says which, and where its log is."""


def environment(home: Path) -> dict[str, str]:
    """For every process of a federation, without the user's own Flower settings and proxies."""
    kept = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith("FLWR_") and not key.lower().endswith("_proxy")
    }
    path = os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", os.defpath)])
    return {**kept, **SWITCHES, "FLWR_HOME": str(home), "PATH": path}


def program(name: str) -> str:
    """One of Flower's programs: beside this Python, or on the path."""
    beside = Path(sys.executable).parent / name
    path = str(beside) if beside.exists() else shutil.which(name)
    if path is None:
        raise InputError(f"{name}: is not installed, pip install 'pipecycle[flower]'")
    return path


def supernode(superlink: str, settings: Path, root: Path | None, key: Path | None) -> list[str]:
    """The command of a SuperNode, a new one for every start: the port of its own processes may have been taken."""
    command = [program("flower-supernode"), "--superlink", superlink, "--host", HOST, "--port", str(free_port())]
    command += ["--node-config", str(settings)]
    if root is None:
        return [*command, "--insecure"]
    command += ["--root-certificates", str(root)]
    return command if key is None else [*command, "--auth-supernode-private-key", str(key)]


def free_port() -> int:
    """A port on loopback that is not in use."""
    for port in random.SystemRandom().sample(PORTS, 100):
        with socket.socket() as tried:
            try:
                tried.bind((HOST, port))
            except OSError:
                continue
            return port
    raise Failed(f"No free port between {PORTS.start} and {PORTS.stop}")


def answers(port: int, root: Path | None) -> bool:
    """Whether a SuperLink on loopback is ready; over TLS if it has a root certificate."""
    trust = [] if root is None else [urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=str(root)))]
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), *trust)
    try:
        with opener.open(f"http{'s' if root else ''}://{HOST}:{port}/health", timeout=2):
            return True
    except OSError:
        return False
