"""A scheduler with a job's certificate talks to the holders of that job's valid certificates and to no others."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from batchgrowth_operator.certificates import CERTIFICATE_LIFE, Pair, new_authority, new_certificate
from distributed import Scheduler
from distributed.comm import connect
from distributed.security import Security

CONNECT_SECONDS = 3.0


def issued(folder: Path, name: str, at: datetime, authority: Pair | None = None) -> Pair:
    """The authority of the certificate that was made at that time, in files below the folder."""
    signs = authority or new_authority(name, at)
    (folder / name).mkdir()
    texts = (signs.pem[0], *new_certificate(name, "default", at, signs).pem)
    for file, text in zip(("ca.crt", "tls.crt", "tls.key"), texts, strict=True):
        (folder / name / file).write_text(text)
    return signs


def security(folder: Path, name: str, authority: str = "") -> Security:
    """The settings that the operator gives a job's pods, by their environment."""
    files = {"cert": str(folder / name / "tls.crt"), "key": str(folder / name / "tls.key")}
    roles = {f"tls_{role}_{part}": path for role in ("scheduler", "client") for part, path in files.items()}
    return Security(tls_ca_file=str(folder / (authority or name) / "ca.crt"), require_encryption=True, **roles)


async def answer(scheduler: Security, client: Security | None) -> str:
    """What the scheduler answers to a client with these certificates, or without any in plain TCP."""
    place = {"host": "127.0.0.1", "port": 0, "dashboard_address": "127.0.0.1:0"}
    async with Scheduler(protocol="tls", security=scheduler, **place) as server:
        address = server.address if client else server.address.replace("tls://", "tcp://")
        arguments = client.get_connection_args("client") if client else {}
        comm = await connect(address, timeout=CONNECT_SECONDS, **arguments)
        try:
            await comm.write({"op": "identity", "reply": True})
            return str((await comm.read())["type"])
        finally:
            comm.abort()


def test_a_holder_of_the_job_s_certificate_is_answered(tmp_path: Path) -> None:
    issued(tmp_path, "digits", datetime.now(UTC))
    own = security(tmp_path, "digits")

    assert asyncio.run(answer(own, own)) == "Scheduler"


@pytest.mark.smoke
@pytest.mark.fault("C21", "E01")
@pytest.mark.parametrize(
    "client", ["another job's", "expired", "another authority's with the right one trusted", "none, in plain TCP"]
)
def test_others_are_refused(tmp_path: Path, client: str) -> None:
    now = datetime.now(UTC)
    ours = issued(tmp_path, "digits", now)
    issued(tmp_path, "other", now)
    issued(tmp_path, "old", now - CERTIFICATE_LIFE - timedelta(days=1), ours)
    theirs = {
        "another job's": security(tmp_path, "other"),
        "expired": security(tmp_path, "old"),
        "another authority's with the right one trusted": security(tmp_path, "other", authority="digits"),
        "none, in plain TCP": None,
    }
    with pytest.raises(OSError):
        asyncio.run(answer(security(tmp_path, "digits"), theirs[client]))


@pytest.mark.fault("C21")
def test_an_expired_scheduler_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    now = datetime.now(UTC)
    ours = issued(tmp_path, "digits", now)
    issued(tmp_path, "old", now - CERTIFICATE_LIFE - timedelta(days=1), ours)
    with pytest.raises(OSError, match="TLS certificate does not match"):
        asyncio.run(answer(security(tmp_path, "old"), security(tmp_path, "digits")))
    assert "certificate expired" in caplog.text
