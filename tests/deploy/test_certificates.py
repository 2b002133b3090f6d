"""Certificates as a TLS handshake sees them, and keys that nobody else may read."""

from __future__ import annotations

import json
import os
import socket
import ssl
import stat
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from subprocess import CompletedProcess

import pytest

pytest.importorskip("cryptography")
pytestmark = pytest.mark.flower

from cryptography.hazmat.primitives.serialization import (  # noqa: E402
    load_ssh_private_key,
    load_ssh_public_key,
)

from pipecycle.deploy.local import certificates  # noqa: E402
from pipecycle.deploy.local.certificates import Authority, make_authority, make_node_key  # noqa: E402
from pipecycle.errors import InputError  # noqa: E402

Deploy = Callable[..., CompletedProcess[str]]


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
    for name in ("mañana", "a b", "http://h", "h:80", "a..b", "[::1]", "10.0.0.0/8", "1.2.3", "-x", "h\n", "h" * 300):
        with pytest.raises(InputError, match="needs a host name or an address"):
            make_authority(tmp_path / "keys", [name])
    assert not (tmp_path / "keys").exists()


# Keys for life: `pipecycle deploy keys` again, and `deploy status`.


@pytest.fixture
def keys(tmp_path: Path, deploy: Deploy) -> Path:
    done = deploy("keys", "keys", "--host", "fl.example.org", "--nodes", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "keys-authority.key, which belongs on no device or server" in done.stdout
    return tmp_path / "keys"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_authority_s_key_lies_outside_what_is_copied(keys: Path, deploy: Deploy) -> None:
    kept = keys.parent / "keys-authority.key"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert {path.name for path in keys.parent.iterdir()} == {"keys", kept.name}
    assert kept.read_bytes() not in contents(keys).values()
    inside = deploy("keys", "more", "--authority", "more/ca.key", cwd=keys.parent)
    assert inside.returncode == 2
    assert "--authority more/ca.key: lies in more, which is copied to devices" in inside.stderr
    assert not (keys.parent / "more").exists()


def test_nodes_are_added_and_nobody_s_key_changes(keys: Path, deploy: Deploy) -> None:
    (keys / "node-0").unlink()  # moved to its device
    (keys / "node-1.pub").unlink()  # as after a crash between the two
    before = contents(keys)
    done = deploy("keys", "keys", "--nodes", "4", "--json", cwd=keys.parent)
    after = contents(keys)
    assert {name: after[name] for name in before} == before
    assert after.keys() - before.keys() == {"node-1.pub", "node-2", "node-2.pub", "node-3", "node-3.pub"}
    assert json.loads(done.stdout)["files"] == [f"keys/node-{node}" for node in (1, 2, 3)]
    for node in (1, 2, 3):
        private = load_ssh_private_key(after[f"node-{node}"], None)
        assert private.public_key() == load_ssh_public_key(after[f"node-{node}.pub"])


def test_a_renewed_certificate_is_trusted_by_devices_as_they_are(keys: Path, deploy: Deploy) -> None:
    authority, before = Authority(keys), contents(keys)
    done = deploy("keys", "keys", "--renew", cwd=keys.parent)
    assert "The SuperLink needs server.crt of keys" in done.stdout
    assert "Devices keep their ca.crt." in done.stdout
    after = contents(keys)
    assert [name for name in before if after[name] != before[name]] == ["server.crt"]
    for name in ("localhost", "::1", "fl.example.org"):
        handshake(authority, authority.root, name)
    deploy("keys", "keys", "--renew", "--host", "other.example.org", cwd=keys.parent)
    handshake(authority, authority.root, "other.example.org")
    with pytest.raises(ssl.SSLCertVerificationError, match=r"mismatch|not valid for"):
        handshake(authority, authority.root, "fl.example.org")


def test_certificates_that_end(keys: Path, deploy: Deploy, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's end first; then, years later, the authority's."""
    authority = Authority(keys)

    def status() -> str:
        return deploy("status", "--keys", "keys", cwd=keys.parent).stdout

    assert status().startswith("Certificates in keys are valid, the server's until 20")
    for hours, words in ((29.5 * 24, ", in 29 days: `"), (-0.5, "expired on 20")):
        monkeypatch.setattr(certificates, "VALID", timedelta(hours=hours))
        deploy("keys", "keys", "--renew", cwd=keys.parent)
        assert status().startswith("The server's certificate in keys exp")
        assert words in status()
        assert "`pipecycle deploy keys keys --renew` makes a new one." in status()
    with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        handshake(authority, authority.root, "localhost")
    monkeypatch.undo()
    deploy("keys", "keys", "--renew", cwd=keys.parent)
    handshake(authority, authority.root, "localhost")
    old = authority.root.rename(keys.parent / "device-ca.crt")
    monkeypatch.setattr(certificates, "ROOT_VALID", timedelta(days=90))
    deploy("keys", "again", "--authority", "keys-authority.key", cwd=keys.parent)  # signs for another folder too
    again = Authority(keys.parent / "again")
    handshake(again, old, "localhost")
    monkeypatch.undo()
    done = deploy("keys", "again", "--renew", "--authority", "keys-authority.key", cwd=keys.parent)
    assert "Devices need the new ca.crt too." in done.stdout
    assert again.lasts
    handshake(again, again.root, "localhost")
    handshake(again, old, "localhost")


def test_what_cannot_be_done_is_one_sentence_and_changes_nothing(keys: Path, deploy: Deploy) -> None:
    before = contents(keys)
    (keys.parent / "none").mkdir()
    (keys.parent / "text").write_text("no key")
    (keys.parent / "loop").symlink_to("loop")
    os.mkfifo(keys.parent / "pipe")
    make_authority(keys.parent / "foreign", kept=keys.parent / "foreign.key")
    for arguments, words in {
        "keys keys": "has certificates already, so nothing is written (--nodes adds nodes, --renew makes",
        "keys keys --nodes 2": "--nodes 2: keys has keys for this many nodes already",
        "keys keys --nodes 10001": "--nodes 10001: needs 0 to 10,000",
        "keys keys --host b.example.org": "keys has a certificate for localhost, 127.0.0.1, ::1, fl.example.org (",
        "keys none --renew": "--renew: none has no certificates so far",
        "keys keys --renew --authority gone": "gone: is not there, and nothing else can sign for keys/ca.crt",
        "keys keys --renew --authority text": "text: is not a private key that can be read",
        "keys keys --renew --authority foreign.key": "foreign.key: is not the key of keys/ca.crt",
        "keys keys --renew --authority pipe": "pipe: cannot be read (it is a device or a pipe",
        "keys keys --renew --authority loop": "loop: ",
        "keys new --authority no/key": "no/key: cannot be written (no is not a folder)",
        "keys loop": "loop: ",
        "keys /": "/: is the whole disk, needs a folder for keys",
        "status --keys none": "--keys none: has no certificates (`pipecycle deploy keys none` makes them)",
        "status": "live: nothing runs or has run there",
    }.items():
        done = deploy(*arguments.split(), cwd=keys.parent)
        assert done.returncode == 2, arguments
        assert words in done.stderr, arguments
        assert len(done.stderr.splitlines()) == 1
    assert contents(keys) == before
    assert not (keys.parent / "new").exists()
    assert not list((keys.parent / "none").iterdir())
    (keys / "server.crt").write_text("damaged")
    done = deploy("status", "--keys", "keys", cwd=keys.parent)
    assert "keys/server.crt: is not a certificate that can be read" in done.stderr
