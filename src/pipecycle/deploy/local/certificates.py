"""Keys and certificates of a federation: an authority of its own, a server, and one key per node."""

from __future__ import annotations

import inspect
import ipaddress
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from attrs import Factory, field, frozen
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from pipecycle.deploy.local.loopback import make_folder
from pipecycle.errors import InputError
from pipecycle.files import write

HERE = ("localhost", "127.0.0.1", "::1")
VALID = timedelta(days=365)
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
        return all(path.exists() for path in (self.root, self.certificate, self.key))


def make_authority(folder: Path, names: Iterable[str] = HERE) -> Authority:
    """An authority that signs one server certificate for `names`.  Its key is never written, so that nothing on disk
    can sign for a stranger; other names need another authority."""
    authority = Authority(make_folder(folder))
    alternatives = x509.SubjectAlternativeName([_name(name) for name in names])
    root_key, server_key = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(root_key.public_key())
    root = _begin("pipecycle federation", root_key, ca=True, usages=("key_cert_sign", "crl_sign"))
    server = _begin("SuperLink", server_key, ca=False, usages=("digital_signature",))
    for extension in (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), alternatives, issuer):
        server = server.add_extension(extension, critical=False)
    write(authority.certificate, _signed(server, root_key))
    write(authority.key, _private(server_key, serialization.PrivateFormat.PKCS8), mode=SECRET)
    write(authority.root, _signed(root, root_key))
    return authority


def make_node_key(folder: Path, node: int) -> Path:
    """A node's private key, with the public half beside it as `.pub`.  An existing key is kept: a node that comes back
    with the same key is the same node to the SuperLink."""
    path, public = folder / f"node-{node}", folder / f"node-{node}.pub"
    if path.exists() and public.exists():
        return path
    make_folder(folder)
    key = ec.generate_private_key(ec.SECP384R1())
    write(path, _private(key, serialization.PrivateFormat.OpenSSH), mode=SECRET)
    text = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    write(public, text + f" node-{node}\n".encode())
    return path


def _begin(
    subject: str, key: ec.EllipticCurvePrivateKey, *, ca: bool, usages: tuple[str, ...]
) -> x509.CertificateBuilder:
    def named(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    public, now = key.public_key(), datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(named(subject)).issuer_name(named("pipecycle federation"))
    builder = builder.public_key(public).serial_number(x509.random_serial_number())
    # An hour of grace for devices whose clocks are wrong.
    builder = builder.not_valid_before(now - timedelta(hours=1)).not_valid_after(now + VALID)
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
    try:
        return x509.DNSName(text)
    except ValueError:
        raise InputError(f"name {text!r}: needs a host name or an address") from None


def _private(key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> bytes:
    data: bytes = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    return data
