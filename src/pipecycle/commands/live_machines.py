"""Files that keep a federation running on machines of its own: systemd units or a compose file, and a file per node."""

from __future__ import annotations

import re
from pathlib import Path

from pipecycle.deploy.local.loopback import SWITCHES
from pipecycle.errors import InputError, shown
from pipecycle.files import make_folder, write
from pipecycle.runs.config import toml

LONGEST_NAME, MOST_PORT = 253, 65_535
"""Of a host, and of ports."""
FOLDER = "machines"
HOME, KEYS, STATE = "/opt/pipecycle", "/etc/pipecycle", "/var/lib/pipecycle"
LINK = """\
flower-superlink --host 0.0.0.0 --port {port} --database {state}/superlink.db --enable-supernode-auth \
--ssl-ca-certfile ca.crt --ssl-certfile server.crt --ssl-keyfile server.key"""
NODE = "pipecycle deploy node node-{n}.toml --superlink {address} --root ca.crt --key node-{n}"

UNIT = """\
# {note}
[Unit]
Description={about}
Wants=network-online.target
After=network-online.target

[Service]
User=pipecycle
WorkingDirectory={keys}
StateDirectory=pipecycle
Environment={environment}
ExecStart={home}/bin/{command}
Restart=always
RestartSec=5

[Install]
WantedBy=multi-user.target
"""

COMPOSE = """\
# The server: docker compose up -d superlink.  Device 3: NODE=3 docker compose up -d node.
services:
  superlink:
    build: .
    command: {link}
    ports: ["{port}:{port}"]
    environment: {environment}
    working_dir: {keys}
    volumes: ["./keys:{keys}:ro", "state:{state}"]
    init: true
    restart: always
  node:
    build: .
    command: {node}
    environment: {environment}
    working_dir: {keys}
    volumes: ["./keys:{keys}:ro", "state:{state}"]
    init: true
    restart: always
volumes:
  state:
"""

IMAGE = """\
FROM python:3.11-slim
RUN pip install --no-cache-dir 'pipecycle[flower]'
"""

SETTINGS = """\
# Node {n}: a gauge or data of its own go here too; see docs/deploy.md.
partition-id = {n}
ledger = {ledger}
"""


def port_of(address: str) -> str:
    """The port of a SuperLink, refused unless a unit can name it."""
    host, _, port = address.rpartition(":")
    named = re.fullmatch(r"\[[0-9A-Fa-f:.]+\]|\w[\w.-]*", host, re.ASCII) is not None and len(host) <= LONGEST_NAME
    if not named or re.fullmatch(r"[1-9]\d{0,4}", port, re.ASCII) is None or int(port) > MOST_PORT:
        raise InputError(
            f"--superlink {shown(address)}: needs HOST:PORT, such as fl.example.org:8000, and a port up to {MOST_PORT}"
        )
    return port


def write_machines(folder: Path, kind: str, address: str, nodes: int) -> list[Path]:
    """The files for a SuperLink at `address` and its nodes, in a folder of their own within the app's."""
    port = port_of(address)
    switches = {key: SWITCHES[key] for key in SWITCHES if key.startswith("FLWR_")}
    environment = {**switches, "FLWR_HOME": f"{STATE}/flower", "PIPECYCLE_CACHE": f"{STATE}/cache"}
    link = LINK.format(port=port, state=STATE)
    texts = {f"node-{n}.toml": SETTINGS.format(n=n, ledger=toml(f"{STATE}/ledger-{n}.json")) for n in range(nodes)}
    common = {"keys": KEYS, "state": STATE, "home": HOME, "port": port}
    if kind == "systemd":
        environment["PATH"] = f"{HOME}/bin:/usr/local/bin:/usr/bin:/bin"  # Flower's programs start each other by name
        plain = " ".join(f"{key}={value}" for key, value in environment.items())
        for name, note, about, command in (
            ("superlink.service", "On the server.", "pipecycle SuperLink", link),
            (
                "node@.service",
                "On a device: `systemctl enable --now pipecycle-node@3` starts node 3.",
                "pipecycle node %i",
                NODE.format(n="%i", address=address),
            ),
        ):
            text = UNIT.format(note=note, about=about, command=command, environment=plain, **common)
            texts[f"pipecycle-{name}"] = text
    else:
        pairs = "{" + ", ".join(f'{key}: "{value}"' for key, value in environment.items()) + "}"
        node = NODE.format(n="${NODE:-0}", address=address)
        texts["compose.yaml"] = COMPOSE.format(link=link, node=node, environment=pairs, **common)
        texts["Dockerfile"] = IMAGE
    home = make_folder(folder / FOLDER)
    for name, text in texts.items():
        write(home / name, text)
    return [home / name for name in texts]
