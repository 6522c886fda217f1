"""The all-reduce over members that are threads of this process: the same bits on both of its paths."""

from collections.abc import Mapping

import pytest
import torch
from batchgrowth.shards import lay_out, subtrees
from batchgrowth_trainer.exchange import all_reduce
from batchgrowth_trainer.exchange.all_reduce import Reduction, add_up
from batchgrowth_trainer.exchange.connections import grid_of, rows_for
from batchgrowth_trainer.exchange.group import LoneGroup, PeerLost, spread_state, swap_with_all
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from threads import Fake, bytes_by_member, together
from torch import Tensor


def leaves(shards: int, length: int) -> list[Tensor]:
    """One row per shard, with magnitudes so far apart that any other order of additions gives other bits."""
    draw = torch.Generator().manual_seed(shards * 1000 + length)
    return [torch.randn(length, generator=draw) * 10.0 ** (k % 7 - 3) for k in range(shards)]


def node(rows: list[Tensor], lo: int, hi: int) -> Tensor:
    if hi - lo == 1:
        return rows[lo].clone()
    middle = lo + (1 << (hi - lo - 1).bit_length() - 1)
    return node(rows, lo, middle) + node(rows, middle, hi)


def reduced(
    size: int, shards: int, length: int, times: int = 1, rows_of_grid: int = 1
) -> tuple[list[Tensor], list[Fake]]:
    rows, layout = leaves(shards, length), lay_out(shards, size)

    def act(member: Fake) -> Tensor:
        reduce = Reduction(member)
        for _ in range(times):
            mine = [node(rows, lo, hi) for lo, hi in layout.nodes[member.rank]]
            total = reduce(mine, shards, torch.empty(length)).total
        return total.clone()

    return together(size, act, rows_of_grid)


@pytest.fixture(params=[0, 32, 1 << 30], ids=["sliced", "some slices", "straight"])
def short_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """What counts as short, in place of 64 KiB."""
    monkeypatch.setattr(all_reduce, "SHORT_BYTES", request.param)
    return request.param  # type: ignore[no-any-return]


def test_every_member_has_the_bits_of_one_process(short_bytes: int) -> None:
    """In a mesh or a grid, also with fewer shards than members; rows of fewer numbers than members are not sliced."""

    @settings(max_examples=30, deadline=None)
    @given(data=st.data(), size=st.integers(2, 9), shards=st.integers(1, 16), length=st.integers(1, 40))
    def has_the_bits_of_one_process(data: st.DataObject, size: int, shards: int, length: int) -> None:
        assume(short_bytes or length >= size)
        rows = data.draw(st.integers(1, size))
        totals, members = reduced(size, shards, length, times=2, rows_of_grid=rows)
        expected = node(leaves(shards, length), 0, shards)
        assert all(torch.equal(expected, total) for total in totals)
        once = bytes_by_member(shards, size, length, rows=rows)
        assert [2 * sent for sent in once] == [member.bytes_sent for member in members]

    has_the_bits_of_one_process()


@pytest.mark.parametrize("shards_each", [1, 3.01])
@pytest.mark.parametrize("members", [65, 100, 256, 1000])
def test_a_grid_costs_each_member_the_bytes_of_a_ring(members: int, shards_each: float) -> None:
    """Its own sums and the total, once each, and a slice of the sums of its row of the grid.

    Short sums meet at the first member of each row, which sends those of its row to the others, and its row the total.
    """
    rows, length, shards = rows_for(members), 2_750_000, int(members * shards_each)
    runs = lay_out(shards, members).runs
    own = max(len(subtrees(lo, hi, shards)) for lo, hi in runs)
    theirs = max(len(subtrees(runs[row[0]][0], runs[row[-1]][1], shards)) for row in grid_of(members, rows).rows)
    every = 7 if members > 256 else 1  # 7 meets every place of a row
    most = max(bytes_by_member(shards, members, length, rows=rows, every=every))
    assert most <= (own + 1 + (theirs + 1) / grid_of(members, rows).width) * 4 * length
    short = bytes_by_member(shards, members, 10_000, rows=rows)
    assert max(short) <= (theirs + 1) * rows * 4 * 10_000
    to_all_others = sum(len(subtrees(lo, hi, shards)) for lo, hi in runs) * (members - 1) * 4 * 10_000
    assert sum(short) <= to_all_others / (members / 10)


def test_long_rows_are_sliced_and_cost_the_bytes_of_a_ring() -> None:
    length = (64 << 10) // 4 * 3
    _, members = reduced(3, 3, length)
    assert pytest.approx(3 * 2 * 2 / 3 * length * 4, rel=1e-3) == sum(member.bytes_sent for member in members)


@pytest.mark.parametrize(("size", "shards", "rows_of_grid"), [(2, 2, 1), (3, 8, 1), (4, 4, 2)])
def test_the_total_is_written_where_there_is_room_for_it(
    short_bytes: int, size: int, shards: int, rows_of_grid: int
) -> None:
    """So a bucket of a gradient is not copied once more."""
    rows, layout = leaves(shards, 12), lay_out(shards, size)

    def act(member: Fake) -> bool:
        room = torch.empty(12)
        done = Reduction(member)([node(rows, lo, hi) for lo, hi in layout.nodes[member.rank]], shards, room)
        return done.total is room and torch.equal(node(rows, 0, shards), room)

    assert together(size, act, rows_of_grid)[0] == [True] * size


def test_a_single_shard_is_added_to_nothing(short_bytes: int) -> None:
    assert torch.equal(leaves(1, 4)[0], reduced(2, 1, 4)[0][1])


def test_alone_nothing_is_sent() -> None:
    rows = leaves(5, 7)
    done = Reduction(LoneGroup())([node(rows, 0, 5)], 5, torch.empty(7))
    assert torch.equal(node(rows, 0, 5), done.total)
    assert done.wait_seconds == 0.0


@given(st.integers(1, 40), st.integers(1, 12))
def test_the_layout_covers_each_shard_once(shards: int, members: int) -> None:
    layout = lay_out(shards, members)
    covered = [shard for nodes in layout.nodes for lo, hi in nodes for shard in range(lo, hi)]
    assert list(range(shards)) == covered
    rows = leaves(shards, 3)
    nodes = [node(rows, lo, hi) for some in layout.nodes for lo, hi in some]
    assert torch.equal(node(rows, 0, shards), add_up(nodes, layout))


@pytest.mark.parametrize(("size", "rows"), [(4, 1), (4, 2), (7, 3), (8, 3), (9, 3), (5, 5)])
def test_every_member_receives_from_every_member(size: int, rows: int) -> None:
    def act(member: Fake) -> list[list[int]]:
        return [place.tolist() for place in swap_with_all(member, torch.tensor([member.rank, 5]))]

    assert [[[rank, 5] for rank in range(size)]] * size == together(size, act, rows)[0]


@pytest.mark.fault("C10")
@pytest.mark.parametrize("rows", [1, 2, 3])
@settings(max_examples=20, deadline=None)
@given(holds=st.lists(st.booleans(), min_size=3, max_size=9).filter(any))
def test_the_most_advanced_members_send_their_state_to_those_behind(rows: int, holds: list[bool]) -> None:
    def act(member: Fake) -> list[float]:
        vectors = [torch.full((3,), float(holds[member.rank])), torch.full((2,), 10.0 * holds[member.rank])]
        spread_state(member, holds, vectors)
        return [vector[0].item() for vector in vectors]

    states, _ = together(len(holds), act, rows)
    assert [[1.0, 10.0]] * len(holds) == states


class Deaf(Fake):
    def swap(self, outgoing: Mapping[int, Tensor], incoming: Mapping[int, Tensor]) -> None:
        raise PeerLost("gone")


def test_a_lost_peer_is_raised() -> None:
    with pytest.raises(PeerLost):
        Reduction(Deaf(0, {}, 2))([torch.ones(3)], 2, torch.empty(3))
