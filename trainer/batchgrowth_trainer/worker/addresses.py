"""Addresses of Dask schedulers and workers: their parts, this machine's own, whether a server listens, and IPv6."""

import asyncio
import logging
import socket
from contextlib import suppress
from typing import Any

from batchgrowth.errors import ClusterError

CONNECT_SECONDS = 2.0
RETRY_SECONDS = 0.1
_OWN_SECONDS = 5.0
"""Timeout for this machine's connection to itself."""
ANY_PORT = 80
"""A port to which nothing is sent: it only completes an address."""

log = logging.getLogger(f"distributed.{__name__}")  # below Dask's, the only logger that a scheduler shows


async def until_it_listens(address: str) -> None:
    """Return when a server listens at the address.

    Dask itself backs off after each failure, so it would connect to a late scheduler even later.
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
    return interface_towards(*host_and_port(scheduler))


def interface_towards(host: str, port: int = ANY_PORT) -> str:
    """Return the address of this machine's interface that reaches a host, over IPv4 if it can.

    If the host's name is unknown, return the interface of this machine's own name, else the loopback address. Dask
    itself resolves a name only to IPv4, and falls back to 127.0.0.1. Raises ClusterError, as `loopback` does.
    """
    for name in (host, socket.gethostname()):
        try:
            found = socket.getaddrinfo(name, port, type=socket.SOCK_DGRAM)
        except OSError:
            continue
        for family, *_, where in sorted(found, key=lambda one: one[0] != socket.AF_INET):
            with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect(where)  # sends nothing
                return str(probe.getsockname()[0])
    return loopback()


def answer_on_ipv6_too(node: Any) -> None:
    """Have the HTTP server of a scheduler or worker listen on IPv6 too, if it listens on every address of IPv4.

    Dask turns the address in `--dashboard-address :8787` into 0.0.0.0, and takes no address with colons. The probes of
    a pod with IPv6 alone would find no server.
    """
    server = getattr(node, "http_server", None)
    if server is None or getattr(server, "address", None) != "0.0.0.0":  # noqa: S104
        return
    try:
        server.listen(server.port, address="::")
    except OSError as error:
        log.debug("no health endpoint on IPv6: %s", error)


def loopback() -> str:
    """Return the address of this machine's loopback interface: 127.0.0.1, or ::1 if the machine has IPv6 alone.

    Raises ClusterError if nothing can connect to either, as in a sandbox whose loopback interface is down.
    """
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        with suppress(OSError), socket.socket(family) as listener, socket.socket(family) as caller:
            listener.bind((host, 0))
            listener.listen(1)
            caller.settimeout(_OWN_SECONDS)
            caller.connect(listener.getsockname()[:2])
            return host
    raise ClusterError(
        "this machine's processes cannot connect to each other, neither at 127.0.0.1 nor at ::1; bring its loopback "
        "interface up, by `ip link set lo up`, or train with exchange.type SingleProcess"
    )


def bracketed(host: str) -> str:
    """Return the host as it is written before a port, an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host


def host_and_port(address: str) -> tuple[str, int]:
    """Return host and port of tls://host:port, tcp://[host]:port or host:port. Raise ValueError without a port."""
    host, _, port = address.split("://")[-1].rpartition(":")
    return host.strip("[]"), int(port)
