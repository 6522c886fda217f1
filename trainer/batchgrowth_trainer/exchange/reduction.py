"""The all-reduce: partial sums of every member in, the same total out, with the bits of the fixed tree.

Short rows, or those of two members, are sent to every member, and each adds them up: one round trip.
Long rows are cut into one slice per member: each sends the others their slices, adds up its own along the tree, and
sends the result to all: the bytes of a ring, 2 (P-1)/P of a row per member, and the same total for every P, since an
element's sum does not depend on the member that computes it.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from batchgrowth_trainer.exchange.group import Group
from batchgrowth_trainer.replica.tree import Layout, add_up, lay_out

_SHORT_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Reduced:
    """`total` has the shape of a row; `wait_seconds` is the time until the peers' sums had arrived."""

    total: Tensor
    wait_seconds: float


class Reduction:
    """Adds rows of one length over one group; reuses its receive buffers from update to update."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._peers = [peer for peer in range(group.size) if peer != group.rank]
        self._buffers: dict[tuple[str, int, int, torch.dtype], Tensor] = {}

    def __call__(self, mine: Sequence[Tensor], shards: int, like: Tensor) -> Reduced:
        """The total over all shards; `mine` are the rows of this member's nodes, shape (L,) like `like`.

        Overwrites `mine`. The total is valid until the next call. Raises PeerLost.
        """
        layout = lay_out(shards, self._group.size)
        if self._group.size == 1:
            return Reduced(add_up(mine, layout), 0.0)
        straight = self._group.size == 2 or like.nbytes <= _SHORT_BYTES
        return self._straight(mine, layout, like) if straight else self._sliced(mine, layout, like)

    def _straight(self, mine: Sequence[Tensor], layout: Layout, like: Tensor) -> Reduced:
        outgoing = dict.fromkeys(self._peers, _packed(mine)) if mine else {}
        rows, waited = self._collect("rows", outgoing, mine, layout, like)
        return Reduced(add_up(rows, layout), waited)

    def _sliced(self, mine: Sequence[Tensor], layout: Layout, like: Tensor) -> Reduced:
        rank, size = self._group.rank, self._group.size
        cuts = [len(like) * peer // size for peer in range(size + 1)]
        spans = [slice(cuts[peer], cuts[peer + 1]) for peer in range(size)]
        outgoing = {peer: _packed([row[spans[peer]] for row in mine]) for peer in self._peers if mine}
        own = [row[spans[rank]] for row in mine]
        rows, waited = self._collect("slices", outgoing, own, layout, like[spans[rank]])
        total = self._buffer("total", 0, len(like), like)
        total[spans[rank]] = add_up(rows, layout)
        parts = {peer: total[spans[peer]] for peer in self._peers}
        self._group.swap(dict.fromkeys(self._peers, total[spans[rank]]), parts)
        return Reduced(total, waited)

    def _collect(
        self, use: str, outgoing: dict[int, Tensor], mine: Sequence[Tensor], layout: Layout, like: Tensor
    ) -> tuple[list[Tensor], float]:
        counts = [len(nodes) for nodes in layout.nodes]
        received = {
            peer: self._buffer(use, peer, counts[peer] * len(like), like) for peer in self._peers if counts[peer]
        }
        began = time.perf_counter()
        self._group.swap(outgoing, received)
        waited = time.perf_counter() - began
        rows: list[Tensor] = []
        for peer in range(self._group.size):
            rows += mine if peer == self._group.rank else received[peer].view(-1, len(like)) if counts[peer] else []
        return rows, waited

    def _buffer(self, use: str, peer: int, length: int, like: Tensor) -> Tensor:
        key = (use, peer, length, like.dtype)
        if key not in self._buffers:
            self._buffers[key] = torch.empty(length, dtype=like.dtype, device=like.device)
        return self._buffers[key]


@lru_cache(maxsize=256)
def bytes_sent(shards: int, members: int, length: int, item: int = 4) -> int:
    """Bytes that all members together send in one reduction of rows of `length` items of `item` bytes."""
    counts, others = [len(nodes) for nodes in lay_out(shards, members).nodes], members - 1
    if members == 2 or length * item <= _SHORT_BYTES:
        return sum(counts) * others * length * item
    slices = [length * (member + 1) // members - length * member // members for member in range(members)]
    out = sum(count * (length - own) for count, own in zip(counts, slices, strict=True))
    return (out + length * others) * item


def _packed(rows: Sequence[Tensor]) -> Tensor:
    return rows[0] if len(rows) == 1 else torch.cat(list(rows))
