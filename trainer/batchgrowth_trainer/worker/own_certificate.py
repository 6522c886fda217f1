"""The certificate of a run's own cluster: made when the cluster starts, and never written to a file of the run.

Imports no torch: a bench and tests make certificates too.
"""

from datetime import UTC, datetime

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from distributed.security import Security

from batchgrowth_trainer.worker.greeted import SCHEME

# The key lives in the memory of one run's processes, so the certificate needs no end: a clock that jumps must not end
# the run. The last date means "no end" (RFC 5280, 4.1.2.5).
_BEGINS = datetime(1970, 1, 2, tzinfo=UTC)
_ENDS = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)


class OwnCertificate(Security):  # type: ignore[misc]
    """The TLS settings of a cluster whose processes all run on this machine, as one user.

    A class of its own, so that a worker recognizes them. A process that has one can speak `protocol`.
    """

    protocol = SCHEME


def own_certificate() -> OwnCertificate:
    """Make a key and a certificate, which every process of one cluster shows and the only one that it accepts."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "batchgrowth")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_BEGINS)
        .not_valid_after(_ENDS)
        .sign(key, hashes.SHA256())
    )
    shown = certificate.public_bytes(serialization.Encoding.PEM).decode()
    form = serialization.PrivateFormat.PKCS8
    kept = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()
    roles = ("scheduler", "worker", "client")
    pairs = {f"tls_{role}_cert": shown for role in roles} | {f"tls_{role}_key": kept for role in roles}
    return OwnCertificate(require_encryption=True, tls_ca_file=shown, **pairs)
