"""The TLS certificates of a job's pods: an authority and a certificate, and their renewal before they expire.

They are made while a pass observes (`Observer._renewed` in api/observe.py), and kept in two Secrets
(children/config.py). Pods mount one of them, with the certificate and every authority that they should trust
(DASK_ENVIRONMENT in children/pods.py); the other has the authority's key. The two Secrets and the clock alone determine
what is written. A new authority that replaces another is at first only trusted; it signs when the next certificate is
due, at least a day later, when every pod has reloaded.
"""

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from batchgrowth import names
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from batchgrowth_operator.seen.observed import Object, TlsSecrets

AUTHORITY_LIFE = timedelta(days=365)
"""Life of an authority."""
CERTIFICATE_LIFE = timedelta(days=30)
"""Life of a certificate."""
CLOCK_SKEW = timedelta(hours=1)
"""Largest difference between two machines' clocks."""
AUTHORITY_RENEWED_BEFORE_END = timedelta(days=90)
"""Time before its end at which an authority is replaced: three lives of a certificate, so that none is cut short."""
CERTIFICATE_RENEWED_BEFORE_END = timedelta(days=10)
"""Time before its end at which a certificate is replaced."""
TRUSTED_BEFORE_SIGNING = timedelta(days=1)
"""Time in which pods reload the authorities; kubelet and reload together need about two minutes."""
MOST_AUTHORITIES = 8
"""Authorities that pods trust at once. More than two come only from an authority that is deleted again and again."""
CA = "ca.crt"
"""Key of the authorities' certificates in both Secrets; the keys of the other parts follow."""
CA_KEY = "ca.key"
CERTIFICATE = "tls.crt"
KEY = "tls.key"

PrivateKey = ec.EllipticCurvePrivateKey


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its private key."""

    certificate: x509.Certificate
    key: PrivateKey

    @property
    def pem(self) -> tuple[str, str]:
        """Return the certificate and the key as PEM texts."""
        form = serialization.PrivateFormat.PKCS8
        key = self.key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
        return pem(self.certificate), key.decode()


def new_authority(job: str, now: datetime) -> Pair:
    """Make an authority with a unique name, so that TLS can distinguish it from the job's other authorities."""
    key = ec.generate_private_key(ec.SECP256R1())
    serial = x509.random_serial_number()
    name = _name(f"batchgrowth {serial:x}"[:28] + f" {job}")
    builder = _builder(name, name, key, now, now + AUTHORITY_LIFE).serial_number(serial)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    return Pair(builder.sign(key, hashes.SHA256()), key)


def new_certificate(job: str, namespace: str, now: datetime, authority: Pair) -> Pair:
    """Make a certificate for the job's scheduler, workers and trainer, as servers and as clients."""
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = authority.certificate
    service = f"{names.of(job).scheduler}.{namespace}"
    hosts = [names.of(job).scheduler, service, f"{service}.svc", f"{service}.svc.cluster.local", "localhost"]
    usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    ends = min(now + CERTIFICATE_LIFE, issuer.not_valid_after_utc)
    made = (
        _builder(_name(job), issuer.subject, key, now, ends)
        .serial_number(x509.random_serial_number())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host) for host in hosts]), critical=False)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .sign(authority.key, hashes.SHA256())
    )
    return Pair(made, key)


def read_pair(certificate: bytes, key: bytes) -> Pair | None:
    """Return the pair in these PEM texts; None if either is unreadable or the key is not the certificate's."""
    try:
        read = x509.load_pem_x509_certificate(certificate)
        secret = serialization.load_pem_private_key(key, None)
        fits = secret.public_key() == read.public_key()
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return None
    if not fits or not isinstance(secret, PrivateKey):
        return None
    return Pair(read, secret)


def read_certificates(text: bytes) -> tuple[x509.Certificate, ...]:
    """Return the certificates in this PEM text; none if the text cannot be read."""
    try:
        return tuple(x509.load_pem_x509_certificates(text))
    except ValueError:
        return ()


def has_issued(authority: x509.Certificate, certificate: x509.Certificate) -> bool:
    """Return whether the authority signed the certificate."""
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def pem(certificate: x509.Certificate) -> str:
    """Return the certificate's text."""
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _builder(
    subject: x509.Name, issuer: x509.Name, key: PrivateKey, now: datetime, ends: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(ends)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def renewed(
    job: str, namespace: str, now: datetime, authority: Object | None = None, tls: Object | None = None
) -> TlsSecrets | None:
    """Return what to write to the Secrets `authority` and `tls`, given their content; None if nothing must change."""
    kept = _pair(authority, CA, CA_KEY)
    mounted = _decoded(tls)
    if kept is None or _ends(kept.certificate, now, AUTHORITY_RENEWED_BEFORE_END):
        signs = None
        if kept is None:
            # An older operator had only one Secret, and kept the authority's key there.
            signs = _pair(tls, CA, CA_KEY)
        if signs is None or _ends(signs.certificate, now, AUTHORITY_RENEWED_BEFORE_END):
            signs = new_authority(job, now)
        written = dict(zip((CA, CA_KEY), signs.pem, strict=True))
        # Pods that run trust it from the next pass on, when it has certainly been stored.
        return TlsSecrets(authority=written, tls={} if tls else _mounted(job, namespace, now, signs, mounted))
    desired = _mounted(job, namespace, now, kept, mounted)
    is_there = all(mounted.get(name) == text.encode() for name, text in desired.items())
    if is_there and CA_KEY not in mounted:
        return None
    return TlsSecrets(tls=desired)


def _mounted(job: str, namespace: str, now: datetime, signs: Pair, present: Mapping[str, bytes]) -> Mapping[str, str]:
    """Return the content of the Secret that pods mount, keeping as much as possible of its present content."""
    pair = read_pair(present.get(CERTIFICATE, b""), present.get(KEY, b""))
    signer = signs.certificate

    # Pods trust the authority that signs, and earlier ones that are valid: first the certificate's, then the newest.
    known = dict.fromkeys(read_certificates(present.get(CA, b"")))
    others = [found for found in known if found != signer and not _ends(found, now)]
    others.sort(key=lambda found: found.not_valid_before_utc, reverse=True)
    issuers = [found for found in others if pair is not None and has_issued(found, pair.certificate)]
    others = issuers + [found for found in others if found not in issuers]
    trusted = [signer, *others[: MOST_AUTHORITIES - 1]]

    # A useless certificate is replaced at once; one that ends soon, once every pod trusts the authority that signs.
    is_trusted = now - (signer.not_valid_before_utc + CLOCK_SKEW) >= TRUSTED_BEFORE_SIGNING
    if (
        pair is None
        or _ends(pair.certificate, now)
        or not any(has_issued(authority, pair.certificate) for authority in trusted)
        or (is_trusted and _ends(pair.certificate, now, CERTIFICATE_RENEWED_BEFORE_END))
    ):
        pair = new_certificate(job, namespace, now, signs)
    return {CA: "".join(map(pem, trusted)), **dict(zip((CERTIFICATE, KEY), pair.pem, strict=True))}


def _ends(certificate: x509.Certificate, now: datetime, before: timedelta = timedelta()) -> bool:
    return certificate.not_valid_after_utc <= now + before


def _pair(secret: Object | None, certificate: str, key: str) -> Pair | None:
    data = _decoded(secret)
    return read_pair(data.get(certificate, b""), data.get(key, b""))


def _decoded(secret: Object | None) -> Mapping[str, bytes]:
    """Return the Secret's data; empty if the data cannot be decoded."""
    data = (secret or {}).get("data") or {}
    try:
        return {name: base64.b64decode(value, validate=True) for name, value in data.items()}
    except (ValueError, TypeError):
        return {}
