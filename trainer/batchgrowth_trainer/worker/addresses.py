"""Addresses of Dask schedulers and workers: their parts, and whether a server listens at one."""

import asyncio

from distributed.utils import get_ip

CONNECT_SECONDS = 2.0
RETRY_SECONDS = 0.1


async def until_it_listens(address: str) -> None:
    """Return when a server listens at the address.

    Dask itself backs off after each failure, so it would find a scheduler that starts late much later still.
    """
    host, port = host_and_port(address)
    while True:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                _, connection = await asyncio.open_connection(host, port)
        except (OSError, TimeoutError):
            await asyncio.sleep(RETRY_SECONDS)
        else:
            connection.close()
            return


def host_towards(scheduler: str) -> str:
    """Return the address of this machine's interface that reaches the scheduler."""
    return str(get_ip(*host_and_port(scheduler)))


def host_and_port(address: str) -> tuple[str, int]:
    """Return host and port of tls://host:port, tcp://[host]:port or host:port. Raise ValueError without a port."""
    host, _, port = address.split("://")[-1].rpartition(":")
    return host.strip("[]"), int(port)
