"""Addresses of Dask schedulers and workers: their parts, and whether a server listens at one."""

import asyncio
import socket

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
    host, port = host_and_port(scheduler)
    try:
        found = {family: where[0] for family, *_, where in socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)}
    except OSError:  # its name is unknown at this moment: Dask then takes the address of this machine's name
        found = {}
    # Dask tells an address of IPv6 by its colons, and takes any name for one of IPv4.
    has_ipv4 = socket.AF_INET in found or socket.AF_INET6 not in found
    return str(get_ip(host if has_ipv4 else found[socket.AF_INET6], port))


def loopback() -> str:
    """Return the address of this machine's loopback interface: 127.0.0.1, or ::1 if the machine has IPv6 alone."""
    with socket.socket(socket.AF_INET) as probe:
        try:
            probe.bind(("127.0.0.1", 0))
        except OSError:
            return "::1"
    return "127.0.0.1"


def bracketed(host: str) -> str:
    """Return the host as it is written before a port, an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host


def host_and_port(address: str) -> tuple[str, int]:
    """Return host and port of tls://host:port, tcp://[host]:port or host:port. Raise ValueError without a port."""
    host, _, port = address.split("://")[-1].rpartition(":")
    return host.strip("[]"), int(port)
