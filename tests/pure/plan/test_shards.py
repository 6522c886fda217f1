"""How a batch is cut into shards, and which worker computes which."""

from __future__ import annotations

from itertools import pairwise

import pytest
from batchgrowth.shards import roundest, shard_bounds, shard_count, shard_runs
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.fault("A07")
@given(st.integers(0, 5000), st.integers(1, 700))
def test_bounds_cut_evenly(examples: int, shard: int) -> None:
    bounds = shard_bounds(examples, shard_count(examples, shard))
    sizes = {b - a for a, b in pairwise(bounds)}
    assert (0, examples) == (bounds[0], bounds[-1])
    assert -(-examples // shard) == len(bounds) - 1
    assert not sizes or (0 < min(sizes) <= max(sizes) <= shard and max(sizes) - min(sizes) <= 1)


@given(st.integers(0, 300), st.integers(1, 60))
def test_runs_cover_all_shards_and_balance(shards: int, workers: int) -> None:
    runs = shard_runs(shards, workers)
    assert workers == len(runs)
    assert [0, *(hi for _, hi in runs)] == [*(lo for lo, _ in runs), shards]
    sizes = [hi - lo for lo, hi in runs]
    assert max(sizes) <= -(-shards // workers)
    assert [size > 0 for size in sizes] == [index < shards for index in range(workers)]


@pytest.mark.parametrize(
    ("shards", "workers", "expected"),
    [
        (16, 1, ((0, 16),)),
        (16, 2, ((0, 8), (8, 16))),
        (16, 4, ((0, 4), (4, 8), (8, 12), (12, 16))),
        (16, 3, ((0, 4), (4, 10), (10, 16))),
        (5, 2, ((0, 2), (2, 5))),
        (2, 4, ((0, 1), (1, 2), (2, 2), (2, 2))),
        (0, 2, ((0, 0), (0, 0))),
    ],
)
def test_runs(shards: int, workers: int, expected: tuple[tuple[int, int], ...]) -> None:
    assert shard_runs(shards, workers) == expected


@given(st.integers(1, 500), st.integers(0, 100))
def test_roundest_has_the_most_trailing_zeros(low: int, span: int) -> None:
    zeros = {number: (number & -number) for number in range(low, low + span + 1)}
    assert max(zeros.values()) == zeros[roundest(low, low + span)]
