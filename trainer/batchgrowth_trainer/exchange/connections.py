"""Which members of a generation are connected, and how: ranks, the grid, greetings, and TLS or TCP links.

group.py sends tensors over these links.
"""

import math
import secrets
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache

# A few members are all connected with each other, many as the rows and columns of a grid.
# A row is a run of consecutive ranks, and so of consecutive shards. The members at the same place of each row are a
# column; rows differ in length by at most one, and the last member of a longer row is in no column. So each of P
# members has some 2 sqrt(P) connections, and not P - 1.

LARGEST_MESH = 64
"""The largest number of members that are all connected with each other."""


@dataclass(frozen=True, slots=True)
class Grid:
    """The ranks of each row; a single row is a mesh."""

    rows: tuple[range, ...]

    @property
    def size(self) -> int:
        """Return the number of members."""
        return self.rows[-1].stop

    @property
    def is_mesh(self) -> bool:
        """Return whether all members are connected with each other."""
        return len(self.rows) == 1

    @property
    def width(self) -> int:
        """Return the number of columns."""
        return min(map(len, self.rows))

    def row(self, rank: int) -> range:
        """Return the ranks of this member's row."""
        return next(row for row in self.rows if rank in row)

    def column(self, rank: int) -> tuple[int, ...]:
        """Return the ranks of this member's column, in order; empty if the member is in no column."""
        place = rank - self.row(rank).start
        return tuple(row[place] for row in self.rows) if place < self.width else ()

    def peers(self, rank: int) -> tuple[int, ...]:
        """Return the members with which this member is connected, in order."""
        return tuple(sorted({*self.row(rank), *self.column(rank)} - {rank}))

    def routes(self, holds: Sequence[bool]) -> list[dict[int, list[int]]]:
        """Return how a state travels from its holders to all other members, as a list of turns, each {sender:
        receivers}.

        A member sends to its own row, or to some members of its column.
        """
        # First inside the rows with a holder; then from these to one member of each other row, by a column; then onward
        # inside that row.
        full = [row for row in self.rows if any(holds[rank] for rank in row)]
        within = {next(r for r in row if holds[r]): [r for r in row if not holds[r]] for row in full}
        across: dict[int, list[int]] = {}
        onward: dict[int, list[int]] = {}
        for number, row in enumerate(row for row in self.rows if row not in full):
            turn, giver = divmod(number, len(full))
            place = turn % self.width
            across.setdefault(full[giver][place], []).append(row[place])
            onward[row[place]] = [rank for rank in row if rank != row[place]]
        turns = ({sender: to for sender, to in turn.items() if to} for turn in (within, across, onward))
        return [turn for turn in turns if turn]


def rows_for(size: int) -> int:
    """Return the number of rows for a group of this size: one, which is a mesh, or about its square root."""
    return 1 if size <= LARGEST_MESH else math.isqrt(size - 1) + 1


@lru_cache(maxsize=64)
def grid_of(size: int, rows: int = 1) -> Grid:
    """Return the grid of `size` members in `rows` rows."""
    cuts = [size * row // rows for row in range(rows + 1)]
    return Grid(tuple(range(cuts[row], cuts[row + 1]) for row in range(rows)))


# The driver sends each member its rank assignment with its order for the generation.

TOKEN_BYTES = 16

Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class RankAssignment:
    """A member's place in one generation: its rank, the addresses of its peers by their ranks, and the token.

    `rows` is the grid's number of rows. `store` is the address of the driver's torch store, for members with GPUs only.
    """

    rank: int
    size: int
    rows: int
    addresses: Mapping[int, Address]
    token: bytes = field(repr=False)
    timeout_seconds: float
    store: Address | None = None

    @property
    def grid(self) -> Grid:
        """Return the grid in which the members are connected."""
        return grid_of(self.size, self.rows)


def assign_ranks(
    addresses: Sequence[Address],
    token: bytes,
    timeout_seconds: float,
    store: Address | None = None,
    *,
    all_connected: bool = False,
) -> Iterator[RankAssignment]:
    """Return the rank assignments of the members at these addresses; each names the addresses of its own peers.

    If `all_connected`, all members are peers of each other, however many they are.
    """
    size = len(addresses)
    rows = 1 if all_connected else rows_for(len(addresses))
    for rank in range(size):
        peers = {peer: addresses[peer] for peer in grid_of(size, rows).peers(rank)}
        yield RankAssignment(rank, size, rows, peers, token, timeout_seconds, store)


# How members of a generation connect: each dials its peers of lower rank, and its listener accepts those of higher.
# Every connection begins with the generation's token and the rank of the member that dials; the driver sends the token
# to members alone. A thread of its own greets each connection, since a stranger may connect and stay silent; after the
# greeting, only the thread that trains uses the connection.

_RANK_BYTES = 4
_POLL_SECONDS = 0.1  # between two checks that the generation is not over
_GREETING_SHARE = 0.3  # of the time for forming; one connection's handshake, token and rank may take that long
_MOST_GREETED = 64  # connections at once
_BACKLOG = 1024


@dataclass(frozen=True, slots=True)
class Encryption:
    """A member's TLS contexts with the job's certificate: one for accepting connections, one for dialling.

    If not `is_kept`, TLS only carries the greeting, which proves both ends, and the connection goes on in plain TCP:
    nobody but root can read or change bytes that travel inside one machine. The greeting then also has the rank that is
    dialled: a process that listens at a dead member's port and relays the greeting to a living member stays outside.
    """

    greets: ssl.SSLContext
    dials: ssl.SSLContext
    is_kept: bool = True

    def __post_init__(self) -> None:
        # If the peer has not read a session ticket, closing loses the bytes that were sent last.
        self.greets.num_tickets = 0


class Listener:
    """The port at which a member accepts the members of higher rank, in every generation."""

    def __init__(self, host: str) -> None:
        family = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][0]
        self._server = socket.create_server((host, 0), family=family, backlog=_BACKLOG)
        self._server.setblocking(False)
        self.address: Address = self._server.getsockname()[:2]

    def fileno(self) -> int:
        """Return the socket's descriptor, which becomes readable when a process connects.

        Raises ConnectionError if it is closed.
        """
        if self._server.fileno() < 0:
            raise ConnectionError("the run has ended")
        return self._server.fileno()

    def accept(self) -> socket.socket | None:
        """Return the next connection; None if there is none. Raises ConnectionError once closed, or another OSError."""
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
    assignment: RankAssignment,
    listener: Listener,
    encryption: Encryption | None,
    is_over: Callable[[], bool],
    seconds: float,
) -> dict[int, socket.socket]:
    """Return a connection to every peer of this assignment, by rank.

    Raises OSError if a peer does not connect within `seconds`, and as soon as `is_over()` is true.
    """
    with _Forming(assignment, encryption, seconds) as forming:
        return forming.connected(listener, is_over)


class _Forming:
    """The connections of a member while its group forms; a thread that connects too late closes its connection."""

    def __init__(self, assignment: RankAssignment, encryption: Encryption | None, seconds: float) -> None:
        self._assignment = assignment
        self._encryption = encryption
        self._ends = time.monotonic() + seconds
        self._greeting_seconds = _GREETING_SHARE * seconds
        self._is_only_greeted = encryption is not None and not encryption.is_kept
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
            # After an error nobody else has the connections to close them.
            for connection in self._peers.values() if kind else ():
                connection.close()

    def connected(self, listener: Listener, is_over: Callable[[], bool]) -> dict[int, socket.socket]:
        threading.Thread(target=self._dial_all, name="dial", daemon=True).start()
        while len(self._peers) < len(self._assignment.addresses):
            if is_over():
                raise ConnectionError("the generation is over already")
            waiting = select.poll()  # not select.select, which takes no descriptor above 1,023
            waiting.register(listener, select.POLLIN)
            waiting.register(self._news, select.POLLIN)
            ready = [number for number, _ in waiting.poll(min(_POLL_SECONDS, _left(self._ends)) * 1e3)]
            if self._news.fileno() in ready:
                self._news.recv(_BACKLOG)
            if self._failed is not None:
                raise self._failed
            # While too many are greeted, further connections wait in the listener's backlog.
            if listener.fileno() in ready and self._greeted.acquire(timeout=_POLL_SECONDS):
                connection = listener.accept()
                if connection is None:
                    self._greeted.release()
                else:
                    threading.Thread(target=self._greet, args=(connection,), name="greet", daemon=True).start()
        for peer in self._peers.values():
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            peer.setblocking(False)
        return self._peers

    def _greet(self, connection: socket.socket) -> None:
        # A stranger that stays silent takes a place among the greeted for this long only.
        seconds = min(self._greeting_seconds, max(self._ends - time.monotonic(), _POLL_SECONDS))
        try:
            connection.settimeout(seconds)
            if self._encryption:
                connection = self._encryption.greets.wrap_socket(connection, server_side=True)
            greeting = _received(connection, TOKEN_BYTES + _RANK_BYTES)
            token = greeting[:TOKEN_BYTES]
            rank = int.from_bytes(greeting[TOKEN_BYTES:], "big")
            # In a time that does not depend on the token, so that a stranger learns nothing of it by trying.
            is_member = secrets.compare_digest(token, self._assignment.token)
            if len(greeting) < TOKEN_BYTES + _RANK_BYTES or not is_member:
                raise ConnectionError("a stranger")
            if rank < self._assignment.rank or rank not in self._assignment.addresses:
                raise ConnectionError("a rank that should not dial")
            if self._is_only_greeted and _received(connection, _RANK_BYTES) != self._rank_bytes(self._assignment.rank):
                raise ConnectionError("another rank is dialled")
            self._keep(rank, self._greeted_over(connection))
        except OSError:
            connection.close()
        finally:
            self._greeted.release()

    def _dial_all(self) -> None:
        try:
            for peer in self._assignment.addresses:
                if peer < self._assignment.rank:
                    self._keep(peer, self._dial(peer))
        except OSError as error:
            self._failed = error
            self._tell()

    def _dial(self, peer: int) -> socket.socket:
        connection = socket.create_connection(self._assignment.addresses[peer], timeout=_left(self._ends))
        try:
            if self._encryption:
                connection = self._encryption.dials.wrap_socket(connection)
            greeting = self._assignment.token + self._rank_bytes(self._assignment.rank)
            if self._is_only_greeted:
                greeting += self._rank_bytes(peer)
            connection.sendall(greeting)
            return self._greeted_over(connection)
        except OSError:
            connection.close()
            raise

    def _greeted_over(self, connection: socket.socket) -> socket.socket:
        """Return the connection as it is after the greeting: without TLS, if that was only for the greeting."""
        if not self._is_only_greeted:
            return connection
        assert isinstance(connection, ssl.SSLSocket)
        return socket.socket(fileno=connection.unwrap().detach())

    @staticmethod
    def _rank_bytes(rank: int) -> bytes:
        return rank.to_bytes(_RANK_BYTES, "big")

    def _keep(self, peer: int, connection: socket.socket) -> None:
        """Keep the connection, unless its rank is connected already or forming is over."""
        with self._lock:
            if self._is_done or peer in self._peers:
                connection.close()
                return
            self._peers[peer] = connection
        self._tell()

    def _tell(self) -> None:
        with suppress(OSError):
            self._wake.send(b".")


def _received(connection: socket.socket, count: int) -> bytes:
    """Return the next `count` bytes, or fewer if the other end closes the connection."""
    received = b""
    while len(received) < count:
        more = connection.recv(count - len(received))
        if not more:
            break
        received += more
    return received


def _left(ends: float) -> float:
    left = ends - time.monotonic()
    if left <= 0:
        raise TimeoutError("not every member connected in time")
    return left
