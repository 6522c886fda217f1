"""The one tree: however the leaves are distributed, the sum has the same bits."""

from __future__ import annotations

import operator
from itertools import pairwise

import pytest
from batchgrowth.shards import lay_out, lay_out_runs, merge_order, shard_runs, split, subtrees, tree_sum
from hypothesis import given, settings
from hypothesis import strategies as st

counts = st.integers(1, 300)


def level_by_level(leaves: list[float]) -> float:
    """The fixed tree by its definition: pair neighbours; an odd last one moves up unchanged."""
    while len(leaves) > 1:
        pairs = [a + b for a, b in zip(leaves[::2], leaves[1::2], strict=False)]
        leaves = pairs + leaves[2 * len(pairs) :]
    return leaves[0]


def tree(shards: int) -> set[tuple[int, int]]:
    """Every node of the tree as its definition says: the aligned blocks."""
    return {(a, min(a + 2**j, shards)) for j in range(10) for a in range(0, shards, 2**j)}


def along(nodes: list[tuple[int, int]], leaves: list[float]) -> float:
    """The sum of leaves: each node by itself, then the merges."""
    slots = [level_by_level(leaves[lo:hi]) for lo, hi in nodes]
    for left, right in merge_order(nodes, len(leaves)):
        slots[left] += slots[right]
    return slots[0]


@settings(max_examples=300)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=200), st.integers(1, 40))
def test_any_number_of_workers_gives_the_same_bits(leaves: list[float], workers: int) -> None:
    runs = shard_runs(len(leaves), workers)
    nodes = [node for lo, hi in runs for node in subtrees(lo, hi, len(leaves))]
    assert level_by_level(leaves).hex() == along(nodes, leaves).hex()


@settings(max_examples=300)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=200), st.data())
def test_any_split_gives_the_same_bits(leaves: list[float], data: st.DataObject) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(leaves)), max_size=10).map(sorted))
    nodes = [n for lo, hi in pairwise([0, *cuts, len(leaves)]) for n in subtrees(lo, hi, len(leaves))]
    assert level_by_level(leaves).hex() == along(nodes, leaves).hex()


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=200))
def test_a_tree_sum_adds_in_the_trees_order(leaves: list[float]) -> None:
    total = tree_sum(0, len(leaves), leaves.__getitem__, operator.add)
    assert level_by_level(leaves).hex() == total.hex()


@given(st.integers(2, 300), st.data())
def test_a_split_gives_two_nodes_of_the_tree(shards: int, data: st.DataObject) -> None:
    node = data.draw(st.sampled_from([n for n in tree(shards) if n[1] - n[0] > 1]))
    middle = split(*node)
    assert {(node[0], middle), (middle, node[1])} <= tree(shards)


@given(counts, st.data())
def test_subtrees_are_the_largest_nodes(shards: int, data: st.DataObject) -> None:
    """They cover the run in order, each is a node of the tree, and no two of them are siblings."""
    lo = data.draw(st.integers(0, shards))
    hi = data.draw(st.integers(lo, shards))
    nodes = subtrees(lo, hi, shards)
    assert list(range(lo, hi)) == [x for a, b in nodes for x in range(a, b)]
    assert set(nodes) <= tree(shards)
    assert not any((a, d) in tree(shards) and (a, d) != (a, b) for (a, b), (_, d) in pairwise(nodes))


@pytest.mark.parametrize(
    ("nodes", "shards", "expected"),
    [
        ([], 0, ()),
        ([(0, 1)], 1, ()),
        ([(0, 1), (1, 2), (2, 3)], 3, ((0, 1), (0, 2))),
        ([(0, 4), (4, 5)], 5, ((0, 1),)),
        ([(0, 2), (2, 4), (4, 6), (6, 7)], 7, ((0, 1), (2, 3), (0, 2))),
    ],
)
def test_merge_order(nodes: list[tuple[int, int]], shards: int, expected: tuple[tuple[int, int], ...]) -> None:
    assert merge_order(nodes, shards) == expected


@given(counts, st.data())
def test_merge_order_of_a_part(shards: int, data: st.DataObject) -> None:
    """Adjacent runs, each as its subtrees, complete those of all the runs together."""
    cuts = sorted(data.draw(st.lists(st.integers(0, shards), min_size=2, max_size=6)))
    nodes = [node for lo, hi in pairwise(cuts) for node in subtrees(lo, hi, shards)]
    into = subtrees(cuts[0], cuts[-1], shards)
    slots = [{*range(lo, hi)} for lo, hi in nodes]
    for left, right in merge_order(nodes, shards, into):
        assert (min(slots[left]), max(slots[right]) + 1) in tree(shards)
        slots[left] |= slots[right]
    firsts = {lo: slots[at] for at, (lo, _) in enumerate(nodes)}
    assert [{*range(lo, hi)} for lo, hi in into] == [firsts[lo] for lo, _ in into]


@pytest.mark.parametrize(
    "nodes",
    [[(0, 2)], [(0, 3), (3, 4)], [(0, 4), (0, 4)], [(0, 2), (2, 4), (2, 3)], []],
    ids=["a gap", "no node", "twice", "overlap", "none"],
)
def test_merge_order_refuses_what_is_no_cover(nodes: list[tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match="give"):
        merge_order(nodes, 4)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=200), st.integers(1, 40))
def test_a_layout_gives_the_same_bits_for_any_number_of_members(leaves: list[float], members: int) -> None:
    layout = lay_out(len(leaves), members)
    assert shard_runs(len(leaves), members) == layout.runs
    sums = [level_by_level(leaves[lo:hi]) for nodes in layout.nodes for lo, hi in nodes]
    for left, right in layout.order:
        sums[left] += sums[right]
    assert [level_by_level(leaves).hex()] == [sums[slot].hex() for slot in layout.sums]


@given(counts, st.data())
def test_a_layout_of_some_runs_adds_up_the_subtrees_that_cover_them(shards: int, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, shards), min_size=2, max_size=6)))
    layout = lay_out_runs(shards, [*pairwise(cuts)])
    sums = [{*range(lo, hi)} for nodes in layout.nodes for lo, hi in nodes]
    for left, right in layout.order:
        sums[left] |= sums[right]
    assert [{*range(lo, hi)} for lo, hi in subtrees(cuts[0], cuts[-1], shards)] == [sums[slot] for slot in layout.sums]
