"""Plain TCP connections between the members of one generation, served by the thread that trains.

Not gloo, which serves its connections in a second thread. If that wakes while the training thread holds a connection's
lock in a send, it polls until its time slice ends; if the two share a core, the sender cannot go on and release the
lock before. docs/benchmarks.md has the figures. Here an update waits only for its peers' sums.
"""

import secrets
import socket
import time
from collections.abc import Mapping
from select import POLLERR, POLLHUP, POLLIN, POLLOUT, poll
from typing import Any

_TOKEN_BYTES, _RANK_BYTES = 16, 4
_POLL_SECONDS = 0.1  # between two checks of a listener that the store is still open
_GREETING_SECONDS = 3.0  # the longest that a connection may take to send its token and rank


class Mesh:
    """One connection to every other rank; not thread-safe."""

    def __init__(self, store: Any, rank: int, size: int, address: str, seconds: float) -> None:
        """Connect to all: each rank listens for the higher ranks, at an address that it puts into the torch Store.

        Raises OSError if one does not connect in time, and RuntimeError if the store is closed before.
        """
        self._peers: dict[int, socket.socket] = {}
        try:
            self._connect(store, rank, size, address, time.monotonic() + seconds)
        except BaseException:
            self.close()
            raise

    def swap(self, outgoing: Mapping[int, memoryview], incoming: Mapping[int, memoryview], seconds: float) -> None:
        """Send to and receive from all these ranks at once.

        Raises ConnectionError if a peer is gone, and TimeoutError if no byte moves for `seconds`.
        """
        sends, receives = ({p: part for p, part in parts.items() if part} for parts in (outgoing, incoming))
        for peer in list(sends):
            self._send(peer, sends)
        while sends or receives:
            self._poll(sends, receives, seconds)

    def close(self) -> None:
        """Close every connection; bytes sent before still arrive."""
        for connection in self._peers.values():
            connection.close()

    def _poll(self, sends: dict[int, memoryview], receives: dict[int, memoryview], seconds: float) -> None:
        waiting, ranks = poll(), {}
        for peer in sends.keys() | receives.keys():
            number = self._peers[peer].fileno()
            ranks[number] = peer
            waiting.register(number, (POLLIN if peer in receives else 0) | (POLLOUT if peer in sends else 0))
        events = waiting.poll(seconds * 1e3)
        if not events:
            silent = ", ".join(str(peer) for peer in sorted(ranks.values()))
            raise TimeoutError(f"no answer from rank {silent} within {seconds:g} s")
        for number, what in events:
            if ranks[number] in receives and what & (POLLIN | POLLHUP | POLLERR):
                self._receive(ranks[number], receives)
            if ranks[number] in sends and what & (POLLOUT | POLLHUP | POLLERR):
                self._send(ranks[number], sends)

    def _send(self, peer: int, sends: dict[int, memoryview]) -> None:
        try:
            while sends[peer]:
                sends[peer] = sends[peer][self._peers[peer].send(sends[peer]) :]
        except BlockingIOError:
            return
        del sends[peer]

    def _receive(self, peer: int, receives: dict[int, memoryview]) -> None:
        try:
            while receives[peer]:
                count = self._peers[peer].recv_into(receives[peer])
                if not count:
                    raise ConnectionError(f"rank {peer} has closed its connection")
                receives[peer] = receives[peer][count:]
        except BlockingIOError:
            return
        del receives[peer]

    def _connect(self, store: Any, rank: int, size: int, address: str, ends: float) -> None:
        family = socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)[0][0]
        with socket.create_server((address, 0), family=family, backlog=size) as server:
            token = secrets.token_bytes(_TOKEN_BYTES)
            host, port = server.getsockname()[:2]
            store.set(_key(rank), f"{host} {port} {token.hex()}")
            for peer in range(rank):
                self._peers[peer] = _connected(store.get(_key(peer)).decode(), rank, ends)
            while len(self._peers) < size - 1:
                self._accept(server, token, store, _key(rank), ends)
        for connection in self._peers.values():
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setblocking(False)

    def _accept(self, server: socket.socket, token: bytes, store: Any, key: str, ends: float) -> None:
        server.settimeout(min(_POLL_SECONDS, _left(ends)))
        try:
            connection, _ = server.accept()
        except TimeoutError:
            store.check([key])  # raises if the driver has closed it, since a member will not connect
            return
        peer = _rank_of(connection, token, min(_GREETING_SECONDS, _left(ends)))
        if peer is None:
            connection.close()
        else:
            self._peers[peer] = connection


def _key(rank: int) -> str:
    return f"mesh/{rank}"


def _connected(entry: str, rank: int, ends: float) -> socket.socket:
    host, port, token = entry.split()
    connection = socket.create_connection((host, int(port)), timeout=_left(ends))
    try:
        connection.sendall(bytes.fromhex(token) + rank.to_bytes(_RANK_BYTES, "big"))
    except OSError:
        connection.close()
        raise
    return connection


def _rank_of(connection: socket.socket, token: bytes, seconds: float) -> int | None:
    """The rank that the connection sends; None unless it sends the token from the store first."""
    connection.settimeout(seconds)
    greeting = b""
    try:
        while len(greeting) < _TOKEN_BYTES + _RANK_BYTES:
            more = connection.recv(_TOKEN_BYTES + _RANK_BYTES - len(greeting))
            if not more:
                return None
            greeting += more
    except OSError:
        return None
    if not secrets.compare_digest(greeting[:_TOKEN_BYTES], token):
        return None
    return int.from_bytes(greeting[_TOKEN_BYTES:], "big")


def _left(ends: float) -> float:
    left = ends - time.monotonic()
    if left <= 0:
        raise TimeoutError("not every member connected in time")
    return left
