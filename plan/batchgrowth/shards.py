"""The shards of a batch, and their assignment to workers.

Their gradients are added along the tree of sum_tree.py. A shard's seed and its examples are the trainer's:
replica/seeds.py, and `example_order` in replica/data.py.
"""

from functools import lru_cache
from itertools import pairwise


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
    kept = (low - 1 ^ high).bit_length() - 1  # below this bit, a multiple of 2^kept lies in (low - 1, high]
    return high >> kept << kept


def busiest(examples: int, shards: int, workers: int) -> float:
    """Return the number of examples of the worker with the longest run, assuming shards of mean size."""
    return examples * -(-shards // workers) / shards
