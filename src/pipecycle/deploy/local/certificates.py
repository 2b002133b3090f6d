"""Keys and certificates of a federation: an authority of its own, a server, and one key per node."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from attrs import frozen
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from pipecycle.errors import InputError
from pipecycle.files import reason, write

HERE = ("localhost", "127.0.0.1", "::1")
VALID = timedelta(days=365)
USAGES = (
    "digital_signature",
    "content_commitment",
    "key_encipherment",
    "data_encipherment",
    "key_agreement",
    "key_cert_sign",
    "crl_sign",
    "encipher_only",
    "decipher_only",
)


@frozen
class Authority:
    """The files of one folder: who may speak for the server, and how nodes recognise it."""

    folder: Path

    @property
    def root(self) -> Path:
        """What every node and every `flwr` command is given; not a secret."""
        return self.folder / "ca.crt"

    @property
    def certificate(self) -> Path:
        return self.folder / "server.crt"

    @property
    def key(self) -> Path:
        return self.folder / "server.key"

    @property
    def made(self) -> bool:
        return all(path.exists() for path in (self.root, self.certificate, self.key))


def make_authority(folder: Path, names: Iterable[str] = HERE) -> Authority:
    """An authority that signs one server certificate for `names`, and is then forgotten: its key is never written.

    Whoever wants other names makes another authority, so nothing that could sign for a stranger lies on a disk."""
    _make(folder)
    now = datetime.now(UTC)
    root_key, server_key = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    root = _begin("pipecycle federation", "pipecycle federation", root_key.public_key(), now)
    root = root.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    root = root.add_extension(_usage("key_cert_sign", "crl_sign"), critical=True)
    signed_root = root.sign(root_key, hashes.SHA384())
    server = _begin("SuperLink", "pipecycle federation", server_key.public_key(), now)
    server = server.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    server = server.add_extension(_usage("digital_signature"), critical=True)
    server = server.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    server = server.add_extension(x509.SubjectAlternativeName([_name(name) for name in names]), critical=False)
    server = server.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(root_key.public_key()), critical=False
    )
    made = Authority(folder)
    write(made.certificate, server.sign(root_key, hashes.SHA384()).public_bytes(serialization.Encoding.PEM))
    _secret(made.key, _private(server_key, serialization.PrivateFormat.PKCS8))
    write(made.root, signed_root.public_bytes(serialization.Encoding.PEM))
    return made


def make_node_key(folder: Path, node: int) -> Path:
    """A node's private key, with the public half beside it as `.pub`; an existing one is kept: it is the node's name.

    A node that comes back with the same key is the same node to the SuperLink."""
    path = folder / f"node-{node}"
    public = folder / f"node-{node}.pub"
    if path.exists() and public.exists():
        return path
    _make(folder)
    key = ec.generate_private_key(ec.SECP384R1())
    _secret(path, _private(key, serialization.PrivateFormat.OpenSSH))
    text = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    write(public, text + f" node-{node}\n".encode())
    return path


def _begin(subject: str, issuer: str, key: ec.EllipticCurvePublicKey, now: datetime) -> x509.CertificateBuilder:
    def named(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    made = x509.CertificateBuilder().subject_name(named(subject)).issuer_name(named(issuer)).public_key(key)
    made = made.serial_number(x509.random_serial_number())
    # Devices' clocks are not all right: an hour of grace.
    made = made.not_valid_before(now - timedelta(hours=1)).not_valid_after(now + VALID)
    return made.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)


def _usage(*allowed: str) -> x509.KeyUsage:
    return x509.KeyUsage(**{name: name in allowed for name in USAGES})


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


def _secret(path: Path, data: bytes) -> None:
    """A file that was never readable by anybody else, not even for a moment."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        partial.unlink(missing_ok=True)
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(data)
        partial.replace(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({reason(error)})") from None
    finally:
        partial.unlink(missing_ok=True)


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: cannot be made ({reason(error)})") from None
