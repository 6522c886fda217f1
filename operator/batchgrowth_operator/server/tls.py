"""The certificates of a job over time: an authority and a certificate, and their successors before they expire.

Two Secrets: pods mount the one with the certificate and with every authority that they should trust; the key of the
authority is in the other. What to do follows from the two and the clock alone. A successor of the authority is first
only trusted; it signs when the next certificate is due, a day later or more, when every pod has reloaded.
"""

import base64
from collections.abc import Mapping
from datetime import datetime, timedelta

from cryptography import x509

from batchgrowth_operator.seen.observed import Credentials, Object
from batchgrowth_operator.server.certificates import (
    CLOCK_SKEW,
    Pair,
    has_issued,
    new_authority,
    new_certificate,
    pem,
    read_certificates,
    read_pair,
)

AUTHORITY_RENEWED_BEFORE_END = timedelta(days=90)
"""Three lives of a certificate, so that none is cut short by the end of its authority."""
CERTIFICATE_RENEWED_BEFORE_END = timedelta(days=10)
TRUSTED_BEFORE_SIGNING = timedelta(days=1)
"""Time in which pods reload the authorities; kubelet and reload together need about two minutes."""
MOST_AUTHORITIES = 8
"""Authorities that pods trust at once. More than two come only from an authority that is deleted again and again."""
CA, CA_KEY, CERTIFICATE, KEY = "ca.crt", "ca.key", "tls.crt", "tls.key"


def renewed(
    job: str, namespace: str, now: datetime, authority: Object | None = None, tls: Object | None = None
) -> Credentials | None:
    """What must be written to the Secrets `authority` and `tls`, given their content; None if nothing."""
    kept, mounted = _pair(authority, CA, CA_KEY), _decoded(tls)
    if kept is None or _ends(kept.certificate, now, AUTHORITY_RENEWED_BEFORE_END):
        signs = _former_authority(tls, kept, now) or new_authority(job, now)
        written = dict(zip((CA, CA_KEY), signs.pem, strict=True))
        # Pods trust it from the next pass on, when it is sure to be kept.
        return Credentials(authority=written, tls={} if tls else _mounted(job, namespace, now, signs, mounted))
    wanted = _mounted(job, namespace, now, kept, mounted)
    is_there = all(mounted.get(name) == text.encode() for name, text in wanted.items())
    return None if is_there and CA_KEY not in mounted else Credentials(tls=wanted)


def _former_authority(tls: Object | None, kept: Pair | None, now: datetime) -> Pair | None:
    """The authority of a job of an older operator, which kept its key in the one Secret that there was."""
    found = _pair(tls, CA, CA_KEY) if kept is None else None
    return None if found is None or _ends(found.certificate, now, AUTHORITY_RENEWED_BEFORE_END) else found


def _mounted(job: str, namespace: str, now: datetime, signs: Pair, present: Mapping[str, bytes]) -> Mapping[str, str]:
    """The content of the Secret that pods mount: as much as possible of what it has."""
    pair = read_pair(present.get(CERTIFICATE, b""), present.get(KEY, b""))
    trusted = _trusted(signs.certificate, read_certificates(present.get(CA, b"")), pair, now)
    if pair is None or _is_due(pair.certificate, signs.certificate, trusted, now):
        pair = new_certificate(job, namespace, now, signs)
    return {CA: "".join(map(pem, trusted)), **dict(zip((CERTIFICATE, KEY), pair.pem, strict=True))}


def _trusted(
    signs: x509.Certificate, present: tuple[x509.Certificate, ...], pair: Pair | None, now: datetime
) -> tuple[x509.Certificate, ...]:
    """The authority that signs, and those before it that have not expired: first the certificate's, then the newest."""
    others = [found for found in dict.fromkeys(present) if found != signs and not _ends(found, now)]

    def rank(found: x509.Certificate) -> tuple[bool, datetime]:
        return pair is not None and has_issued(found, pair.certificate), found.not_valid_before_utc

    return signs, *sorted(others, key=rank, reverse=True)[: MOST_AUTHORITIES - 1]


def _is_due(
    certificate: x509.Certificate, signs: x509.Certificate, trusted: tuple[x509.Certificate, ...], now: datetime
) -> bool:
    """Whether the certificate must be replaced: at once if it is useless, else once the authority may sign."""
    if _ends(certificate, now) or not any(has_issued(authority, certificate) for authority in trusted):
        return True
    is_known = now - (signs.not_valid_before_utc + CLOCK_SKEW) >= TRUSTED_BEFORE_SIGNING
    return is_known and _ends(certificate, now, CERTIFICATE_RENEWED_BEFORE_END)


def _ends(certificate: x509.Certificate, now: datetime, before: timedelta = timedelta()) -> bool:
    return certificate.not_valid_after_utc <= now + before


def _pair(secret: Object | None, certificate: str, key: str) -> Pair | None:
    data = _decoded(secret)
    return read_pair(data.get(certificate, b""), data.get(key, b""))


def _decoded(secret: Object | None) -> Mapping[str, bytes]:
    """The Secret's data; empty if it cannot be read."""
    data = (secret or {}).get("data") or {}
    try:
        return {name: base64.b64decode(value, validate=True) for name, value in data.items()}
    except (ValueError, TypeError):
        return {}
