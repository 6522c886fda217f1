"""The fixed tree as a table: the nodes of each member, and the order in which all nodes are added."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from batchgrowth.shards import merge_order, shard_runs, subtrees
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Layout:
    """`runs[m]` are member m's shards, `nodes[m]` the subtrees that cover them, `order` the in-place additions."""

    runs: tuple[tuple[int, int], ...]
    nodes: tuple[tuple[tuple[int, int], ...], ...]
    order: tuple[tuple[int, int], ...]


@lru_cache(maxsize=256)
def lay_out(shards: int, members: int) -> Layout:
    """The layout of an update of `shards` shards over `members` members."""
    runs = tuple(shard_runs(shards, members))
    nodes = tuple(tuple(subtrees(lo, hi, shards)) for lo, hi in runs)
    return Layout(runs, nodes, tuple(merge_order([node for some in nodes for node in some], shards)))


def add_up(rows: Sequence[Tensor], layout: Layout) -> Tensor:
    """The total of all nodes' rows, given in order; overwrites the rows and returns the first."""
    for left, right in layout.order:
        rows[left].add_(rows[right])
    return rows[0]
