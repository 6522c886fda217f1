"""Free ports, and HTTP servers that listen on them."""

from __future__ import annotations

import http.client
import socket
import ssl
from contextlib import ExitStack
from dataclasses import dataclass

LOOPBACK = "127.0.0.1"


def free_ports(count: int) -> list[int]:
    """Return distinct unused ports of the loopback address."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((LOOPBACK, 0))
        return [each.getsockname()[1] for each in sockets]


def bracketed(host: str) -> str:
    """Return the host as URLs have it, an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An HTTP server, with TLS if a context is given."""

    port: int
    context: ssl.SSLContext | None = None
    host: str = LOOPBACK

    def answers(self, path: str) -> bool:
        """Whether a GET returns 200."""
        try:
            return self._status(path) == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False

    def _status(self, path: str) -> int:
        if self.context is None:
            connection = http.client.HTTPConnection(self.host, self.port, timeout=5)
        else:
            connection = http.client.HTTPSConnection(self.host, self.port, timeout=5, context=self.context)
        try:
            connection.request("GET", path)
            return connection.getresponse().status
        finally:
            connection.close()
