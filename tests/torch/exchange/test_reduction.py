"""The all-reduce over members that are threads of this process: the same bits on both of its paths."""

import queue
import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from batchgrowth_trainer.exchange import reduction
from batchgrowth_trainer.exchange.group import LoneGroup, PeerLost, send_state, swap_with_all
from batchgrowth_trainer.exchange.reduction import Reduction, bytes_sent
from batchgrowth_trainer.replica.tree import add_up, lay_out
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor


class Fake:
    """A member of a group that exchanges tensors through queues; counts the bytes that it sends."""

    def __init__(self, rank: int, queues: dict[tuple[int, int], queue.Queue[Tensor]], size: int) -> None:
        self.rank, self.size, self._queues, self.sent = rank, size, queues, 0

    def swap(self, outgoing: Mapping[int, Tensor], incoming: Mapping[int, Tensor]) -> None:
        for peer, tensor in outgoing.items():
            self._queues[self.rank, peer].put(tensor.clone())
            self.sent += tensor.nbytes
        for peer, tensor in incoming.items():
            came = self._queues[peer, self.rank].get(timeout=3)
            assert came.numel() == tensor.numel()
            tensor.view(-1).copy_(came.view(-1))

    def close(self) -> None:
        """Does nothing."""


def together(size: int, act: Callable[[Fake], Any]) -> tuple[list[Any], list[Fake]]:
    """What each member's `act` returned. Raises the error of a member."""
    queues: dict[tuple[int, int], queue.Queue[Tensor]] = {
        (a, b): queue.Queue() for a in range(size) for b in range(size) if a != b
    }
    members, results, errors = [Fake(rank, queues, size) for rank in range(size)], [None] * size, []

    def work(member: Fake) -> None:
        try:
            results[member.rank] = act(member)
        except BaseException as error:  # noqa: BLE001 - raised again below
            errors.append(error)

    threads = [threading.Thread(target=work, args=(member,)) for member in members]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results, members


def leaves(shards: int, length: int) -> list[Tensor]:
    """One row per shard, with magnitudes so far apart that any other order of additions gives other bits."""
    draw = torch.Generator().manual_seed(shards * 1000 + length)
    return [torch.randn(length, generator=draw) * 10.0 ** (k % 7 - 3) for k in range(shards)]


def node(rows: list[Tensor], lo: int, hi: int) -> Tensor:
    if hi - lo == 1:
        return rows[lo].clone()
    middle = lo + (1 << (hi - lo - 1).bit_length() - 1)
    return node(rows, lo, middle) + node(rows, middle, hi)


def reduced(size: int, shards: int, length: int, times: int = 1) -> tuple[list[Tensor], list[Fake]]:
    rows, layout = leaves(shards, length), lay_out(shards, size)

    def act(member: Fake) -> Tensor:
        reduce = Reduction(member)
        for _ in range(times):
            mine = [node(rows, lo, hi) for lo, hi in layout.nodes[member.rank]]
            total = reduce(mine, shards, torch.empty(length)).total
        return total.clone()

    return together(size, act)


@pytest.mark.parametrize("short_bytes", [0, 1 << 30], ids=["sliced", "straight"])
@settings(max_examples=25, deadline=None)
@given(size=st.integers(2, 5), shards=st.integers(1, 16), length=st.integers(1, 40))
def test_every_member_has_the_bits_of_one_process(short_bytes: int, size: int, shards: int, length: int) -> None:
    """Also with fewer shards than members; rows of fewer numbers than members are too short to slice."""
    assume(short_bytes or length >= size)
    before, reduction._SHORT_BYTES = reduction._SHORT_BYTES, short_bytes
    bytes_sent.cache_clear()
    try:
        totals, members = reduced(size, shards, length, times=2)
        expected = node(leaves(shards, length), 0, shards)
        assert all(torch.equal(expected, total) for total in totals)
        assert 2 * bytes_sent(shards, size, length) == sum(member.sent for member in members)
    finally:
        reduction._SHORT_BYTES = before
        bytes_sent.cache_clear()


def test_long_rows_are_sliced_and_cost_the_bytes_of_a_ring() -> None:
    length = (64 << 10) // 4 * 3
    _, members = reduced(3, 3, length)
    assert pytest.approx(3 * 2 * 2 / 3 * length * 4, rel=1e-3) == sum(member.sent for member in members)


def test_alone_nothing_is_sent() -> None:
    rows = leaves(5, 7)
    done = Reduction(LoneGroup())([node(rows, 0, 5)], 5, torch.empty(7))
    assert torch.equal(node(rows, 0, 5), done.total)
    assert 0.0 == done.wait_seconds
    assert 0 == bytes_sent(5, 1, 7)


@given(st.integers(1, 40), st.integers(1, 12))
def test_the_layout_covers_each_shard_once(shards: int, members: int) -> None:
    layout = lay_out(shards, members)
    covered = [shard for nodes in layout.nodes for lo, hi in nodes for shard in range(lo, hi)]
    assert list(range(shards)) == covered
    rows = leaves(shards, 3)
    nodes = [node(rows, lo, hi) for some in layout.nodes for lo, hi in some]
    assert torch.equal(node(rows, 0, shards), add_up(nodes, layout))


def test_every_member_receives_from_every_member() -> None:
    received, _ = together(4, lambda member: [t.item() for t in swap_with_all(member, torch.tensor([member.rank]))])
    assert [[0, 1, 2, 3]] * 4 == received


@pytest.mark.fault("C10")
def test_the_most_advanced_member_sends_its_state_to_those_behind() -> None:
    def act(member: Fake) -> list[float]:
        vectors = [torch.full((3,), float(member.rank)), torch.full((2,), 10.0 * member.rank)]
        send_state(member, 2, [0, 3], vectors)
        return [vector[0].item() for vector in vectors]

    states, _ = together(4, act)
    assert [[2.0, 20.0], [1.0, 10.0], [2.0, 20.0], [2.0, 20.0]] == states


class Deaf(Fake):
    def swap(self, outgoing: Mapping[int, Tensor], incoming: Mapping[int, Tensor]) -> None:
        raise PeerLost("gone")


def test_a_lost_peer_is_raised() -> None:
    with pytest.raises(PeerLost):
        Reduction(Deaf(0, {}, 2))([torch.ones(3)], 2, torch.empty(3))
