"""Certificates are replaced while a scheduler, a worker and a client run: a worker that starts later joins them."""

import asyncio
import logging
from datetime import UTC, datetime
from operator import add
from pathlib import Path
from typing import Any

import dask
import pytest
from batchgrowth_operator.certificates import Pair, new_authority, new_certificate
from batchgrowth_trainer.worker import certificates
from distributed import Client, Scheduler, Worker

HERE: dict[str, Any] = {"host": "127.0.0.1", "protocol": "tls", "dashboard_address": "127.0.0.1:0"}
PATIENCE_SECONDS = 30


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the files, which are looked at all the time."""
    monkeypatch.setattr(certificates, "CHECK_SECONDS", 0.01)
    return tmp_path


def write(folder: Path, signs: Pair, *others: Pair) -> None:
    """A new certificate, and the authorities to trust."""
    certificate, key = new_certificate("digits", "default", datetime.now(UTC), signs).pem
    (folder / "ca.crt").write_text("".join(authority.pem[0] for authority in (signs, *others)))
    (folder / "tls.crt").write_text(certificate)
    (folder / "tls.key").write_text(key)


def settings(folder: Path) -> dict[str, Any]:
    """Dask's configuration in a pod."""
    files = {"cert": str(folder / "tls.crt"), "key": str(folder / "tls.key")}
    prefix = "distributed.comm.tls"
    roles = {
        f"{prefix}.{role}.{part}": file for role in ("scheduler", "worker", "client") for part, file in files.items()
    }
    return {f"{prefix}.ca-file": str(folder / "ca.crt"), "distributed.comm.require-encryption": True} | roles


async def until_each_trusts(number: int, *nodes: Any) -> None:
    contexts = [context for node in nodes for context in certificates.contexts_of(node)]
    assert len(contexts) == 5, "the scheduler and the worker accept and dial, the client dials"
    async with asyncio.timeout(PATIENCE_SECONDS):
        while [number] * 5 != [len(context.get_ca_certs()) for context in contexts]:
            await asyncio.sleep(0.01)


@pytest.mark.fault("C21")
@pytest.mark.parametrize(
    "is_known", [True, False], ids=["with the old authority trusted", "of another authority alone"]
)
def test_a_worker_with_later_certificates_joins(folder: Path, is_known: bool) -> None:
    old, new = (new_authority("digits", datetime.now(UTC)) for _ in range(2))
    write(folder, old)
    preload = [certificates.__name__]

    async def run() -> list[int]:
        async with (
            Scheduler(**HERE, port=0, preload=preload) as scheduler,
            Worker(scheduler.address, **HERE, nthreads=1, preload=preload) as before,
            Client(scheduler.address, asynchronous=True) as client,
        ):
            await until_each_trusts(1, scheduler, before, client)
            write(folder, new, *([old] if is_known else []))
            await until_each_trusts(2, scheduler, before, client)
            async with Worker(scheduler.address, **HERE, nthreads=1) as after:
                one, two = (client.submit(int, 1, workers=[w.address], pure=False) for w in (before, after))
                sums = [client.submit(add, one, two, workers=[w.address], pure=False) for w in (before, after)]
                assert await client.gather([one, two], direct=True) == [1, 1], "from both workers"
                found: list[int] = await client.gather(sums)
                return found

    with dask.config.set(settings(folder) | {"distributed.client.preload": preload}):
        assert asyncio.run(run()) == [2, 2]
    assert certificates._watches == {}


@pytest.mark.fault("C21")
def test_files_that_do_not_fit_change_nothing(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each pair is refused once; the next that fits is loaded."""
    write(folder, new_authority("digits", datetime.now(UTC)))

    async def run() -> None:
        async with Scheduler(**HERE, port=0) as scheduler:
            [context, *_] = contexts = certificates.contexts_of(scheduler)
            assert len(contexts) == 2
            reloader = certificates.Reloader(scheduler)
            assert reloader.is_needed
            assert reloader.check()
            assert not reloader.check()
            right = {path: path.read_bytes() for path in folder.iterdir()}
            write(folder, new_authority("digits", datetime.now(UTC)))
            later = {path: path.read_bytes() for path in folder.iterdir()}
            certificate, key, authorities = (folder / name for name in ("tls.crt", "tls.key", "ca.crt"))
            for wrong in (
                {key: right[key]},
                {certificate: later[certificate][:100]},
                {authorities: b""},
                {authorities: b"\xff"},
                {authorities: later[authorities] + right[authorities][:200]},
            ):
                for path, text in (later | wrong).items():
                    path.write_bytes(text)
                assert not reloader.check()
                assert not reloader.check()
            key.unlink()
            assert not reloader.check()
            assert len(context.get_ca_certs()) == 1, "nothing of it was loaded"
            assert caplog.text.count("stay as they were") == 6
            for path, text in later.items():
                path.write_bytes(text)
            assert reloader.check()
            assert "are used from now on" in caplog.text

    with dask.config.set(settings(folder)), caplog.at_level(logging.INFO):
        asyncio.run(run())


def test_plain_tcp_and_texts_need_no_reload(folder: Path) -> None:
    write(folder, new_authority("digits", datetime.now(UTC)))
    texts = {name: Path(path).read_text() for name, path in settings(folder).items() if isinstance(path, str)}

    async def is_needed(protocol: str) -> bool:
        async with Scheduler(**HERE | {"protocol": protocol}, port=0) as scheduler:
            return certificates.Reloader(scheduler).is_needed

    assert not asyncio.run(is_needed("tcp"))
    with dask.config.set(texts):
        assert not asyncio.run(is_needed("tls"))
