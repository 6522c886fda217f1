"""Plain TCP connections between the members of one generation, served by the very thread that trains.

Not gloo, which serves its connections in a thread of its own. That thread, woken while the training thread holds a
connection's lock in a send, asks the kernel for events over and over until its time slice is over; and where the two
share a core, the sender cannot go on and let go of the lock before that. docs/benchmarks.md has the figures.
Here an update waits for one thing: the other's sums.
"""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Mapping
from select import POLLERR, POLLHUP, POLLIN, POLLOUT, poll
from typing import Any

_TOKEN_BYTES, _RANK_BYTES = 16, 4
_LOOK_SECONDS = 0.1  # so often a listener asks whether the store still stands
_GREETING_SECONDS = 3.0  # a stranger who connects and says nothing holds up the others no longer


class Mesh:
    """One connection to every other rank; `swap` is for one thread."""

    def __init__(self, store: Any, rank: int, size: int, address: str, seconds: float) -> None:
        """Meet the others: everyone listens for the higher ranks, and says in the torch Store where.

        Raises OSError where one does not come in time, and RuntimeError where the store is closed meanwhile.
        """
        self._peers: dict[int, socket.socket] = {}
        try:
            self._meet(store, rank, size, address, time.monotonic() + seconds)
        except BaseException:
            self.close()
            raise

    def swap(self, outgoing: Mapping[int, memoryview], incoming: Mapping[int, memoryview], seconds: float) -> None:
        """Send and fill the bytes of all these ranks at once.

        Raises OSError: ConnectionError where a peer is gone, TimeoutError where none answers for so many seconds.
        """
        sends, receives = ({p: part for p, part in parts.items() if part} for parts in (outgoing, incoming))
        for peer in list(sends):
            self._send(peer, sends)
        while sends or receives:
            self._go_on(sends, receives, seconds)

    def close(self) -> None:
        """Close every connection; what was sent before still arrives."""
        for connection in self._peers.values():
            connection.close()

    # --- bytes ------------------------------------------------------------------------------------------------

    def _go_on(self, sends: dict[int, memoryview], receives: dict[int, memoryview], seconds: float) -> None:
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

    # --- meeting ----------------------------------------------------------------------------------------------

    def _meet(self, store: Any, rank: int, size: int, address: str, ends: float) -> None:
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
        server.settimeout(min(_LOOK_SECONDS, _left(ends)))
        try:
            connection, _ = server.accept()
        except TimeoutError:
            store.check([key])  # raises where the driver has closed it, since somebody will not come
            return
        peer = _greeted(connection, token, min(_GREETING_SECONDS, _left(ends)))
        if peer is None:
            connection.close()
        else:
            self._peers[peer] = connection


def _key(rank: int) -> str:
    return f"mesh/{rank}"


def _connected(told: str, rank: int, ends: float) -> socket.socket:
    host, port, token = told.split()
    connection = socket.create_connection((host, int(port)), timeout=_left(ends))
    try:
        connection.sendall(bytes.fromhex(token) + rank.to_bytes(_RANK_BYTES, "big"))
    except OSError:
        connection.close()
        raise
    return connection


def _greeted(connection: socket.socket, token: bytes, seconds: float) -> int | None:
    """The rank of whoever has connected; None where it does not know the token, which is in the store."""
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
        raise TimeoutError("not every member came in time")
    return left
