"""The transport of a run's own cluster: who shows its certificate is let in, at the port that it dialled."""

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
from batchgrowth_trainer.worker.greeted import OwnCertificate, own_certificate
from distributed.comm import connect, listen
from tornado.iostream import SSLIOStream

OWN = own_certificate()
SECONDS = 1.0


@asynccontextmanager
async def echo(security: OwnCertificate = OWN) -> AsyncIterator[Any]:
    """A listener that sends back what it receives."""

    async def answer(comm: Any) -> None:
        await comm.write(await comm.read())

    async with listen("greeted://127.0.0.1:0", answer, **security.get_listen_args("worker")) as listener:
        yield listener


@asynccontextmanager
async def relay(port: int) -> AsyncIterator[int]:
    """A port at which somebody passes on every byte to another port."""
    passing: list[asyncio.Task[None]] = []
    writers: list[asyncio.StreamWriter] = []

    async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while piece := await source.read(65536):
            target.write(piece)
        target.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, onwards = await asyncio.open_connection("127.0.0.1", port)
        writers.extend((writer, onwards))
        passing.append(asyncio.create_task(copy(reader, onwards)))
        passing.append(asyncio.create_task(copy(answers, writer)))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    async with server:
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            for task in passing:
                task.cancel()
            await asyncio.gather(*passing, return_exceptions=True)
            for writer in writers:
                writer.close()
            await asyncio.gather(*(writer.wait_closed() for writer in writers), return_exceptions=True)


async def told(address: str, message: Any, security: OwnCertificate | None = OWN) -> Any:
    arguments = security.get_connection_args("worker") if security else {}
    comm = await connect(address, timeout=SECONDS, **arguments)
    try:
        await comm.write(message)
        return await asyncio.wait_for(comm.read(), SECONDS), isinstance(comm.stream, SSLIOStream)
    finally:
        comm.abort()


def in_a_loop(act: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    try:
        return asyncio.run(act())
    finally:
        gc.collect()  # what is left open is told here, and not in a later test


@pytest.mark.fault("G03")
@pytest.mark.parametrize("size", [1, 3_000_000])
def test_what_follows_the_greeting_is_plain_and_whole(size: int) -> None:
    async def act() -> Any:
        async with echo() as listener:
            return await told(listener.contact_address, {"bytes": b"x" * size})

    assert in_a_loop(act) == ({"bytes": b"x" * size}, False)


@pytest.mark.fault("G03")
@pytest.mark.parametrize("shows", ["nothing", "another run's certificate"])
def test_a_stranger_is_refused(shows: str) -> None:
    async def act() -> None:
        async with echo() as listener:
            if shows == "nothing":
                await told(listener.contact_address.replace("greeted", "tcp"), "anything", None)
            else:
                await told(listener.contact_address, "anything", own_certificate())

    with pytest.raises(OSError):
        in_a_loop(act)


@pytest.mark.fault("G03")
def test_a_listener_with_another_certificate_is_told_nothing() -> None:
    async def act() -> None:
        async with echo(own_certificate()) as listener:
            await told(listener.contact_address, "anything")

    with pytest.raises(OSError):
        in_a_loop(act)


@pytest.mark.fault("G03")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the relay is cut off as it relays
def test_who_relays_the_greeting_stays_outside() -> None:
    async def act() -> None:
        async with echo() as listener, relay(listener.get_host_port()[1]) as port:
            await told(f"greeted://127.0.0.1:{port}", "anything")

    with pytest.raises(OSError):
        in_a_loop(act)
