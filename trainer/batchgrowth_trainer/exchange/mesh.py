"""Connections between the members of one generation, TLS or plain TCP, served by the thread that trains.

Not gloo, which serves its connections in a second thread. If that wakes while the training thread holds a connection's
lock in a send, it polls until its time slice ends; if the two share a core, the sender cannot go on and release the
lock before. docs/benchmarks.md has the figures. Here an update waits only for its peers' sums.
"""

import socket
import ssl
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from select import POLLERR, POLLHUP, POLLIN, POLLOUT, poll

_LARGEST_SEND = 1 << 28  # bytes; OpenSSL counts in 31 bits
_MOST_WAKES = 4096
_LOOK_SECONDS = 0.5  # between two checks that the generation is not over, while no byte moves
_NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Mesh:
    """One connection to every other rank, by rank; not thread-safe. The connections do not block.

    A member that waits for its peers gives up as soon as `is_over()`.
    """

    def __init__(self, peers: Mapping[int, socket.socket], is_over: Callable[[], bool] = lambda: False) -> None:
        self._peers, self._is_over = peers, is_over
        self._news, self._wake = socket.socketpair()
        self._news.setblocking(False)
        self._wake.setblocking(False)

    def arrived(self, peers: Iterable[int], seconds: float) -> list[int]:
        """Those of the ranks that have sent something, or are gone; after `seconds` or a `wake` perhaps none."""
        held = [peer for peer in peers if (pending := getattr(self._peers[peer], "pending", None)) and pending()]
        if held:  # TLS may hold bytes that the kernel no longer has
            return held
        waiting, ranks = poll(), {self._peers[peer].fileno(): peer for peer in peers}
        for number in (*ranks, self._news.fileno()):
            waiting.register(number, POLLIN)
        numbers = [number for number, _ in waiting.poll(seconds * 1e3)]
        if self._news.fileno() in numbers:
            self._news.recv(_MOST_WAKES)
        return [ranks[number] for number in numbers if number in ranks]

    def wake(self) -> None:
        """End `arrived`, or the next call of it; from any thread."""
        with suppress(BlockingIOError):
            self._wake.send(b".")

    def swap(self, outgoing: Mapping[int, memoryview], incoming: Mapping[int, memoryview], seconds: float) -> None:
        """Send to and receive from all these ranks at once.

        Raises ConnectionError if a peer is gone or it is over, and TimeoutError if no byte moves for `seconds`.
        """
        sends, receives = ({p: part for p, part in parts.items() if part} for parts in (outgoing, incoming))
        for peer in list(sends):
            self._send(peer, sends)
        for peer in list(receives):  # TLS may hold bytes that the kernel no longer has
            self._receive(peer, receives)
        while sends or receives:
            self._poll(sends, receives, seconds)

    def close(self) -> None:
        """Close every connection; bytes sent before still arrive."""
        for connection in (*self._peers.values(), self._news, self._wake):
            connection.close()

    def _poll(self, sends: dict[int, memoryview], receives: dict[int, memoryview], seconds: float) -> None:
        waiting, ranks = poll(), {}
        for peer in sends.keys() | receives.keys():
            number = self._peers[peer].fileno()
            ranks[number] = peer
            waiting.register(number, (POLLIN if peer in receives else 0) | (POLLOUT if peer in sends else 0))
        waited = 0.0
        while not (events := waiting.poll(min(_LOOK_SECONDS, seconds - waited) * 1e3)):
            waited += _LOOK_SECONDS
            if self._is_over():
                raise ConnectionError("the driver has ended the generation")
            if waited >= seconds:
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
                sends[peer] = sends[peer][self._peers[peer].send(sends[peer][:_LARGEST_SEND]) :]
        except _NOT_NOW:
            return
        del sends[peer]

    def _receive(self, peer: int, receives: dict[int, memoryview]) -> None:
        try:
            while receives[peer]:
                count = self._peers[peer].recv_into(receives[peer])
                if not count:
                    raise ConnectionError(f"rank {peer} has closed its connection")
                receives[peer] = receives[peer][count:]
        except _NOT_NOW:
            return
        del receives[peer]
