"""The exchange of more members than are all connected with each other, as threads of this process."""

from batchgrowth_trainer.exchange.connections import LARGEST_MESH, grid_of, rows_for

from bench.many_members import Host, expected, measure

MEMBERS = 3 * LARGEST_MESH + 8


def test_two_hundred_members_have_the_bits_of_one_process() -> None:
    """Over real connections, of which each has few: some 28, and not 199."""
    host = Host(MEMBERS)
    try:
        [cost] = measure([lambda name, *given: getattr(host, name)(*given)], length=60, times=2)
    finally:
        host.close()
    assert {expected(MEMBERS, 60, 2)} == cost.digests
    connections = sum(len(grid_of(MEMBERS, rows_for(MEMBERS)).peers(rank)) for rank in range(MEMBERS))
    assert connections <= 28 * MEMBERS
    doors_and_pairs = 3 * MEMBERS  # a door each, and a pair of sockets by which another thread wakes a member
    assert cost.files <= connections + doors_and_pairs + 100
