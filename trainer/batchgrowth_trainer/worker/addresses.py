"""Addresses of Dask schedulers and workers: their parts, and whether somebody listens there."""

from __future__ import annotations

import asyncio

from distributed.utils import get_ip

KNOCK_SECONDS = 2.0
PAUSE_SECONDS = 0.1


async def until_it_listens(address: str) -> None:
    """Returns when somebody listens at the address.

    Dask's own tries become rarer with every failure, and a scheduler that comes late would be found much later still.
    """
    host, port = host_and_port(address)
    while True:
        try:
            async with asyncio.timeout(KNOCK_SECONDS):
                _, connection = await asyncio.open_connection(host, port)
        except (OSError, TimeoutError):
            await asyncio.sleep(PAUSE_SECONDS)
        else:
            connection.close()
            return


def host_towards(scheduler: str) -> str:
    """This machine's address on the way to the scheduler."""
    return str(get_ip(*host_and_port(scheduler)))


def host_and_port(address: str) -> tuple[str, int]:
    """The two parts of tls://host:port, tcp://[host]:port or host:port; ValueError where there is no port."""
    host, _, port = address.split("://")[-1].rpartition(":")
    return host.strip("[]"), int(port)
