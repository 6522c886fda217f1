"""A job's certificates over time: short lives, successors that are trusted before they sign, and repair of Secrets."""

import base64
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from batchgrowth_operator.certificates import (
    AUTHORITY_LIFE,
    AUTHORITY_RENEWED_BEFORE_END,
    CERTIFICATE_LIFE,
    CERTIFICATE_RENEWED_BEFORE_END,
    CLOCK_SKEW,
    MOST_AUTHORITIES,
    TRUSTED_BEFORE_SIGNING,
    has_issued,
    new_authority,
    new_certificate,
    pem,
    read_certificates,
    read_pair,
    renewed,
)
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

NOW = datetime(2026, 11, 20, 10, tzinfo=UTC)
SECOND, DAY = timedelta(seconds=1), timedelta(days=1)


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@dataclass
class Secrets:
    """The two Secrets of a job, and the clock. `look` is a pass of the operator."""

    now: datetime = NOW
    data: dict[str, dict[str, str] | None] = field(default_factory=lambda: {"authority": None, "tls": None})

    def look(self) -> dict[str, Mapping[str, str]]:
        """Writes what is due, and returns it."""
        given = {name: data and {"data": data} for name, data in self.data.items()}
        made: Any = renewed("digits", "default", self.now, **given)
        if made is None:
            return {}
        written = {"authority": made.authority, "tls": made.tls}
        for name, texts in written.items():
            if texts:
                self.data[name] = {key: encoded(text) for key, text in texts.items()}
        return {name: texts for name, texts in written.items() if texts}

    def settle(self) -> "Secrets":
        for _ in range(3):
            if not self.look():
                return self
        raise AssertionError("it writes again and again")

    def bytes(self, name: str, key: str) -> bytes:
        return base64.b64decode((self.data[name] or {})[key])

    @property
    def certificate(self) -> x509.Certificate:
        """The one that pods show."""
        pair = read_pair(self.bytes("tls", "tls.crt"), self.bytes("tls", "tls.key"))
        assert pair is not None
        return pair.certificate

    @property
    def authority(self) -> x509.Certificate:
        """The one whose key the operator has."""
        pair = read_pair(self.bytes("authority", "ca.crt"), self.bytes("authority", "ca.key"))
        assert pair is not None
        return pair.certificate

    @property
    def trusted(self) -> tuple[x509.Certificate, ...]:
        return read_certificates(self.bytes("tls", "ca.crt"))

    @property
    def signer(self) -> x509.Certificate:
        [found] = [authority for authority in self.trusted if has_issued(authority, self.certificate)]
        return found


@pytest.fixture
def secrets() -> Secrets:
    made = Secrets()
    assert made.look().keys() == {"authority", "tls"}
    assert made.look() == {}
    return made


def test_the_authority_s_key_is_in_a_secret_of_its_own(secrets: Secrets) -> None:
    assert (secrets.data["tls"] or {}).keys() == {"ca.crt", "tls.crt", "tls.key"}
    assert (secrets.data["authority"] or {}).keys() == {"ca.crt", "ca.key"}
    assert (secrets.authority,) == secrets.trusted == (secrets.signer,)


@pytest.mark.fault("C21")
def test_a_certificate_is_renewed_by_the_same_authority_when_a_third_of_its_life_is_left(secrets: Secrets) -> None:
    first, authority = secrets.certificate, secrets.authority
    assert first.not_valid_after_utc == NOW + CERTIFICATE_LIFE
    secrets.now += CERTIFICATE_LIFE - CERTIFICATE_RENEWED_BEFORE_END - SECOND
    assert secrets.look() == {}

    secrets.now += SECOND

    assert [*secrets.look()] == ["tls"]
    assert secrets.look() == {}
    assert first != secrets.certificate
    assert secrets.certificate.not_valid_after_utc == secrets.now + CERTIFICATE_LIFE
    assert (authority,) == secrets.trusted == (secrets.signer,)


@pytest.mark.fault("C21")
def test_an_authority_s_successor_is_trusted_before_it_signs(secrets: Secrets) -> None:
    """The authority that it follows stays trusted until its end, when no certificate of it is left."""
    first = secrets.authority
    seen = []
    while first in secrets.trusted:
        secrets.now += 5 * DAY
        secrets.settle()
        assert secrets.signer in secrets.trusted
        assert secrets.now < secrets.certificate.not_valid_after_utc <= secrets.signer.not_valid_after_utc
        step = (secrets.authority == first, secrets.signer == first)
        if seen[-1:] != [step]:
            seen.append(step)
        if step == (True, True):
            successor_from = secrets.now
        if step == (False, True):
            signs_from = secrets.now

    assert seen == [(True, True), (False, True), (False, False)]
    assert signs_from - successor_from >= TRUSTED_BEFORE_SIGNING
    assert secrets.now == NOW + AUTHORITY_LIFE
    assert (secrets.authority,) == secrets.trusted


def test_a_successor_does_not_sign_on_its_first_day(secrets: Secrets) -> None:
    secrets.now += CERTIFICATE_LIFE - CERTIFICATE_RENEWED_BEFORE_END - SECOND
    secrets.data["authority"] = None
    secrets.settle()
    first = secrets.certificate

    secrets.now += TRUSTED_BEFORE_SIGNING - SECOND
    assert secrets.look() == {}
    secrets.now += SECOND
    secrets.settle()

    assert first != secrets.certificate
    assert secrets.authority == secrets.signer


@pytest.mark.fault("C21")
def test_a_deleted_authority_stays_trusted(secrets: Secrets) -> None:
    """Its successor is stored first and trusted then, and the certificate that all pods have stays."""
    first, certificate = secrets.authority, secrets.certificate
    secrets.data["authority"] = None

    assert [*secrets.look()] == ["authority"]
    assert [*secrets.look()] == ["tls"]
    assert secrets.look() == {}

    assert (secrets.authority, first) == secrets.trusted
    assert first != secrets.authority
    assert certificate == secrets.certificate


@pytest.mark.fault("C21")
def test_a_deleted_certificate_comes_back_from_the_same_authority(secrets: Secrets) -> None:
    first, certificate = secrets.authority, secrets.certificate
    secrets.data["tls"] = None

    assert [*secrets.look()] == ["tls"]

    assert (first,) == secrets.trusted == (secrets.signer,)
    assert certificate != secrets.certificate


@pytest.mark.fault("C21")
def test_both_deleted(secrets: Secrets) -> None:
    first = secrets.authority
    secrets.data = {"authority": None, "tls": None}
    secrets.settle()

    assert (secrets.authority,) == secrets.trusted == (secrets.signer,)
    assert first != secrets.authority
    assert first.subject != secrets.authority.subject, "OpenSSL finds an issuer by its name"


@pytest.mark.parametrize(
    ("secret", "key"),
    [("authority", "ca.crt"), ("authority", "ca.key"), ("tls", "ca.crt"), ("tls", "tls.crt"), ("tls", "tls.key")],
)
@pytest.mark.parametrize("value", [None, "", "!", encoded("nonsense"), encoded("-----BEGIN CERTIFICATE-----\n")])
def test_a_broken_secret_is_repaired(secrets: Secrets, secret: str, key: str, value: str | None) -> None:
    data: Any = secrets.data[secret]
    data[key] = value
    secrets.settle()

    assert secrets.authority == secrets.trusted[0]
    assert secrets.signer in secrets.trusted
    assert secrets.now < secrets.certificate.not_valid_after_utc


def test_a_mix_of_two_jobs_is_repaired(secrets: Secrets) -> None:
    other = Secrets().settle()
    assert secrets.data["tls"]
    assert other.data["tls"]
    for keys in (("tls.crt", "tls.key"), ("ca.crt",), ("tls.key",)):
        secrets.data["tls"] |= {key: other.data["tls"][key] for key in keys}
        secrets.settle()
        assert secrets.authority == secrets.trusted[0] == secrets.signer


@pytest.mark.fault("C21")
@pytest.mark.parametrize("away", [CERTIFICATE_LIFE, AUTHORITY_LIFE])
def test_an_operator_that_was_away_for_long_renews_at_once(secrets: Secrets, away: timedelta) -> None:
    secrets.now += away
    secrets.settle()

    assert secrets.certificate.not_valid_after_utc == secrets.now + CERTIFICATE_LIFE
    assert (secrets.authority,) == secrets.trusted == (secrets.signer,)


def test_an_authority_that_is_deleted_again_and_again(secrets: Secrets) -> None:
    """The list of authorities stays short, and the one that signed the certificate stays in it."""
    first = secrets.authority
    for _ in range(MOST_AUTHORITIES + 2):
        secrets.data["authority"] = None
        secrets.now += SECOND
        secrets.settle()

    assert MOST_AUTHORITIES == len(secrets.trusted) == len(set(secrets.trusted))
    assert secrets.authority == secrets.trusted[0]
    assert first == secrets.signer


@pytest.mark.fault("B05")
def test_a_job_of_an_older_operator_keeps_its_authority_and_its_certificate() -> None:
    """The key of the authority moves out of the Secret that pods mount; processes that reload nothing go on."""
    authority = new_authority("digits", NOW - CLOCK_SKEW)
    certificate = new_certificate("digits", "default", NOW, authority)
    texts = dict(zip(("ca.crt", "ca.key", "tls.crt", "tls.key"), (*authority.pem, *certificate.pem), strict=True))
    secrets = Secrets(data={"authority": None, "tls": {key: encoded(text) for key, text in texts.items()}})

    assert [*secrets.look()] == ["authority"]
    assert [*secrets.look()] == ["tls"]
    assert secrets.look() == {}

    assert authority.certificate == secrets.authority
    assert (authority.certificate,) == secrets.trusted
    assert certificate.certificate == secrets.certificate
    assert "ca.key" not in (secrets.data["tls"] or {})


def test_an_old_authority_near_its_end_is_not_adopted() -> None:
    authority = new_authority("digits", NOW - AUTHORITY_LIFE + AUTHORITY_RENEWED_BEFORE_END)
    certificate = new_certificate("digits", "default", NOW, authority)
    texts = dict(zip(("ca.crt", "ca.key", "tls.crt", "tls.key"), (*authority.pem, *certificate.pem), strict=True))
    secrets = Secrets(data={"authority": None, "tls": {key: encoded(text) for key, text in texts.items()}}).settle()

    assert (secrets.authority, authority.certificate) == secrets.trusted


def test_keys_of_another_kind_are_no_authority(secrets: Secrets) -> None:
    key = ed25519.Ed25519PrivateKey.generate()
    name = x509.Name([])
    made = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key()).serial_number(1)
        .not_valid_before(NOW).not_valid_after(NOW + AUTHORITY_LIFE).sign(key, None)
    )  # fmt: skip
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    text = key.private_bytes(*form).decode()

    assert read_pair(pem(made).encode(), text.encode()) is None


@pytest.mark.fault("C20")
def test_the_certificate_has_the_scheduler_s_names(secrets: Secrets) -> None:
    [names] = [e.value for e in secrets.certificate.extensions if isinstance(e.value, x509.SubjectAlternativeName)]

    assert {"digits-scheduler", "digits-scheduler.default.svc"} <= set(names.get_values_for_type(x509.DNSName))


def test_python_s_ssl_loads_the_certificate(tmp_path: Path, secrets: Secrets) -> None:
    """As Dask loads it, from three files."""
    for name in ("ca.crt", "tls.crt", "tls.key"):
        (tmp_path / name).write_bytes(secrets.bytes("tls", name))

    context = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
    context.load_cert_chain(str(tmp_path / "tls.crt"), str(tmp_path / "tls.key"))

    assert len(context.get_ca_certs()) == 1
