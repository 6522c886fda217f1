"""The shards of a batch: how many there are, which worker computes which, and the tree along which they are added.

The tree over S shards depends on S alone. Each level pairs neighbours and passes an odd last one up unchanged, so the
nodes are the aligned blocks [k·2^j, min((k+1)·2^j, S)). A sum of floats along this tree has the same bits for every
assignment of shards to workers. A worker adds the nodes that contain only its shards (the trainer's
replica/replica.py), and the exchange adds these nodes' sums (exchange/all_reduce.py).

A shard's seed and its examples are the trainer's: replica/seeds.py, and `example_order` in replica/data.py.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TypeVar

T = TypeVar("T")


def shard_count(examples: int, shard: int, replicas: int = 1) -> int:
    """Return the number S of shards of a batch, each of at most `shard` examples.

    Each of the `replicas` logical replicas that share the batch gets the same number of shards.
    """
    return replicas * -(-examples // (replicas * shard))


@lru_cache(maxsize=16)
def shard_bounds(examples: int, shards: int) -> tuple[int, ...]:
    """Return S + 1 increasing offsets into a batch: shard i holds the examples [bounds[i], bounds[i + 1]).

    Shard sizes differ by at most one.
    """
    if shards == 0:
        return (0,)
    return tuple(index * examples // shards for index in range(shards + 1))


@lru_cache(maxsize=4096)
def shard_runs(shards: int, workers: int) -> tuple[tuple[int, int], ...]:
    """Return one run [from, to) of shards per worker, in order, none longer than ceil(shards / workers).

    Worker 0 always has shard 0; workers beyond the number of shards get an empty run. Runs end at boundaries of large
    subtrees: a run then consists of few subtrees, and only their sums are sent.
    """
    busy = min(shards, workers)
    longest = -(-shards // workers)
    bounds = [0]
    for behind in range(busy - 1, 0, -1):  # workers after this one
        earliest = max(bounds[-1] + 1, shards - behind * longest)
        latest = min(bounds[-1] + longest, shards - behind)
        bounds.append(roundest(earliest, latest))
    bounds += [shards] * (workers + 1 - len(bounds))
    return tuple(pairwise(bounds))


def roundest(low: int, high: int) -> int:
    """Return the number in [low, high], 1 <= low <= high, with the most trailing zero bits."""
    if low == high:
        return low
    kept = (low - 1 ^ high).bit_length() - 1  # the highest bit that differs, so a multiple of 2^kept is in [low, high]
    return high >> kept << kept


def busiest(examples: int, shards: int, workers: int) -> float:
    """Return the number of examples of the worker with the longest run, assuming shards of mean size."""
    return examples * -(-shards // workers) / shards


@lru_cache(maxsize=4096)
def subtrees(lo: int, hi: int, shards: int) -> tuple[tuple[int, int], ...]:
    """Return the largest nodes of the tree over `shards` leaves that together cover [lo, hi), in order."""
    nodes = []
    while lo < hi:
        size = 1
        while lo % (2 * size) == 0 and size < shards and min(lo + 2 * size, shards) <= hi:
            size *= 2
        nodes.append((lo, min(lo + size, shards)))
        lo = nodes[-1][1]
    return tuple(nodes)


def split(lo: int, hi: int) -> int:
    """Return the shard where the node [lo, hi) splits: its left half is the largest power of two below hi - lo > 1."""
    return lo + (1 << (hi - lo - 1).bit_length() - 1)


def tree_sum(lo: int, hi: int, leaf: Callable[[int], T], add: Callable[[T, T], T]) -> T:
    """Return the sum over the node [lo, hi).

    `leaf(i)` is the summand of shard i, `add(left, right)` the sum of two halves.
    """
    if hi - lo == 1:
        return leaf(lo)
    middle = split(lo, hi)
    return add(tree_sum(lo, middle, leaf, add), tree_sum(middle, hi, leaf, add))


def merge_order(
    nodes: Sequence[tuple[int, int]], shards: int, into: Sequence[tuple[int, int]] | None = None
) -> tuple[tuple[int, int], ...]:
    """Return the additions that complete the tree: pairs (left, right) of indices into `nodes`, each left += right.

    `nodes` are disjoint nodes of the tree over `shards` leaves, in order, that cover all leaves; if `into` is given,
    they cover the nodes in it instead. The sum of a node ends in the slot of its first part, so the total ends in
    slot 0. Raises ValueError for other nodes.
    """
    slots = {node: index for index, node in enumerate(nodes)}
    merges: list[tuple[int, int]] = []

    def total(lo: int, hi: int) -> int:
        if (lo, hi) in slots:
            return slots[lo, hi]
        if hi - lo == 1:
            raise ValueError(
                f"nodes: {list(nodes)}; give nodes of the tree over {shards} shards that cover all of them"
            )
        middle = split(lo, hi)
        left = total(lo, middle)
        merges.append((left, total(middle, hi)))
        return left

    whole = subtrees(0, shards, shards) if into is None else into
    for node in whole:
        total(*node)
    # Each addition makes one node of two. With another number of additions a node was left over, so some overlap.
    if len(merges) != max(len(nodes) - len(whole), 0):
        raise ValueError(f"nodes: {list(nodes)}; give disjoint nodes of the tree over {shards} shards")
    return tuple(merges)


@dataclass(frozen=True, slots=True)
class Layout:
    """How members divide the shards of an update and add their sums.

    `runs[m]` are member m's shards, `nodes[m]` the subtrees that cover them, `order` the in-place additions.
    The additions end in the slots `sums`; there is one slot, unless the runs are only a part of all shards.
    """

    runs: tuple[tuple[int, int], ...]
    nodes: tuple[tuple[tuple[int, int], ...], ...]
    order: tuple[tuple[int, int], ...]
    sums: tuple[int, ...]


@lru_cache(maxsize=256)
def lay_out(shards: int, members: int) -> Layout:
    """Return the layout of an update of `shards` shards over `members` members."""
    return lay_out_runs(shards, shard_runs(shards, members))


def lay_out_runs(shards: int, runs: Sequence[tuple[int, int]]) -> Layout:
    """Return the layout of adjacent runs, in order, of an update of `shards` shards."""
    nodes = tuple(subtrees(lo, hi, shards) for lo, hi in runs)
    slots = [node for some in nodes for node in some]
    into = subtrees(runs[0][0], runs[-1][1], shards)
    begins = {lo: slot for slot, (lo, _) in enumerate(slots)}
    return Layout(tuple(runs), nodes, merge_order(slots, shards, into), tuple(begins[lo] for lo, _ in into))
