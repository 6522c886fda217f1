"""What an exchange between members promises, over real connections: the same bits, through the death of any member.

The members are threads of this process. They add up the sums of shards, update after update, as trainers do.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
import torch
from batchgrowth.shards import lay_out, tree_sum
from batchgrowth_trainer.exchange import connections
from batchgrowth_trainer.exchange.all_reduce import Reduction
from batchgrowth_trainer.exchange.connections import Encryption, Listener, RankAssignment, assign_ranks
from batchgrowth_trainer.exchange.group import PeerLost, TcpGroup, spread_state, swap_with_all
from distributed.security import Security
from torch import Tensor

SHARDS, UPDATES = 11, 6
SIZE = 8  # a grid has three rows, of two or three
ENDS_AT_ONCE = 20.0  # seconds; no member waits for the timeout of a swap
TIMEOUT = 60.0
IMMORTAL = 1_000_000
SHORT, SLICED = 100, 40_000  # numbers in a row: sent as they are, or in slices


class Mortal(TcpGroup):
    """The group of a member that dies after some swaps."""

    swaps = IMMORTAL

    def swap(self, outgoing: Mapping[int, Tensor], incoming: Mapping[int, Tensor]) -> None:
        self.swaps -= 1
        if self.swaps < 0:
            raise PeerLost("dead")
        super().swap(outgoing, incoming)


@dataclass
class Member:
    """One that trains in a thread of its own; `state` is what an optimizer would hold."""

    state: Tensor
    update: int = 0
    listener: Listener = field(default_factory=lambda: Listener("127.0.0.1"))
    lost: str = ""

    def train(self, assignment: RankAssignment, encryption: Encryption | None, swaps: int) -> None:
        """Train to the end, to the loss of a peer, or to its own death after so many swaps."""
        self.lost, group = "", Mortal(assignment, self.listener, encryption)
        group.swaps = swaps
        try:
            self._catch_up(group)
            reduction = Reduction(group)
            while self.update < UPDATES:
                nodes = lay_out(SHARDS, assignment.size).nodes[assignment.rank]
                sums = [shard_sum(self.update, lo, hi, len(self.state)) for lo, hi in nodes]
                self.state += reduction(sums, SHARDS, torch.empty_like(self.state)).total
                self.update += 1
        except PeerLost as error:
            self.lost = str(error)
        finally:
            group.close()

    def _catch_up(self, group: TcpGroup) -> None:
        updates = [int(update) for update in swap_with_all(group, torch.tensor([self.update]))]
        spread_state(group, [update == max(updates) for update in updates], [self.state])
        self.update = max(updates)


def shard_sum(update: int, lo: int, hi: int, length: int) -> Tensor:
    """Of summands whose magnitudes differ, so that any other order of additions gives other bits."""

    def leaf(shard: int) -> Tensor:
        draw = torch.Generator().manual_seed(update * SHARDS + shard)
        return torch.randn(length, generator=draw) * 10.0 ** (shard % 7 - 3)

    return tree_sum(lo, hi, leaf, torch.add)


def alone(length: int) -> Tensor:
    """The state of one process at the end."""
    state = torch.zeros(length)
    for update in range(UPDATES):
        state += shard_sum(update, 0, SHARDS, length)
    return state


def generation(members: list[Member], encryption: Encryption | None, dies: int = -1, swaps: int = 0) -> None:
    """Have these members train; the one of rank `dies` does after so many swaps."""
    places = assign_ranks([member.listener.address for member in members], b"Z" * 16, TIMEOUT)
    threads = [
        threading.Thread(
            target=member.train, args=(assignment, encryption, swaps if assignment.rank == dies else IMMORTAL)
        )
        for member, assignment in zip(members, places, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(ENDS_AT_ONCE)
    assert not any(thread.is_alive() for thread in threads)


@pytest.fixture(scope="module")
def encryption() -> Encryption:
    """That of a job's certificate."""
    security = Security.temporary()
    dials = security.get_connection_args("worker")["ssl_context"]
    return Encryption(security.get_listen_args("worker")["ssl_context"], dials)


@pytest.mark.fault("C01", "C10")
@pytest.mark.parametrize(
    ("rows", "encrypted", "length", "dies", "swaps"),
    [
        (1, True, SHORT, 4, 4),
        (1, False, SLICED, 0, 4),
        *((3, encrypted, SHORT, dies, 9 + encrypted) for encrypted in (True, False) for dies in (0, 2, 4)),
        (3, True, SLICED, 2, 11),
        (3, True, SLICED, 4, 10),
        (3, False, SLICED, 0, 12),
    ],
)
def test_the_same_bits_when_a_member_dies_and_others_join(
    monkeypatch: pytest.MonkeyPatch,
    encryption: Encryption,
    rows: int,
    encrypted: bool,
    length: int,
    dies: int,
    swaps: int,
) -> None:
    """Every survivor notices at once, however far it is from the dead one, and none is more than an update ahead.

    In the grid ranks 0 and 2 are the first of a row, and rank 4 is in no column. The next generation has newcomers
    instead, who get the state, and the others other places.
    """
    monkeypatch.setattr(connections, "LARGEST_MESH", 3 if rows > 1 else SIZE + 1)
    context = encryption if encrypted else None
    members = [Member(torch.zeros(length)) for _ in range(SIZE)]
    assert rows == len(next(assign_ranks([one.listener.address for one in members], b"", 1.0)).grid.rows)
    generation(members, context, dies, swaps)
    updates = [one.update for one in members]
    assert all(one.lost for one in members)
    assert 0 < min(updates) <= max(updates) <= min(updates) + 1
    dead = members.pop(dies)

    members = [Member(torch.zeros(length)), *members, Member(torch.zeros(length))]
    generation(members, context)
    assert [(UPDATES, "")] * len(members) == [(one.update, one.lost) for one in members]
    assert all(torch.equal(alone(length), one.state) for one in members)
    for one in (dead, *members):
        one.listener.close()
