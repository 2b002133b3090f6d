"""Keys and certificates of a federation: an authority of its own, a server, and one key per node."""

from __future__ import annotations

import inspect
import ipaddress
import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from attrs import Factory, field, frozen
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from pipecycle.errors import InputError, shown
from pipecycle.files import make_folder, reading, write

LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
"""Of a host name, between its dots."""
HERE = ("localhost", "127.0.0.1", "::1")
VALID = timedelta(days=365)
"""For the server's certificate."""
ROOT_VALID = timedelta(days=3650)
"""For the authority's, which lies on every device."""
SOON = timedelta(days=30)
"""Before the end, certificates should be renewed."""
SECRET = 0o600
"""Permissions of private keys."""
USAGES = list(inspect.signature(x509.KeyUsage).parameters)


@frozen
class Authority:
    """The files in one folder by which nodes recognise the server."""

    folder: Path
    root: Path = field(init=False, default=Factory(lambda self: self.folder / "ca.crt", takes_self=True))
    """For every node and every `flwr` command; not a secret."""
    certificate: Path = field(init=False, default=Factory(lambda self: self.folder / "server.crt", takes_self=True))
    key: Path = field(init=False, default=Factory(lambda self: self.folder / "server.key", takes_self=True))

    @property
    def made(self) -> bool:
        return self.root.exists() and self.certificate.exists()

    @property
    def expiry(self) -> dict[str, datetime]:
        """The end of each certificate."""
        files = {"server": self.certificate, "authority": self.root}
        return {name: _certificate(path).not_valid_after_utc for name, path in files.items()}

    @property
    def lasts(self) -> bool:
        """Whether the certificates are there and need not be renewed soon."""
        return self.made and min(self.expiry.values()) > datetime.now(UTC) + SOON

    @property
    def names(self) -> list[str]:
        """By which nodes may reach the server."""
        names = _certificate(self.certificate).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        return [str(name.value) for name in names]


def make_authority(folder: Path, names: Iterable[str] = HERE, kept: Path | None = None) -> Authority:
    """An authority that signs a server certificate for `names`.

    With `kept`, its private key is in that file.  A key that is there signs again: who has its `ca.crt` trusts the new
    certificate as well.  Without `kept` it is forgotten, so that nothing on disk can sign for a stranger."""
    authority = Authority(folder)
    alternatives = x509.SubjectAlternativeName([_name(name) for name in names])
    root = _certificate(authority.root) if kept is not None and authority.root.exists() else None
    root_key = _new() if kept is None or (root is None and not kept.exists()) else _key(kept)
    if root is not None and root.public_key() != root_key.public_key():
        raise InputError(f"{kept}: is not the key of {authority.root}")
    server_key = _key(authority.key) if authority.key.exists() else _new()
    server = _begin("SuperLink", server_key, VALID, ca=False, usages=("digital_signature",))
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(root_key.public_key())
    for extension in (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), alternatives, issuer):
        server = server.add_extension(extension, critical=False)
    make_folder(folder)
    for path, key in ((kept, root_key), (authority.key, server_key)):
        if path is not None and not path.exists():
            write(path, _private(key, serialization.PrivateFormat.PKCS8), mode=SECRET)
    write(authority.certificate, _signed(server, root_key))
    if root is None or root.not_valid_after_utc < datetime.now(UTC) + VALID:
        new = _begin("pipecycle federation", root_key, ROOT_VALID, ca=True, usages=("key_cert_sign", "crl_sign"))
        write(authority.root, _signed(new, root_key))
    return authority


def make_node_key(folder: Path, node: int) -> Path:
    """A node's private key, with the public half beside it as `.pub`.  An existing key is kept, also where only the
    public half is left: a node that comes back with the same key is the same node to the SuperLink."""
    path, public = folder / f"node-{node}", folder / f"node-{node}.pub"
    if public.exists():
        return path
    if not path.exists():
        write(make_folder(folder) / path.name, _private(_new(), serialization.PrivateFormat.OpenSSH), mode=SECRET)
    key = _read(path, lambda data: serialization.load_ssh_private_key(data, None), "a node's key").public_key()
    text = key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    write(public, text + f" node-{node}\n".encode())
    return path


def _begin(
    subject: str, key: ec.EllipticCurvePrivateKey, valid: timedelta, *, ca: bool, usages: tuple[str, ...]
) -> x509.CertificateBuilder:
    def named(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    public, now = key.public_key(), datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(named(subject)).issuer_name(named("pipecycle federation"))
    builder = builder.public_key(public).serial_number(x509.random_serial_number())
    # An hour of grace for devices whose clocks are wrong.
    builder = builder.not_valid_before(now - timedelta(hours=1)).not_valid_after(now + valid)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=ca, path_length=0 if ca else None), critical=True)
    return builder.add_extension(x509.KeyUsage(**{name: name in usages for name in USAGES}), critical=True)


def _signed(builder: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey) -> bytes:
    signed: bytes = builder.sign(key, hashes.SHA384()).public_bytes(serialization.Encoding.PEM)
    return signed


def _name(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        pass
    labels = text.removesuffix(".").removeprefix("*.").split(".")
    if len(text) > 253 or labels[-1].isdigit() or not all(LABEL.fullmatch(label) for label in labels):
        raise InputError(f"name {shown(text)!r}: needs a host name or an address, without a port")
    return x509.DNSName(text)


def _new() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP384R1())


def _private(key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> bytes:
    data: bytes = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    return data


def _key(path: Path) -> ec.EllipticCurvePrivateKey:
    return _read(path, lambda data: serialization.load_pem_private_key(data, None), "a private key")


def _certificate(path: Path) -> x509.Certificate:
    return _read(path, x509.load_pem_x509_certificate, "a certificate")


def _read(path: Path, load: Callable[[bytes], Any], what: str) -> Any:
    try:
        with reading(path):
            return load(path.read_bytes())
    except InputError:
        raise
    except (ValueError, TypeError):  # damaged, or with a passphrase
        raise InputError(f"{path}: is not {what} that can be read") from None
