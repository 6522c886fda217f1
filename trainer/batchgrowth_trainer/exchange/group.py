"""The process group of one generation: members that exchange tensors pairwise until one of them leaves or dies."""

import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Protocol

import torch
from torch import Tensor

from batchgrowth_trainer.exchange.connections import Door, Encryption, Grid, Mesh, Seat, connect_all, grid_of

# Pairwise on purpose: in a ring only the neighbours of a dead member notice its death, here every member does, at once.
# In a grid, its row and column do; they leave the group, which the others notice in turn.
# Forming a group takes milliseconds, and an update calls neither Dask nor Kubernetes.

# torch.distributed's functions know one default group per process, but its classes allow a group per generation. They
# have no type declarations.
c10d: Any = torch.distributed

_CPU = torch.device("cpu")
_FORMING_SECONDS = 10.0  # the longest that forming a group of a few may take; usually milliseconds, as all are idle
_FORMING_SECONDS_EACH = 3.0  # for each member of a larger group, which may share its cores with all others


class PeerLost(Exception):
    """A peer died, left, or did not answer in time; the update under way has not been committed."""


class Group(Protocol):
    """The process group as an exchange uses it."""

    rank: int
    size: int
    grid: Grid
    likes_buckets: bool
    """Whether several swaps, while others compute, are better than one. All members of a group agree."""

    def swap(self, outgoing: Mapping[int, Tensor], incoming: Mapping[int, Tensor]) -> None:
        """Send each tensor of `outgoing` to its peer and fill each of `incoming`, all at once. Raises PeerLost."""

    def close(self) -> None:
        """Disconnect from the peers, which notice it at once."""


class LoneGroup:
    """The group of one."""

    rank = 0
    size = 1
    grid = grid_of(1)
    likes_buckets = False

    def swap(self, outgoing: Mapping[int, Tensor], incoming: Mapping[int, Tensor]) -> None:
        """Do nothing: there is no peer."""
        assert not outgoing
        assert not incoming

    def arrived(self, peers: set[int], seconds: float) -> list[int]:  # noqa: ARG002
        """None: there is no peer."""
        assert not peers
        return []

    def wake(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class TcpGroup:
    """Peers on CPUs. Tensors of another device are copied through the CPU."""

    likes_buckets = True

    def __init__(
        self, seat: Seat, door: Door, encryption: Encryption | None = None, is_over: Callable[[], bool] = lambda: False
    ) -> None:
        self.rank = seat.rank
        self.size = seat.size
        self.grid = seat.grid
        self._patience = seat.timeout_seconds
        with _peer_errors():
            peers = connect_all(seat, door, encryption, is_over, _forming(seat).total_seconds())
            self._mesh = Mesh(peers, is_over)

    def swap(self, outgoing: Mapping[int, Tensor], incoming: Mapping[int, Tensor]) -> None:
        """See Group. Raises PeerLost."""
        with _moved(outgoing, incoming, _CPU) as (sends, landing), _peer_errors():
            self._mesh.swap(
                {peer: tensor.numpy().data for peer, tensor in sends.items()},
                {peer: tensor.numpy().data for peer, tensor in landing.items()},
                self._patience,
            )

    def arrived(self, peers: set[int], seconds: float) -> list[int]:
        """See Mesh.arrived. Raises PeerLost."""
        with _peer_errors():
            return self._mesh.arrived(peers, seconds)

    def wake(self) -> None:
        """See Mesh.wake."""
        self._mesh.wake()

    def close(self) -> None:
        """Close every connection."""
        self._mesh.close()


class NcclGroup:
    """Peers on GPUs, one each. The sends and receives of a swap are coalesced into one launch.

    Tensors of the CPU, such as positions and sums of metrics, are copied through the GPU. All are sent as bytes, since
    NCCL does not know each dtype that a buffer may have.
    """

    likes_buckets = False  # each swap waits for its kernels

    def __init__(self, seat: Seat) -> None:
        self.rank = seat.rank
        self.size = seat.size
        self.grid = seat.grid
        self._device = torch.device("cuda", torch.cuda.current_device())
        options = c10d.ProcessGroupNCCL.Options()
        options._timeout = timedelta(seconds=seat.timeout_seconds)
        with _peer_errors():
            self._group = c10d.ProcessGroupNCCL(_store(seat), seat.rank, seat.size, options)

    def swap(self, outgoing: Mapping[int, Tensor], incoming: Mapping[int, Tensor]) -> None:
        """See Group. Raises PeerLost."""
        if not outgoing and not incoming:
            return
        with _moved(outgoing, incoming, self._device) as (sends, landing), _peer_errors():
            self._group._start_coalescing(self._device)
            for peer, sent in sends.items():
                self._group.send([sent], peer, 0)
            for peer, received in landing.items():
                self._group.recv([received], peer, 0)
            self._group._end_coalescing(self._device).wait()
            torch.cuda.synchronize(self._device)

    def close(self) -> None:
        """Abort what is under way, so that no peer waits for this member."""
        self._group.abort()


def form_group(seat: Seat, door: Door, encryption: Encryption | None, is_over: Callable[[], bool]) -> Group:
    """Return the group of this seat's generation, once every member has joined: by NCCL if the seat names a store.

    Raises PeerLost if a member does not join in time, and as soon as `is_over()`; later an exchange over TCP does.
    """
    if seat.size == 1:
        return LoneGroup()
    return NcclGroup(seat) if seat.store else TcpGroup(seat, door, encryption, is_over)


def _forming(seat: Seat) -> timedelta:
    """Return the timeout of forming a group; connecting to a dead peer or a closed store blocks for all of it."""
    return timedelta(seconds=min(max(_FORMING_SECONDS, _FORMING_SECONDS_EACH * seat.size), seat.timeout_seconds))


def _store(seat: Seat) -> Any:
    assert seat.store is not None
    host, port = seat.store
    try:
        # A store that its driver has closed refuses the connection at once; TCPStore itself would retry.
        socket.create_connection((host, port), timeout=_forming(seat).total_seconds()).close()
    except OSError as error:
        raise PeerLost(f"the generation is over already ({error})") from error
    return c10d.TCPStore(host, port, is_master=False, timeout=_forming(seat), wait_for_workers=False)


@contextmanager
def _moved(
    outgoing: Mapping[int, Tensor], incoming: Mapping[int, Tensor], device: torch.device
) -> Iterator[tuple[dict[int, Tensor], dict[int, Tensor]]]:
    """Return the bytes of these contiguous tensors on `device`; what landed in copies of `incoming` is copied back.

    A tensor that goes to several peers is copied once.
    """
    here = {id(tensor): tensor.to(device) for tensor in {id(each): each for each in outgoing.values()}.values()}
    landing = {peer: tensor.to(device) for peer, tensor in incoming.items()}
    yield (
        {peer: _bytes_of(here[id(tensor)]) for peer, tensor in outgoing.items()},
        {peer: _bytes_of(tensor) for peer, tensor in landing.items()},
    )
    for peer, tensor in incoming.items():
        if tensor is not landing[peer]:
            tensor.copy_(landing[peer])


def _bytes_of(tensor: Tensor) -> Tensor:
    return tensor.detach().view(-1).view(torch.uint8)


@contextmanager
def _peer_errors() -> Iterator[None]:
    """Raise PeerLost for the OSError of a connection, or for one of torch's several kinds of RuntimeError."""
    try:
        yield
    except (RuntimeError, OSError) as error:
        raise PeerLost(str(error).partition("\n")[0][:300]) from error


# What members learn of each other when their group has formed: where each stands, and the state of the most advanced.
# Over the connections of the grid alone; in a mesh that is one trip.


def swap_with_all(group: Group, mine: Tensor) -> list[Tensor]:
    """Every member's tensor, in the order of the ranks; all have the shape of `mine`. Raises PeerLost."""
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
    """Copy the vectors of the members that hold the state, by rank, into those of all others. Raises PeerLost."""
    for turn in group.grid.routes(holds):
        for sender, receivers in turn.items():
            for vector in vectors:
                if group.rank == sender:
                    group.swap(dict.fromkeys(receivers, vector), {})
                elif group.rank in receivers:
                    group.swap({}, {sender: vector})


def _joined(group: Group, ranks: Sequence[int], mine: Tensor, lengths: dict[int, int]) -> Tensor:
    """Return the tensors of these ranks, one below the other; `lengths` are their first dimensions."""
    landing = {peer: mine.new_empty((lengths[peer], *mine.shape[1:])) for peer in ranks if peer != group.rank}
    group.swap(dict.fromkeys(landing, mine), landing)
    return torch.cat([mine if peer == group.rank else landing[peer] for peer in ranks])


# --- The store in the driver through which the members of a generation with GPUs find each other, as NCCL needs one ---
# One per generation: closing it unblocks the members that still wait for one that has died.


class Rendezvous:
    """A TCPStore that listens on `host` only."""

    def __init__(self, host: str) -> None:
        self.host = host
        self._listener = socket.create_server((host, 0), backlog=256)
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
