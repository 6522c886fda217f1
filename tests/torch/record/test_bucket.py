"""A bucket over HTTP: what is written comes back, and errors say what would do, without quoting a key."""

import os
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trustme
from batchgrowth.errors import CheckpointError, StorageError
from batchgrowth_trainer.record import remote as buckets
from batchgrowth_trainer.record.remote import Bucket
from object_store import s3 as an_s3
from obstore.store import LocalStore


@pytest.fixture
def bucket(s3: Any, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    monkeypatch.setitem(buckets._RETRIES, "max_retries", 0)
    return Bucket.at("s3://runs/team/digits/")


def test_what_is_written_comes_back_below_the_prefix(s3: Any, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket.put("states/a", b"0123456789")
    bucket.put("empty", b"")
    assert s3.names == ["team/digits/empty", "team/digits/states/a"]
    monkeypatch.setattr(buckets, "_PIECE_BYTES", 4)
    assert (bucket.get("states/a"), bucket.get("empty"), bucket.get("states/b")) == (b"0123456789", b"", None)
    assert {name: entry.size for name, entry in bucket.entries("states/", "rows/").items()} == {"states/a": 10}
    bucket.rename("states/a", "damaged/a")
    bucket.rename("states/a", "damaged/b")
    bucket.delete(["empty", "never there"])
    bucket.delete([])
    assert s3.names == ["team/digits/damaged/a"]


def test_a_missing_object_keeps_no_other_from_being_deleted(tmp_path: Path) -> None:
    """In stores that report it, as a folder, Google's and Azure's do."""
    bucket = Bucket(LocalStore(tmp_path), tmp_path.as_uri())
    for name in "abc":
        bucket.put(name, b"1")
    bucket.delete(["a", "never there", "b"])
    bucket.delete(["nor this"])
    assert list(bucket.entries("")) == ["c"]


@pytest.mark.fault("D19")
@pytest.mark.parametrize(
    ("failure", "kind", "words"),
    [
        ((503, "SlowDown"), StorageError, r"the store fails for now \(HTTP 503 SlowDown\)"),
        ((500, "InternalError"), StorageError, "HTTP 500 InternalError"),
        ((400, "ExpiredToken"), StorageError, "HTTP 400 ExpiredToken"),
        ((403, "AccessDenied"), CheckpointError, r"denied \(HTTP 403 AccessDenied\); give .*checkpoint\.secretName"),
        ((401, "Unauthorized"), CheckpointError, "access is denied"),
        ((404, "NoSuchBucket"), CheckpointError, r"no such bucket .* create it, or give another spec\.checkpoint\.uri"),
        ((400, "AuthorizationHeaderMalformed"), CheckpointError, r"refuses the request .* check .*uri, and region"),
    ],
    ids=lambda value: value[1] if isinstance(value, tuple) else None,
)  # fmt: skip
def test_each_failure_says_whether_it_may_pass_and_what_would_do(
    s3: Any, bucket: Bucket, failure: tuple[int, str], kind: type[CheckpointError], words: str
) -> None:
    s3.failure = failure
    calls = (lambda: bucket.put("a", b"1"), lambda: bucket.entries("states/"), lambda: bucket.delete(["a"]))
    for call in calls:
        with pytest.raises(CheckpointError, match=words) as raised:
            call()
        assert kind is type(raised.value)
        assert str(raised.value).startswith("s3://runs/team/digits: ")
        assert "AKIA" not in str(raised.value)
        assert "\n" not in str(raised.value)


def test_reading_fails_alike(s3: Any, bucket: Bucket) -> None:
    """A HEAD has no error code."""
    s3.failure = 503, "SlowDown"
    with pytest.raises(StorageError, match="states/a cannot be read: the store fails for now"):
        bucket.get("states/a")
    s3.failure = 403, "AccessDenied"
    with pytest.raises(CheckpointError, match="access is denied"):
        bucket.get("states/a")


@pytest.mark.fault("D19")
def test_another_users_key_is_refused(s3: Any, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIASOMEBODYELSES000")
    with pytest.raises(CheckpointError, match="access is denied") as raised:
        Bucket.at("s3://runs/team").entries("states/")
    assert "AKIA" not in str(raised.value)


@pytest.mark.fault("D19")
def test_a_store_that_does_not_answer_may_do_so_later(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(StorageError, match="the store does not answer"):
        Bucket.at("s3://runs/team").entries("states/")


def certificate(authority: trustme.CA, *hosts: str, **times: datetime) -> ssl.SSLContext:
    """What a store shows its clients."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*hosts, **times).configure_cert(context)
    return context


@pytest.fixture
def company(tmp_path: Path) -> tuple[trustme.CA, Path]:
    """A private CA, and the file with its certificate."""
    authority, path = trustme.CA(), tmp_path / "ca.crt"
    authority.cert_pem.write_to_path(path)
    return authority, path


def test_a_private_ca_is_trusted_for_the_store_alone(
    company: tuple[trustme.CA, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, path = company
    monkeypatch.setenv("SSL_CERT_FILE", "/of/the/user.pem")
    monkeypatch.delenv("SSL_CERT_DIR", raising=False)
    with an_s3(certificate(authority, "127.0.0.1")) as store:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        bucket = Bucket.at("s3://runs/team", path)
        bucket.put("states/a", b"0123456789")
        assert bucket.get("states/a") == b"0123456789"
    assert os.environ["SSL_CERT_FILE"] == "/of/the/user.pem"
    assert "SSL_CERT_DIR" not in os.environ


YESTERDAY, TOMORROW = (datetime.now(UTC) + timedelta(days=days) for days in (-1, 1))


@pytest.mark.fault("O13")
@pytest.mark.parametrize(
    ("host", "times", "is_trusted", "kind", "words"),
    [
        (
            "127.0.0.1",
            {},
            False,
            CheckpointError,
            r"of a CA that the trainer does not trust; .*checkpoint\.caConfigMap",
        ),
        ("store.example", {}, True, CheckpointError, "is of another host; give the host .* AWS_ENDPOINT_URL"),
        ("127.0.0.1", {"not_after": YESTERDAY}, True, StorageError, "has expired or is not valid yet; renew it"),
        ("127.0.0.1", {"not_before": TOMORROW}, True, StorageError, "has expired or is not valid yet"),
    ],
    ids=["unknown CA", "another host", "expired", "not valid yet"],
)
def test_what_is_wrong_with_a_certificate_is_said(
    company: tuple[trustme.CA, Path],
    monkeypatch: pytest.MonkeyPatch,
    host: str,
    times: dict[str, datetime],
    is_trusted: bool,
    kind: type[CheckpointError],
    words: str,
) -> None:
    authority, path = company
    monkeypatch.setitem(buckets._RETRIES, "max_retries", 0)
    with an_s3(certificate(authority, host, **times)) as store:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(CheckpointError, match=words) as raised:
            Bucket.at("s3://runs/team", path if is_trusted else None).entries("states/")
    assert kind is type(raised.value)


@pytest.mark.fault("O13")
def test_a_store_without_tls_is_named(s3: Any, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"https://127.0.0.1:{s3.port}")
    with pytest.raises(CheckpointError, match="does not speak TLS; begin its endpoint with http://"):
        Bucket.at("s3://runs/team").entries("states/")


@pytest.mark.fault("O13")
def test_a_file_without_a_certificate_is_named(s3: Any, tmp_path: Path) -> None:
    (tmp_path / "company.crt").write_text("no certificate")
    with pytest.raises(CheckpointError, match=r"company\.crt holds no certificate .* spec\.checkpoint\.caConfigMap"):
        Bucket.at("s3://runs/team", tmp_path / "company.crt")


def test_settings_that_are_missing_are_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(CheckpointError, match=r"abfs://runs/team: cannot be used: .*account in the Secret") as raised:
        Bucket.at("abfs://runs/team")
    assert not isinstance(raised.value, StorageError)
