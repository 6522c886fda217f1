"""The way to a scheduler that is not there, or not yet."""

import asyncio
import socket

import pytest
from batchgrowth.errors import ClusterError, Interrupted
from batchgrowth_trainer.crew.connection import connect, host_and_port, until_it_listens


@pytest.fixture
def nobody() -> str:
    """An address at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"tcp://127.0.0.1:{free.getsockname()[1]}"


def test_patience_ends(nobody: str) -> None:
    told: list[str] = []
    with pytest.raises(ClusterError, match="no Dask scheduler answers there"):
        connect(nobody, 0.3, lambda: False, told.append)
    assert {f"the Dask scheduler at {nobody}"} == set(told)


def test_a_stop_ends_the_wait(nobody: str) -> None:
    told: list[str] = []
    with pytest.raises(Interrupted, match="while waiting"):
        connect(nobody, 60, lambda: bool(told), told.append)


@pytest.mark.parametrize("address", ["nowhere", "tcp://somewhere:port"])
def test_what_is_no_address_is_not_waited_for(address: str) -> None:
    with pytest.raises(ClusterError, match="give its address"):
        connect(address, 60, lambda: False, pytest.fail)


@pytest.mark.parametrize("address", ["tls://[::1]:8786", "tcp://[::1]:8786", "[::1]:8786"])
def test_addresses_with_colons(address: str) -> None:
    assert ("::1", 8786) == host_and_port(address)


def test_who_listens_late_is_found_at_once(nobody: str) -> None:
    host, port = host_and_port(nobody)

    async def late() -> None:
        waiting = asyncio.create_task(until_it_listens(nobody))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        async with await asyncio.start_server(lambda _, writer: writer.close(), host, port):
            await asyncio.wait_for(waiting, timeout=10)

    asyncio.run(late())
