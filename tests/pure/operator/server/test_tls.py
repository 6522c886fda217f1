"""Certificates match their keys, expire late, and are renewed by the same authority."""

import base64
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from batchgrowth_operator.seen.observed import Credentials
from batchgrowth_operator.server.tls import LIFE, RENEWED_BEFORE_END, is_fresh, issue
from cryptography import x509

NOW = datetime(2026, 11, 20, 10, tzinfo=UTC)


def secret(credentials: Credentials) -> dict[str, Any]:
    return {"data": {name: base64.b64encode(text.encode()).decode() for name, text in credentials.pem.items()}}


@pytest.mark.fault("C21")
def test_an_issued_certificate_is_fresh_until_shortly_before_its_end() -> None:
    made = secret(issue("digits", "default", NOW))

    assert is_fresh(made, NOW)
    assert is_fresh(made, NOW + LIFE - RENEWED_BEFORE_END - timedelta(seconds=1))
    assert not is_fresh(made, NOW + LIFE - RENEWED_BEFORE_END)


@pytest.mark.parametrize("name", ["ca.crt", "ca.key", "tls.crt", "tls.key"])
@pytest.mark.parametrize("value", [None, "", "!", base64.b64encode(b"nonsense").decode()])
def test_a_broken_secret_is_not_fresh(name: str, value: str | None) -> None:
    made = secret(issue("digits", "default", NOW))
    made["data"][name] = value
    broken = made if value is not None else {"data": {k: v for k, v in made["data"].items() if k != name}}

    assert is_fresh(broken, NOW) == (name == "ca.key" and value not in (None, "!"))
    assert is_fresh(secret(issue("digits", "default", NOW, broken)), NOW)


def test_a_mix_of_two_secrets_is_not_fresh() -> None:
    one, other = (secret(issue("digits", "default", NOW)) for _ in range(2))

    assert not is_fresh({"data": one["data"] | {"ca.crt": other["data"]["ca.crt"]}}, NOW)
    assert not is_fresh({"data": one["data"] | {"tls.key": other["data"]["tls.key"]}}, NOW)
    assert not is_fresh({}, NOW)


def test_renewal_keeps_an_authority_that_is_valid_long_enough() -> None:
    first = issue("digits", "default", NOW)
    second = issue("digits", "default", NOW + timedelta(days=30), secret(first))
    third = issue("digits", "default", NOW + LIFE, secret(first))

    assert first.pem["ca.crt"] == second.pem["ca.crt"] != third.pem["ca.crt"]
    assert first.pem["tls.crt"] != second.pem["tls.crt"]


@pytest.mark.fault("C20")
def test_the_certificate_has_the_scheduler_s_names() -> None:
    certificate = x509.load_pem_x509_certificate(issue("digits", "prod", NOW).pem["tls.crt"].encode())
    [names] = [e.value for e in certificate.extensions if isinstance(e.value, x509.SubjectAlternativeName)]

    assert {"digits-scheduler", "digits-scheduler.prod.svc"} <= set(names.get_values_for_type(x509.DNSName))


def test_python_s_ssl_loads_the_certificate(tmp_path: Path) -> None:
    """As Dask loads it, from three files."""
    for name, text in issue("digits", "default", datetime.now(UTC)).pem.items():
        (tmp_path / name).write_text(text)

    context = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
    context.load_cert_chain(str(tmp_path / "tls.crt"), str(tmp_path / "tls.key"))

    assert 1 == len(context.get_ca_certs())
