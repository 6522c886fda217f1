"""A certificate authority for each job, and one certificate that its scheduler, workers and trainer share."""

import base64
from collections.abc import Mapping
from datetime import datetime, timedelta

from batchgrowth import names
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from batchgrowth_operator.seen.observed import Credentials, Object

LIFE = timedelta(days=730)
"""Validity of a certificate: twice the longest active deadline of a job."""
RENEWED_BEFORE_END = timedelta(days=90)
CLOCK_SKEW = timedelta(hours=1)
"""Largest difference between two machines' clocks."""
KEYS = ("ca.crt", "ca.key", "tls.crt", "tls.key")

PrivateKey = ec.EllipticCurvePrivateKey


def issue(job: str, namespace: str, now: datetime, previous: Object | None = None) -> Credentials:
    """A new certificate, signed by the previous Secret's authority if that is valid long enough, else by a new one.

    With the same authority, processes with the old certificate can still talk to those with the new one.
    """
    authority = _authority_of(previous, now) or _new_authority(job, now)
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = _certificate(job, namespace, now, key, authority)
    pem = {
        "ca.crt": _pem(authority[0]),
        "ca.key": _key_pem(authority[1]),
        "tls.crt": _pem(certificate),
        "tls.key": _key_pem(key),
    }
    return Credentials(pem=pem)


def is_fresh(secret: Object, now: datetime) -> bool:
    """Whether the Secret has all keys, and matching certificates that do not expire soon."""
    try:
        pem = _decoded(secret)
        authority, certificate = (x509.load_pem_x509_certificate(pem[name]) for name in ("ca.crt", "tls.crt"))
        certificate.verify_directly_issued_by(authority)
        key = serialization.load_pem_private_key(pem["tls.key"], None)
        ends = min(authority.not_valid_after_utc, certificate.not_valid_after_utc)
    except (KeyError, ValueError, TypeError, InvalidSignature):
        return False
    return key.public_key() == certificate.public_key() and now + RENEWED_BEFORE_END < ends


def _new_authority(job: str, now: datetime) -> tuple[x509.Certificate, PrivateKey]:
    key, name = ec.generate_private_key(ec.SECP256R1()), _name(f"batchgrowth {job}")
    builder = _builder(name, name, key, now).add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    return builder.sign(key, hashes.SHA256()), key


def _authority_of(secret: Object | None, now: datetime) -> tuple[x509.Certificate, PrivateKey] | None:
    if secret is None:
        return None
    try:
        pem = _decoded(secret)
        certificate = x509.load_pem_x509_certificate(pem["ca.crt"])
        key = serialization.load_pem_private_key(pem["ca.key"], None)
    except (KeyError, ValueError, TypeError):
        return None
    fits = isinstance(key, PrivateKey) and key.public_key() == certificate.public_key()
    lives = now + RENEWED_BEFORE_END < certificate.not_valid_after_utc
    return (certificate, key) if fits and lives and isinstance(key, PrivateKey) else None


def _certificate(
    job: str, namespace: str, now: datetime, key: PrivateKey, authority: tuple[x509.Certificate, PrivateKey]
) -> x509.Certificate:
    service = f"{names.scheduler(job)}.{namespace}"
    hosts = [names.scheduler(job), service, f"{service}.svc", f"{service}.svc.cluster.local", "localhost"]
    usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    return (
        _builder(_name(job), authority[0].subject, key, now, authority[0].not_valid_after_utc)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host) for host in hosts]), critical=False)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .sign(authority[1], hashes.SHA256())
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: PrivateKey, now: datetime, latest: datetime | None = None
) -> x509.CertificateBuilder:
    end = now + LIFE
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(min(end, latest) if latest else end)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _decoded(secret: Object) -> Mapping[str, bytes]:
    data = secret.get("data") or {}
    return {name: base64.b64decode(data[name], validate=True) for name in KEYS}


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _key_pem(key: PrivateKey) -> str:
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()
