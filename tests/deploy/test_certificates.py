"""Certificates as a TLS handshake sees them, and keys that nobody else may read."""

from __future__ import annotations

import socket
import ssl
import stat
import threading
from pathlib import Path

import pytest

pytest.importorskip("cryptography")
pytestmark = pytest.mark.flower

from cryptography.hazmat.primitives.serialization import (  # noqa: E402
    load_ssh_private_key,
    load_ssh_public_key,
)

from pipecycle.deploy.local.certificates import Authority, make_authority, make_node_key  # noqa: E402
from pipecycle.errors import InputError  # noqa: E402


def handshake(server: Authority, root: Path, name: str) -> None:
    """A client that trusts `root` asks for `name`; raises what the client raises."""
    here = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    here.load_cert_chain(server.certificate, server.key)
    there = ssl.create_default_context(cafile=str(root))
    there.verify_flags |= ssl.VERIFY_X509_STRICT
    left, right = socket.socketpair()

    def serve() -> None:
        try:
            with here.wrap_socket(left, server_side=True) as served:
                served.recv(1)
        except (ssl.SSLError, OSError):
            pass

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with there.wrap_socket(right, server_hostname=name) as asked:
            asked.send(b"x")
    finally:
        right.close()
        thread.join()


def test_the_server_is_known_by_its_names_only(tmp_path: Path) -> None:
    authority = make_authority(tmp_path / "keys", ["localhost", "127.0.0.1", "fl.example.org"])
    for name in ("localhost", "127.0.0.1", "fl.example.org"):
        handshake(authority, authority.root, name)
    with pytest.raises(ssl.SSLCertVerificationError, match=r"mismatch|not valid for"):
        handshake(authority, authority.root, "other.example.org")
    with pytest.raises(ssl.SSLCertVerificationError, match=r"mismatch|not valid for"):
        handshake(authority, authority.root, "127.0.0.2")


def test_another_federation_is_not_trusted(tmp_path: Path) -> None:
    ours, theirs = make_authority(tmp_path / "ours"), make_authority(tmp_path / "theirs")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(theirs, ours.root, "localhost")


def test_secrets_are_for_their_owner_and_the_authority_is_forgotten(tmp_path: Path) -> None:
    authority = make_authority(tmp_path)
    make_node_key(tmp_path, 0)
    assert {path.name for path in tmp_path.iterdir()} == {"ca.crt", "server.crt", "server.key", "node-0", "node-0.pub"}
    for secret in (authority.key, tmp_path / "node-0"):
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600


def test_a_node_keeps_its_key(tmp_path: Path) -> None:
    path = make_node_key(tmp_path, 3)
    before = path.read_bytes()
    assert make_node_key(tmp_path, 3).read_bytes() == before
    private = load_ssh_private_key(before, None)
    public = load_ssh_public_key((tmp_path / "node-3.pub").read_bytes())
    assert private.public_key() == public
    assert make_node_key(tmp_path, 4).read_bytes() != before


def test_a_name_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="needs a host name or an address"):
        make_authority(tmp_path / "keys", ["mañana"])
    assert not list((tmp_path / "keys").iterdir())
