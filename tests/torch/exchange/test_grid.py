"""Which members of a large group are connected."""

import pytest
from batchgrowth_trainer.exchange.connections import LARGEST_MESH, Grid, assign_ranks, grid_of, rows_for
from hypothesis import given, settings
from hypothesis import strategies as st

SIZES = st.one_of(st.integers(1, 100), st.sampled_from([101, 255, 256, 999, 1000]))


@settings(max_examples=40, deadline=None)
@given(SIZES)
def test_few_connections_for_each_member(size: int) -> None:
    """All others up to LARGEST_MESH, then those of its row and its column; each knows the other as a peer."""
    grid = grid_of(size, rows_for(size))
    peers = [set(grid.peers(rank)) for rank in range(size)]
    assert all(rank in peers[peer] for rank in range(size) for peer in peers[rank])
    assert not any(rank in peers[rank] for rank in range(size))
    if size <= LARGEST_MESH:
        assert {size - 1} == set(map(len, peers))
    else:
        assert max(map(len, peers)) <= 2 * size**0.5 + 1


@settings(max_examples=40, deadline=None)
@given(SIZES, st.data())
def test_rows_are_runs_of_ranks_and_columns_cross_all_of_them(size: int, data: st.DataObject) -> None:
    grid = grid_of(size, data.draw(st.integers(1, size)))
    assert list(range(size)) == [rank for row in grid.rows for rank in row]
    for row in grid.rows:
        columns = [grid.column(rank) for rank in row]
        assert [row[place] for place in range(grid.width)] == [
            column[row_at(grid, row)] for column in columns if column
        ]
        assert columns[grid.width :] in ([], [()])


def row_at(grid: Grid, row: range) -> int:
    return grid.rows.index(row)


@settings(max_examples=40, deadline=None)
@given(SIZES, st.data())
def test_a_state_reaches_everyone_once(size: int, data: st.DataObject) -> None:
    """In at most three turns, from members that have it to peers that lack it, and none sends it to many."""
    rows = data.draw(st.sampled_from([1, rows_for(size), min(3, size)]))
    grid = grid_of(size, rows)
    holds = data.draw(st.lists(st.booleans(), min_size=size, max_size=size).filter(any))
    turns = grid.routes(holds)
    for turn in turns:
        receivers = [receiver for to in turn.values() for receiver in to]
        assert all(holds[sender] and set(to) <= set(grid.peers(sender)) for sender, to in turn.items())
        assert not any(holds[receiver] for receiver in receivers)
        assert len(receivers) == len(set(receivers))
        for receiver in receivers:
            holds[receiver] = True
    assert all(holds)
    assert len(turns) <= 3


@pytest.mark.parametrize(("size", "most"), [(64, 63), (65, 17), (1000, 33)])
def test_one_member_s_state_for_all_of_the_others(size: int, most: int) -> None:
    turns = grid_of(size, rows_for(size)).routes([True] + [False] * (size - 1))
    assert most >= max(len(to) for turn in turns for to in turn.values())


def test_a_rank_assignment_names_the_addresses_of_its_peers_alone() -> None:
    addresses = [("10.0.0.1", port) for port in range(1000)]
    for assignment in assign_ranks(addresses, b"token", 60.0):
        assert list(grid_of(1000, rows_for(1000)).peers(assignment.rank)) == list(assignment.addresses)
        assert all(addresses[peer] == address for peer, address in assignment.addresses.items())


def test_replicas_that_stay_apart_connect_all_members() -> None:
    addresses = [("10.0.0.1", port) for port in range(100)]
    for assignment in assign_ranks(addresses, b"token", 60.0, all_connected=True):
        assert assignment.grid.is_mesh
        assert len(assignment.addresses) == 99
