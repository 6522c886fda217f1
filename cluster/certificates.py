"""A certificate authority for one cluster, and what it signs."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LIFETIME = datetime.timedelta(days=30)
CLOCK_SKEW = datetime.timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its private key, both PEM."""

    certificate: bytes
    key: bytes

    def write(self, folder: Path, name: str) -> tuple[Path, Path]:
        """The two files, NAME.crt and NAME.key; nobody else may read the key."""
        return write_file(folder / f"{name}.crt", self.certificate), write_file(folder / f"{name}.key", self.key)


class Authority:
    """A certificate authority that lives as long as this process; its key can be written for the controller manager."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _subject("batchgrowth test cluster", ())
        critical = x509.BasicConstraints(ca=True, path_length=0)
        certificate = _unsigned(self._name, self._name, self._key).add_extension(critical, critical=True)
        self._certificate = certificate.sign(self._key, hashes.SHA256())
        self.pair = Pair(self._certificate.public_bytes(serialization.Encoding.PEM), _pem(self._key))

    def client(self, name: str, *groups: str) -> Pair:
        """Who a user is: the common name, and the organisations as groups."""
        return self._signed(name, groups, (), ExtendedKeyUsageOID.CLIENT_AUTH)

    def server(self, name: str, *reached_as: str) -> Pair:
        """A server that is reached under these addresses and names."""
        return self._signed(name, (), reached_as, ExtendedKeyUsageOID.SERVER_AUTH)

    def _signed(self, name: str, groups: Sequence[str], reached_as: Sequence[str], use: x509.ObjectIdentifier) -> Pair:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _unsigned(_subject(name, groups), self._name, key)
        builder = builder.add_extension(x509.ExtendedKeyUsage([use]), critical=False)
        if reached_as:
            names = x509.SubjectAlternativeName([_alternative(each) for each in reached_as])
            builder = builder.add_extension(names, critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        return Pair(certificate.public_bytes(serialization.Encoding.PEM), _pem(key))


def signing_key() -> bytes:
    """A private key, PEM, that signs the tokens of service accounts."""
    return _pem(ec.generate_private_key(ec.SECP256R1()))


def write_file(path: Path, content: bytes) -> Path:
    """The file, readable by its owner alone."""
    path.touch(mode=0o600)
    path.write_bytes(content)
    return path


def _subject(name: str, groups: Sequence[str]) -> x509.Name:
    parts = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    return x509.Name([*parts, x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _unsigned(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + LIFETIME)
    )


def _alternative(reached_as: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(reached_as))
    except ValueError:
        return x509.DNSName(reached_as)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
