"""The process group of one generation: sends tensors to the other members and receives theirs, until one is lost."""

import socket
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from select import POLLERR, POLLHUP, POLLIN, POLLOUT, poll
from typing import Any, Protocol

import torch
from torch import Tensor

from batchgrowth_trainer.exchange.connections import Encryption, Grid, Listener, RankAssignment, connect_all, grid_of

# Pairwise on purpose: in a ring only the neighbours of a dead member notice its death, here every member does, at once.
# In a grid, its row and column do; they leave the group, which the others notice in turn.
# Forming a group takes milliseconds, and an update calls neither Dask nor Kubernetes.

# torch.distributed's functions know one default group per process, but its classes allow a group per generation. They
# have no type declarations.
c10d: Any = torch.distributed

_CPU = torch.device("cpu")
_FORMING_SECONDS = 10.0  # the longest that forming a group of a few may take; usually milliseconds, as all are idle
_FORMING_SECONDS_EACH = 3.0  # for each member of a larger group, which may share its cores with all others
_LARGEST_SEND = 1 << 28  # bytes; OpenSSL counts in 31 bits
_MOST_WAKES = 4096
_LOOK_SECONDS = 0.5  # between two checks that the generation is not over, while no byte moves
_NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class PeerLost(Exception):
    """The group cannot go on, because a peer was lost, the generation is over or this member failed.

    The update under way has not been committed.
    """


class Group(Protocol):
    """The process group as an exchange uses it."""

    rank: int
    size: int
    grid: Grid
    likes_buckets: bool
    """Whether several swaps during the backward pass are better than one after it. All members of a group agree."""
    bytes_sent: int
    """The bytes of the tensors that this member has sent."""

    def swap(self, outgoing: Mapping[int, Tensor], incoming: Mapping[int, Tensor]) -> None:
        """Send each tensor of `outgoing` to its peer and fill each of `incoming`, all at once. Raises PeerLost."""

    def close(self) -> None:
        """Disconnect from the peers, which notice it at once."""


class LoneGroup:
    """The group of a member without peers."""

    rank = 0
    size = 1
    grid = grid_of(1)
    likes_buckets = False
    bytes_sent = 0

    def swap(self, outgoing: Mapping[int, Tensor], incoming: Mapping[int, Tensor]) -> None:
        """Do nothing: there is no peer."""
        assert not outgoing
        assert not incoming

    # `arrived` and `wake` are for Downpour alone, whose protocol Served has them.
    def arrived(self, peers: set[int], seconds: float) -> list[int]:  # noqa: ARG002
        """Return no rank: there is no peer."""
        assert not peers
        return []

    def wake(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


# The thread that trains serves its connections itself. Gloo serves them in a second thread: if that wakes while the
# training thread holds a connection's lock in a send, it polls until its time slice ends; if the two share a core, the
# sender cannot go on and release the lock before. docs/benchmarks.md has the figures.


class Mesh:
    """Non-blocking connections to peers, by rank; not thread-safe.

    A member that waits for its peers gives up as soon as `is_over()` is true.
    """

    def __init__(self, peers: Mapping[int, socket.socket], is_over: Callable[[], bool] = lambda: False) -> None:
        self.bytes_sent = 0
        self._peers = peers
        self._is_over = is_over
        # A thread that waits in poll() is woken by a byte: no lock or event wakes it.
        self._news, self._wake = socket.socketpair()
        self._news.setblocking(False)
        self._wake.setblocking(False)

    def arrived(self, peers: Iterable[int], seconds: float) -> list[int]:
        """Return the ranks that have sent something or are gone; after `seconds` or a `wake`, perhaps none."""
        held = [peer for peer in peers if (pending := getattr(self._peers[peer], "pending", None)) and pending()]
        if held:  # TLS may hold bytes that the kernel no longer has
            return held
        waiting = poll()
        ranks = {self._peers[peer].fileno(): peer for peer in peers}
        for number in (*ranks, self._news.fileno()):
            waiting.register(number, POLLIN)
        numbers = [number for number, _ in waiting.poll(seconds * 1e3)]
        if self._news.fileno() in numbers:
            self._news.recv(_MOST_WAKES)
        return [ranks[number] for number in numbers if number in ranks]

    def wake(self) -> None:
        """Make the running call of `arrived` return, or else its next call; any thread may call this."""
        with suppress(BlockingIOError):
            self._wake.send(b".")

    def swap_bytes(
        self, outgoing: Mapping[int, memoryview], incoming: Mapping[int, memoryview], seconds: float
    ) -> None:
        """Send to and receive from all these ranks at once.

        Raises ConnectionError if a peer is gone or the generation is over, and TimeoutError if no byte moves for
        `seconds`.
        """
        sends = {peer: part for peer, part in outgoing.items() if part}
        receives = {peer: part for peer, part in incoming.items() if part}
        # Before the first poll(): the kernel takes most sums at once, and what peers have sent is often here already.
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
        waiting = poll()
        ranks = {}
        for peer in sends.keys() | receives.keys():
            number = self._peers[peer].fileno()
            ranks[number] = peer
            waiting.register(number, (POLLIN if peer in receives else 0) | (POLLOUT if peer in sends else 0))
        # The kernel reports a dead peer as an event; the clock is for one that hangs, or a generation that has ended.
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
                count = self._peers[peer].send(sends[peer][:_LARGEST_SEND])
                self.bytes_sent += count
                sends[peer] = sends[peer][count:]
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


class TcpGroup(Mesh):
    """Sends through the CPU: tensors on another device are copied."""

    likes_buckets = True

    def __init__(
        self,
        assignment: RankAssignment,
        listener: Listener,
        encryption: Encryption | None = None,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        self.rank = assignment.rank
        self.size = assignment.size
        self.grid = assignment.grid
        self._patience = assignment.timeout_seconds
        with _peer_errors():
            super().__init__(
                connect_all(assignment, listener, encryption, is_over, _forming(assignment).total_seconds()), is_over
            )

    def swap(self, outgoing: Mapping[int, Tensor], incoming: Mapping[int, Tensor]) -> None:
        with _moved(outgoing, incoming, _CPU) as (sends, landing), _peer_errors():
            self.swap_bytes(
                {peer: tensor.numpy().data for peer, tensor in sends.items()},
                {peer: tensor.numpy().data for peer, tensor in landing.items()},
                self._patience,
            )

    def arrived(self, peers: Iterable[int], seconds: float) -> list[int]:
        with _peer_errors():
            return super().arrived(peers, seconds)


class NcclGroup:
    """Peers on GPUs, one each. The sends and receives of a swap are coalesced into one launch.

    Tensors of the CPU, such as positions and sums of metrics, are copied through the GPU. All are sent as bytes, since
    NCCL does not know each dtype that a buffer may have.
    """

    likes_buckets = False  # each swap waits for its kernels

    def __init__(self, assignment: RankAssignment) -> None:
        self.rank = assignment.rank
        self.size = assignment.size
        self.grid = assignment.grid
        self.bytes_sent = 0
        self._device = torch.device("cuda", torch.cuda.current_device())
        options = c10d.ProcessGroupNCCL.Options()
        options._timeout = timedelta(seconds=assignment.timeout_seconds)
        with _peer_errors():
            self._group = c10d.ProcessGroupNCCL(_store(assignment), assignment.rank, assignment.size, options)

    def swap(self, outgoing: Mapping[int, Tensor], incoming: Mapping[int, Tensor]) -> None:
        if not outgoing and not incoming:
            return
        with _moved(outgoing, incoming, self._device) as (sends, landing), _peer_errors():
            self._group._start_coalescing(self._device)
            for peer, sent in sends.items():
                self._group.send([sent], peer, 0)
                self.bytes_sent += sent.nbytes
            for peer, received in landing.items():
                self._group.recv([received], peer, 0)
            self._group._end_coalescing(self._device).wait()
            torch.cuda.synchronize(self._device)

    def close(self) -> None:
        """Abort running operations, so that no peer waits for this member."""
        self._group.abort()


def form_group(
    assignment: RankAssignment, listener: Listener, encryption: Encryption | None, is_over: Callable[[], bool]
) -> Group:
    """Return the group once every member of the generation has joined: by NCCL if the assignment names a store.

    Raises PeerLost if a member does not join in time, or once `is_over()` is true. A group over TCP keeps checking
    `is_over()` in every exchange.
    """
    if assignment.size == 1:
        return LoneGroup()
    return NcclGroup(assignment) if assignment.store else TcpGroup(assignment, listener, encryption, is_over)


def _forming(assignment: RankAssignment) -> timedelta:
    """Return the timeout for forming a group. Connecting to a dead peer or a closed store blocks until this timeout."""
    return timedelta(
        seconds=min(max(_FORMING_SECONDS, _FORMING_SECONDS_EACH * assignment.size), assignment.timeout_seconds)
    )


def _store(assignment: RankAssignment) -> Any:
    assert assignment.store is not None
    host, port = assignment.store
    try:
        # A store that its driver has closed refuses the connection at once; TCPStore itself would retry.
        socket.create_connection((host, port), timeout=_forming(assignment).total_seconds()).close()
    except OSError as error:
        raise PeerLost(f"the generation is over already ({error})") from error
    return c10d.TCPStore(host, port, is_master=False, timeout=_forming(assignment), wait_for_workers=False)


@contextmanager
def _moved(
    outgoing: Mapping[int, Tensor], incoming: Mapping[int, Tensor], device: torch.device
) -> Iterator[tuple[dict[int, Tensor], dict[int, Tensor]]]:
    """Return these contiguous tensors as bytes on `device`; afterwards, copy received bytes back into `incoming`.

    A tensor that goes to several peers is copied once.
    """
    tensors = (*outgoing.values(), *incoming.values())
    own = {id(tensor): tensor.detach().view(-1).view(torch.uint8) for tensor in tensors}
    moved = {number: each.to(device) for number, each in own.items()}  # the same object if it is there already
    yield (
        {peer: moved[id(tensor)] for peer, tensor in outgoing.items()},
        {peer: moved[id(tensor)] for peer, tensor in incoming.items()},
    )
    for tensor in incoming.values():
        if moved[id(tensor)] is not own[id(tensor)]:
            own[id(tensor)].copy_(moved[id(tensor)])


@contextmanager
def _peer_errors() -> Iterator[None]:
    """Raise PeerLost for an OSError of a connection, or for any of the RuntimeErrors by which torch reports a lost
    peer.
    """
    try:
        yield
    except (RuntimeError, OSError) as error:
        raise PeerLost(str(error).partition("\n")[0][:300]) from error


# When their group has formed, members learn where each of them stands, and get the state of the most advanced one. They
# use only the connections of the grid; in a mesh that is one trip.


def swap_with_all(group: Group, mine: Tensor) -> list[Tensor]:
    """Send `mine` to all members, and return each member's tensor, by rank, of the same shape. Raises PeerLost."""
    grid = group.grid
    rank = group.rank
    row = grid.row(rank)
    column = grid.column(rank)
    block = _joined(group, row, mine.unsqueeze(0), dict.fromkeys(row, 1))
    if grid.is_mesh:
        return list(block)
    if column:
        table = _joined(group, column, block, {peer: len(grid.row(peer)) for peer in column})
        if rank == row[0] and len(row) > grid.width:
            group.swap({row[-1]: table}, {})
    else:
        table = mine.new_empty((grid.size, *mine.shape))
        group.swap({}, {row[0]: table})
    return list(table)


def spread_state(group: Group, holds: Sequence[bool], vectors: Sequence[Tensor]) -> None:
    """Copy the state's vectors from the members that hold it to all other members. Raises PeerLost."""
    for turn in group.grid.routes(holds):
        for sender, receivers in turn.items():
            for vector in vectors:
                if group.rank == sender:
                    group.swap(dict.fromkeys(receivers, vector), {})
                elif group.rank in receivers:
                    group.swap({}, {sender: vector})


def _joined(group: Group, ranks: Sequence[int], mine: Tensor, lengths: dict[int, int]) -> Tensor:
    """Return the tensors of these ranks, concatenated; `lengths` are their first dimensions."""
    landing = {peer: mine.new_empty((lengths[peer], *mine.shape[1:])) for peer in ranks if peer != group.rank}
    group.swap(dict.fromkeys(landing, mine), landing)
    return torch.cat([mine if peer == group.rank else landing[peer] for peer in ranks])


class Rendezvous:
    """The store in the driver that NCCL needs: through it, the members of a generation with GPUs find each other.

    It is a TCPStore that listens on `host` only. Each generation has its own: closing it unblocks the members that
    still wait for one that has died.
    """

    def __init__(self, host: str) -> None:
        self.host = host
        family = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][0]
        self._listener = socket.create_server((host, 0), family=family, backlog=256)
        self.port = int(self._listener.getsockname()[1])
        self._store: Any = c10d.TCPStore(
            host,
            self.port,
            is_master=True,
            wait_for_workers=False,
            timeout=timedelta(seconds=30),
            master_listen_fd=self._listener.detach(),
        )

    def close(self) -> None:
        """Disconnect the members that still wait; groups that have formed go on."""
        self._store = None
