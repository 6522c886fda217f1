"""X.509: making and reading the authorities and certificates of a job, as PEM texts."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from batchgrowth import names
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_LIFE = timedelta(days=365)
CERTIFICATE_LIFE = timedelta(days=30)
CLOCK_SKEW = timedelta(hours=1)
"""Largest difference between two machines' clocks."""

PrivateKey = ec.EllipticCurvePrivateKey


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its private key."""

    certificate: x509.Certificate
    key: PrivateKey

    @property
    def pem(self) -> tuple[str, str]:
        """The texts of both."""
        form = serialization.PrivateFormat.PKCS8
        key = self.key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
        return pem(self.certificate), key.decode()


def new_authority(job: str, now: datetime) -> Pair:
    """An authority with a name of its own: those of one job would else be taken for each other."""
    key, serial = ec.generate_private_key(ec.SECP256R1()), x509.random_serial_number()
    name = _name(f"batchgrowth {serial:x}"[:28] + f" {job}")
    builder = _builder(name, name, key, now, now + AUTHORITY_LIFE).serial_number(serial)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    return Pair(builder.sign(key, hashes.SHA256()), key)


def new_certificate(job: str, namespace: str, now: datetime, authority: Pair) -> Pair:
    """A certificate for the job's scheduler, workers and trainer, as servers and as clients."""
    key, issuer = ec.generate_private_key(ec.SECP256R1()), authority.certificate
    service = f"{names.scheduler(job)}.{namespace}"
    hosts = [names.scheduler(job), service, f"{service}.svc", f"{service}.svc.cluster.local", "localhost"]
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
    """The pair in these PEM texts; None if one cannot be read or they do not belong together."""
    try:
        read, secret = x509.load_pem_x509_certificate(certificate), serialization.load_pem_private_key(key, None)
        fits = secret.public_key() == read.public_key()
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return None
    return Pair(read, secret) if fits and isinstance(secret, PrivateKey) else None


def read_certificates(text: bytes) -> tuple[x509.Certificate, ...]:
    """The certificates in this PEM text; none if it cannot be read."""
    try:
        return tuple(x509.load_pem_x509_certificates(text))
    except ValueError:
        return ()


def has_issued(authority: x509.Certificate, certificate: x509.Certificate) -> bool:
    """Whether the authority signed the certificate."""
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def pem(certificate: x509.Certificate) -> str:
    """The certificate's text."""
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
