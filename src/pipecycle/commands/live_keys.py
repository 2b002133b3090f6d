"""`pipecycle deploy keys`: the certificates and keys of a federation on several machines, and until when they last."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from attrs import frozen

from pipecycle.commands.live_app import quoted
from pipecycle.deploy.local.certificates import HERE, SOON, Authority, make_authority, make_node_key
from pipecycle.errors import InputError
from pipecycle.files import writable
from pipecycle.words import some

FIRST = 4
"""Nodes of a new folder, if their number is not given."""


@frozen
class Keys:
    """A folder of keys, and the authority's own key, which lies outside it."""

    folder: Path
    kept: Path

    @staticmethod
    def of(folder: Path, kept: Path | None) -> Keys:
        whole = Path(os.path.realpath(folder))  # which allows for loops of links
        named = folder if folder.name.strip(".") else whole
        if not named.name:
            raise InputError(f"{folder}: is the whole disk, needs a folder for keys")
        kept = kept or named.with_name(f"{named.name}-authority.key")
        if Path(os.path.realpath(kept)).is_relative_to(whole):
            raise InputError(f"--authority {kept}: lies in {folder}, which is copied to devices; needs another place")
        return Keys(folder, kept)

    @property
    def authority(self) -> Authority:
        return Authority(self.folder)

    def make(self, hosts: Sequence[str], nodes: int | None, *, renew: bool) -> tuple[list[Path], list[str]]:
        """Make keys, add nodes or renew: the files that are new, and what to do with them."""
        folder, made = self.folder, self.authority.made
        if renew and not made:
            raise InputError(f"--renew: {folder} has no certificates so far (leave out --renew to make them)")
        if made and not renew and hosts:
            has = f"{folder} has a certificate for {', '.join(self.authority.names)}"
            raise InputError(f"--host {hosts[0]}: {has} (--renew makes one for other names)")
        if made and not renew and nodes is None:
            how = "--nodes adds nodes, --renew makes a new server certificate"
            raise InputError(f"{folder}: has certificates already, so nothing is written ({how})")
        wanted = range(nodes if nodes is not None else 0 if made else FIRST)
        added = [node for node in wanted if not (folder / f"node-{node}.pub").exists()]
        if made and not renew and not added:
            raise InputError(f"--nodes {nodes}: {folder} has keys for this many nodes already, so nothing is written")
        files, lines = ([], []) if made and not renew else self._sign(hosts)
        files += [make_node_key(folder, node) for node in added]
        if added:
            lines += [
                f"New in {folder}: {some([f'node-{node}' for node in added], 3)}.",
                "Node N needs ca.crt and node-N, and `flwr supernode register node-N.pub NAME` admits it.",
            ]
        return files, [*lines, f"Secrets: node-N, server.key and {self.kept}, which belongs on no device or server."]

    def _sign(self, hosts: Sequence[str]) -> tuple[list[Path], list[str]]:
        """A server certificate, and before it whatever it needs that is not there."""
        authority, made = self.authority, self.authority.made
        if authority.root.exists() and not self.kept.exists():
            raise InputError(
                f"{self.kept}: is not there, and nothing else can sign for {authority.root} (move ca.crt away to make "
                f"another authority, whose ca.crt every device needs; the nodes' keys stay)"
            )
        if not self.kept.exists():
            writable(self.kept)
        files = (authority.root, authority.certificate, authority.key)
        before = [path.read_bytes() if path.exists() else b"" for path in files]
        make_authority(self.folder, [*HERE, *hosts] if hosts or not made else authority.names, self.kept)
        new = [path for path, data in zip(files, before, strict=True) if path.read_bytes() != data]
        names, until = ", ".join(path.name for path in new), authority.expiry["server"]
        lines = [f"The SuperLink needs {names} of {self.folder}: valid until {until:%Y-%m-%d}."]
        if made:
            devices = "Devices need the new ca.crt too" if authority.root in new else "Devices keep their ca.crt"
            lines.append(f"It reads them when it starts. {devices}.")
        return new, lines


def validity(authority: Authority, *, local: bool) -> tuple[str, bool]:
    """Until when certificates are valid, and whether that is soon or over.  Those of `deploy up` (`local`) are nobody
    else's, and are made again."""
    folder, expiry = authority.folder, authority.expiry
    name, until = min(expiry.items(), key=lambda item: item[1])
    left = until - datetime.now(UTC)
    if left > SOON:
        ends = ", ".join(f"the {name}'s until {until:%Y-%m-%d}" for name, until in expiry.items())
        return f"Certificates in {folder} are valid, {ends}.", False
    when = f"expires on {until:%Y-%m-%d}, in {left.days} days" if left.days >= 0 else f"expired on {until:%Y-%m-%d}"
    how = "the next `pipecycle deploy up` makes" if local else f"`pipecycle deploy keys {quoted(folder)} --renew` makes"
    return f"The {name}'s certificate in {folder} {when}: {how} a new one.", True
