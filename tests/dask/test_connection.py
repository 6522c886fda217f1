"""The connection to a scheduler that does not run, or not yet."""

import asyncio
import socket

import pytest
from batchgrowth.errors import ClusterError, Interrupted, SpecError
from batchgrowth_trainer.pool.connection import connect
from batchgrowth_trainer.worker.addresses import host_and_port, until_it_listens


@pytest.fixture
def closed() -> str:
    """An address at which no server listens."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"tcp://127.0.0.1:{free.getsockname()[1]}"


def test_a_scheduler_that_does_not_answer_times_out(closed: str) -> None:
    waits: list[str] = []
    with pytest.raises(ClusterError, match="no Dask scheduler answers there"):
        connect(closed, 0.3, lambda: False, waits.append)
    assert {f"the Dask scheduler at {closed}"} == set(waits)


@pytest.mark.fault("C20")
def test_a_name_that_does_not_resolve_is_waited_for_too() -> None:
    """A Service's name may resolve only after a while; the wait says which one is missing."""
    waits: list[str] = []
    with pytest.raises(ClusterError, match=r"tls://digits-scheduler\.invalid:8786.*no Dask scheduler answers there"):
        connect("tls://digits-scheduler.invalid:8786", 0.3, lambda: False, waits.append)
    assert set(waits) == {"the Dask scheduler at tls://digits-scheduler.invalid:8786"}


def test_a_stop_ends_the_wait(closed: str) -> None:
    waits: list[str] = []
    with pytest.raises(Interrupted, match="while waiting"):
        connect(closed, 60, lambda: bool(waits), waits.append)


@pytest.mark.parametrize("address", ["nowhere", "tcp://somewhere:port"])
def test_a_malformed_address_is_not_waited_for(address: str) -> None:
    """Nor does its exit code ask for another try."""
    with pytest.raises(SpecError, match=f"{address}' is no address.*give its address"):
        connect(address, 60, lambda: False, pytest.fail)


@pytest.mark.parametrize("address", ["tls://[::1]:8786", "tcp://[::1]:8786", "[::1]:8786"])
def test_addresses_with_colons(address: str) -> None:
    assert host_and_port(address) == ("::1", 8786)


def test_a_server_that_starts_late_is_found_at_once(closed: str) -> None:
    host, port = host_and_port(closed)

    async def late() -> None:
        waiting = asyncio.create_task(until_it_listens(closed))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        async with await asyncio.start_server(lambda _, writer: writer.close(), host, port):
            await asyncio.wait_for(waiting, timeout=10)

    asyncio.run(late())
