"""The exchange of more members than are all connected with each other, as threads of this process."""

import secrets
from concurrent.futures import ThreadPoolExecutor

import psutil
import torch
from batchgrowth.shards import lay_out, tree_sum
from batchgrowth_trainer.exchange.all_reduce import Reduction
from batchgrowth_trainer.exchange.connections import (
    LARGEST_MESH,
    TOKEN_BYTES,
    Listener,
    assign_ranks,
    grid_of,
    rows_for,
)
from batchgrowth_trainer.exchange.group import TcpGroup
from torch import Tensor

MEMBERS = 3 * LARGEST_MESH + 8
LENGTH = 60


def node(exchange: int, lo: int, hi: int) -> Tensor:
    """Add up rows whose magnitudes differ, so that any other order of additions gives other bits."""

    def leaf(shard: int) -> Tensor:
        draw = torch.Generator().manual_seed(exchange * 10_007 + shard)
        return torch.randn(LENGTH, generator=draw) * 10.0 ** (shard % 7 - 3)

    return tree_sum(lo, hi, leaf, torch.add)


def totals(group: TcpGroup) -> list[Tensor]:
    """Return what a member knows after two exchanges of one row for each member."""
    reduction = Reduction(group)
    room = torch.empty(LENGTH)
    found = []
    for exchange in range(2):
        rows = [node(exchange, lo, hi) for lo, hi in lay_out(MEMBERS, MEMBERS).nodes[group.rank]]
        found.append(reduction(rows, MEMBERS, room).total.clone())
    return found


def test_two_hundred_members_have_the_bits_of_one_process() -> None:
    """Over real connections, of which each has few: some 28, and not 199."""
    expected = [node(exchange, 0, MEMBERS) for exchange in range(2)]
    listeners = [Listener("127.0.0.1") for _ in range(MEMBERS)]
    groups: list[TcpGroup] = []
    try:
        with ThreadPoolExecutor(MEMBERS) as pool:
            places = assign_ranks([listener.address for listener in listeners], secrets.token_bytes(TOKEN_BYTES), 900.0)
            groups += pool.map(lambda assignment, listener: TcpGroup(assignment, listener, None), places, listeners)
            files = psutil.Process().num_fds()
            for found in pool.map(totals, groups):
                assert all(map(torch.equal, found, expected))
    finally:
        for group in groups:
            group.close()
        for listener in listeners:
            listener.close()

    connections = sum(len(grid_of(MEMBERS, rows_for(MEMBERS)).peers(rank)) for rank in range(MEMBERS))
    assert connections <= 28 * MEMBERS
    listeners_and_pairs = 3 * MEMBERS  # a listener each, and a pair of sockets by which another thread wakes a member
    assert files <= connections + listeners_and_pairs + 100
