"""How members of a generation connect: each dials its peers of lower rank, and greets those of higher rank at its door.

Every connection begins with the generation's token and the rank of the member that dials; the driver sends the token to
members alone. A connection is greeted in a thread of its own, since a stranger may connect and stay silent; from then
on only the thread that trains uses it.
"""

import secrets
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from batchgrowth_trainer.exchange.seats import TOKEN_BYTES, Address, Seat

_RANK_BYTES = 4
_POLL_SECONDS = 0.1  # between two checks that the generation is not over
_GREETING_SHARE = 0.3  # of the time for forming, which one connection may take for its handshake, token and rank
_MOST_GREETED = 64  # connections at once
_BACKLOG = 1024


@dataclass(frozen=True, slots=True)
class Encryption:
    """The TLS contexts of a member, with the job's certificate: as the one that greets, and as the one that dials."""

    greets: ssl.SSLContext
    dials: ssl.SSLContext

    def __post_init__(self) -> None:
        # A ticket that is never read would make closing lose what was sent last.
        self.greets.num_tickets = 0


class Door:
    """The port of a member, at which the members of higher rank connect, generation after generation."""

    def __init__(self, host: str) -> None:
        family = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][0]
        self._server = socket.create_server((host, 0), family=family, backlog=_BACKLOG)
        self._server.setblocking(False)
        self.address: Address = self._server.getsockname()[:2]

    def fileno(self) -> int:
        """The descriptor, which is readable when a process has connected. Raises ConnectionError if it is closed."""
        if self._server.fileno() < 0:
            raise ConnectionError("the run has ended")
        return self._server.fileno()

    def accept(self) -> socket.socket | None:
        """The next connection; None if there is none. Raises OSError, as `fileno` does."""
        try:
            return self._server.accept()[0]
        except (BlockingIOError, ConnectionError):
            return None
        except OSError:
            self.fileno()
            raise

    def close(self) -> None:
        """Refuse further connections."""
        self._server.close()


def connect_all(
    seat: Seat, door: Door, encryption: Encryption | None, is_over: Callable[[], bool], seconds: float
) -> dict[int, socket.socket]:
    """A connection to every peer of this seat, by rank.

    Raises OSError if one does not connect within `seconds`, and as soon as `is_over()`.
    """
    with _Forming(seat, encryption, seconds) as forming:
        return forming.connected(door, is_over)


class _Forming:
    """The connections of a member while its group forms. Its threads close whatever they have when it is over."""

    def __init__(self, seat: Seat, encryption: Encryption | None, seconds: float) -> None:
        self._seat, self._encryption, self._ends = seat, encryption, time.monotonic() + seconds
        self._greeting_seconds = _GREETING_SHARE * seconds
        self._lock = threading.Lock()
        self._peers: dict[int, socket.socket] = {}
        self._failed: OSError | None = None
        self._is_done = False
        self._greeted = threading.Semaphore(_MOST_GREETED)
        self._news, self._wake = socket.socketpair()

    def __enter__(self) -> "_Forming":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        with self._lock:
            self._is_done = True
            self._news.close()
            self._wake.close()
            for connection in self._peers.values() if kind else ():
                connection.close()

    def connected(self, door: Door, is_over: Callable[[], bool]) -> dict[int, socket.socket]:
        threading.Thread(target=self._dial_all, name="dial", daemon=True).start()
        while len(self._peers) < len(self._seat.doors):
            if is_over():
                raise ConnectionError("the generation is over already")
            ready = _readable([door, self._news], min(_POLL_SECONDS, _left(self._ends)))
            if self._news in ready:
                self._news.recv(_BACKLOG)
            if self._failed is not None:
                raise self._failed
            if door in ready and self._greeted.acquire(timeout=_POLL_SECONDS):
                self._greet_in_a_thread(door.accept())
        for connection in self._peers.values():
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setblocking(False)
        return self._peers

    def _greet_in_a_thread(self, connection: socket.socket | None) -> None:
        if connection is None:
            self._greeted.release()
        else:
            threading.Thread(target=self._greet, args=(connection,), name="greet", daemon=True).start()

    def _greet(self, connection: socket.socket) -> None:
        seconds = min(self._greeting_seconds, max(self._ends - time.monotonic(), _POLL_SECONDS))
        try:
            connection.settimeout(seconds)
            if self._encryption:
                connection = self._encryption.greets.wrap_socket(connection, server_side=True)
            rank = _rank_of(connection, self._seat.token)
            if rank is None or rank < self._seat.rank or rank not in self._seat.doors:
                raise ConnectionError("a stranger, or a rank that should not dial")
            self._keep(rank, connection)
        except OSError:
            connection.close()
        finally:
            self._greeted.release()

    def _dial_all(self) -> None:
        try:
            for peer in self._seat.doors:
                if peer < self._seat.rank:
                    self._keep(peer, self._dial(peer))
        except OSError as error:
            self._failed = error
            self._tell()

    def _dial(self, peer: int) -> socket.socket:
        connection = socket.create_connection(self._seat.doors[peer], timeout=_left(self._ends))
        try:
            if self._encryption:
                connection = self._encryption.dials.wrap_socket(connection)
            connection.sendall(self._seat.token + self._seat.rank.to_bytes(_RANK_BYTES, "big"))
        except OSError:
            connection.close()
            raise
        return connection

    def _keep(self, peer: int, connection: socket.socket) -> None:
        """Keep the connection, unless it is a second one of the same rank, or too late."""
        with self._lock:
            if self._is_done or peer in self._peers:
                connection.close()
                return
            self._peers[peer] = connection
        self._tell()

    def _tell(self) -> None:
        with suppress(OSError):
            self._wake.send(b".")


def _readable(sources: list[Any], seconds: float) -> list[Any]:
    """Those that can be read from within that time; unlike select, with any number of open files."""
    by_number, waiting = {source.fileno(): source for source in sources}, select.poll()
    for number in by_number:
        waiting.register(number, select.POLLIN)
    return [by_number[number] for number, _ in waiting.poll(seconds * 1e3)]


def _rank_of(connection: socket.socket, token: bytes) -> int | None:
    """The rank that the connection sends; None unless it sends the token first."""
    greeting = b""
    while len(greeting) < TOKEN_BYTES + _RANK_BYTES:
        more = connection.recv(TOKEN_BYTES + _RANK_BYTES - len(greeting))
        if not more:
            return None
        greeting += more
    if not secrets.compare_digest(greeting[:TOKEN_BYTES], token):
        return None
    return int.from_bytes(greeting[TOKEN_BYTES:], "big")


def _left(ends: float) -> float:
    left = ends - time.monotonic()
    if left <= 0:
        raise TimeoutError("not every member connected in time")
    return left
