"""The fixed tree as a table: the nodes of each member, and the order in which all nodes are added."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from batchgrowth.shards import merge_order, shard_runs, subtrees
from torch import Tensor

from batchgrowth_trainer.replica.coding import Coding


@dataclass(frozen=True, slots=True)
class Layout:
    """`runs[m]` are member m's shards, `nodes[m]` the subtrees that cover them, `order` the in-place additions.

    The additions end in the slots `sums`: one, unless the runs are only a part of all shards.
    """

    runs: tuple[tuple[int, int], ...]
    nodes: tuple[tuple[tuple[int, int], ...], ...]
    order: tuple[tuple[int, int], ...]
    sums: tuple[int, ...]


@lru_cache(maxsize=256)
def lay_out(shards: int, members: int) -> Layout:
    """The layout of an update of `shards` shards over `members` members."""
    return lay_out_runs(shards, shard_runs(shards, members))


def lay_out_runs(shards: int, runs: Sequence[tuple[int, int]]) -> Layout:
    """The layout of adjacent runs, in order, of an update of `shards` shards."""
    nodes = tuple(subtrees(lo, hi, shards) for lo, hi in runs)
    slots = [node for some in nodes for node in some]
    into = subtrees(runs[0][0], runs[-1][1], shards)
    begins = {lo: slot for slot, (lo, _) in enumerate(slots)}
    return Layout(tuple(runs), nodes, merge_order(slots, shards, into), tuple(begins[lo] for lo, _ in into))


def add_up(rows: Sequence[Tensor], layout: Layout, coding: Coding | None = None, room: Tensor | None = None) -> Tensor:
    """The total of all nodes' rows, given in order; overwrites the rows.

    It is in `room` if the last addition can write there, else in the first row.
    """
    if room is None or coding is not None or not layout.order:
        [total] = add_parts(rows, layout, coding)
        return total
    *others, (left, right) = layout.order
    _add(rows, others, None)
    return torch.add(rows[left], rows[right], out=room)


def add_parts(rows: Sequence[Tensor], layout: Layout, coding: Coding | None = None) -> list[Tensor]:
    """The sums of the nodes that the layout's runs cover; overwrites the rows, given in order, and returns some.

    Each sum is rounded by the coding.
    """
    _add(rows, layout.order, coding)
    return [rows[slot] for slot in layout.sums]


def _add(rows: Sequence[Tensor], order: Sequence[tuple[int, int]], coding: Coding | None) -> None:
    for left, right in order:
        rows[left].add_(rows[right])
        if coding is not None:
            coding.round(rows[left])
