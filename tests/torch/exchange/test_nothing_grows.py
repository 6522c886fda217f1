"""A member that trains for days: memory, threads and connections stay as they are, with every strategy."""

import ctypes
import gc
import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import psutil
import pytest
import small
from batchgrowth.choices import EXCHANGES
from batchgrowth.spec import BatchGrowthJob
from batchgrowth_trainer.exchange.connections import Listener, RankAssignment, assign_ranks
from batchgrowth_trainer.exchange.group import Group, LoneGroup, TcpGroup
from batchgrowth_trainer.exchange.strategy import Setting, strategy_of
from batchgrowth_trainer.replica.replica import Replica
from batchgrowth_trainer.workload import Workload
from threads import in_threads
from torch import nn

MakeReplica = Callable[[BatchGrowthJob, Workload], Replica]

BEFORE, HALF, UPDATES = 2_000, 6_000, 10_000  # by the first, pools, caches and arenas have their size
PATIENCE = 60.0  # seconds; for one update of a peer
MOST_OBJECTS = 100  # of Python; what grows has one for each update, or for each of the 500 rounds of 16 updates
MOST_BYTES = 4 << 20
"""The most that memory may grow in both halves: 1 KiB an update, where a gradient has 5 KiB.

Only what grows with the updates grows in both. Once in a while the allocator itself takes 12 MiB, in one of them.
"""
MOST_BYTES_IN_ALL = 16 << 20
give_back = getattr(ctypes.CDLL(None), "malloc_trim", lambda _: None)
"""Returns the allocator's free pages to the kernel, of which it keeps many after other tests; glibc alone has it."""
# Nine batches of ten in each epoch, each in two shards or, with logical replicas, in as many.
JOB = (
    "workload={entrypoint: 'small:plain', examples: 90}", f"epochs={UPDATES // 9 + 1}", "learningRate.initial=0.001",
    "batch={initial: 10, maximum: 10, shard: 5, growth: {type: Constant}}", "learningRate.rule=Constant",
)  # fmt: skip
STRATEGIES = {entry.strategy: name for name, entry in reversed(list(EXCHANGES.items()))}
"""Each strategy -> the first exchange that has it."""


@dataclass(frozen=True)
class Held:
    """What this process holds."""

    threads: int
    files: int
    objects: int
    memory: int

    @classmethod
    def now(cls) -> "Held":
        gc.collect()
        give_back(0)
        process = psutil.Process()
        return cls(process.num_threads(), process.num_fds(), len(gc.get_objects()), process.memory_info().rss)


def wide() -> Workload:
    return small.of(nn.Sequential(nn.Linear(6, 128), nn.Tanh(), nn.Linear(128, 3)))


def connected(listener: Listener, assignment: RankAssignment) -> Group:
    """The group of a member, which closes its listener once it has met its peers."""
    group = LoneGroup() if assignment.size == 1 else TcpGroup(assignment, listener)
    listener.close()
    return group


def trained(replicas: list[Replica]) -> list[Held]:
    """What the process holds after each number of updates, when no member is in a round."""
    held: list[Held] = []
    all_wait = threading.Barrier(len(replicas), lambda: held.append(Held.now()), PATIENCE)

    def train(replica: Replica, listener: Listener, assignment: RankAssignment) -> None:
        group = connected(listener, assignment)
        strategy = strategy_of(Setting(replica, group, nullcontext(), lambda: None))
        for end in (BEFORE, HALF, UPDATES):
            while replica.position.update < end:
                strategy.round(lambda: False)
            all_wait.wait()
        group.close()

    listeners = [Listener("127.0.0.1") for _ in replicas]
    places = assign_ranks([listener.address for listener in listeners], b"Z" * 16, PATIENCE)
    in_threads(
        *(partial(train, *each) for each in zip(replicas, listeners, places, strict=True)), on_error=all_wait.abort
    )
    return held


@pytest.mark.long
@pytest.mark.parametrize("members", [1, 2])
@pytest.mark.parametrize("name", sorted(STRATEGIES.values()))
def test_nothing_grows_over_ten_thousand_updates(
    small_job: Any, make_replica: MakeReplica, name: str, members: int
) -> None:
    job = small_job(*JOB, f"exchange.type={name}", f"workers.maximum={members}")
    before, half, after = trained([make_replica(job, wide()) for _ in range(members)])
    growth = {key: value - getattr(before, key) for key, value in asdict(after).items()}
    assert max(growth["threads"], growth["files"]) <= 0
    assert growth["objects"] <= MOST_OBJECTS
    assert min(half.memory - before.memory, after.memory - half.memory) <= MOST_BYTES
    assert growth["memory"] <= MOST_BYTES_IN_ALL
