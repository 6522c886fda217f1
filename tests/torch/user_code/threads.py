"""Members of a group that are threads of this process."""

import queue
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from batchgrowth.shards import lay_out
from batchgrowth_trainer.exchange.all_reduce import Reduction
from batchgrowth_trainer.exchange.connections import grid_of
from torch import Tensor


class Fake:
    """A member of a group that exchanges tensors through queues; counts the bytes that it sends."""

    likes_buckets = True

    def __init__(self, rank: int, queues: dict[tuple[int, int], queue.Queue[Tensor]], size: int, rows: int = 1) -> None:
        self.rank, self.size, self._queues, self.bytes_sent = rank, size, queues, 0
        self.grid, self._woken = grid_of(size, rows), threading.Event()

    def swap(self, outgoing: Mapping[int, Tensor], incoming: Mapping[int, Tensor]) -> None:
        for peer, tensor in outgoing.items():
            self._queues[self.rank, peer].put(tensor.clone())
            self.bytes_sent += tensor.nbytes
        for peer, tensor in incoming.items():
            came = self._queues[peer, self.rank].get(timeout=3)
            assert came.numel() == tensor.numel()
            tensor.view(-1).copy_(came.view(-1))

    def arrived(self, peers: set[int], seconds: float) -> list[int]:
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            if came := [peer for peer in peers if not self._queues[peer, self.rank].empty()]:
                return came
            if self._woken.wait(0.001):
                self._woken.clear()
                break
        return []

    def wake(self) -> None:
        self._woken.set()

    def close(self) -> None:
        """Does nothing."""


class Counting:
    """A member that counts what it sends, and receives nothing; its tensors may be of the device "meta"."""

    likes_buckets = True

    def __init__(self, rank: int, size: int, rows: int = 1) -> None:
        self.rank, self.size, self.grid, self.bytes_sent = rank, size, grid_of(size, rows), 0

    def swap(self, outgoing: Mapping[int, Tensor], incoming: Mapping[int, Tensor]) -> None:
        assert set(outgoing) <= set(self.grid.peers(self.rank))
        self.bytes_sent += sum(tensor.nbytes for tensor in outgoing.values())

    def close(self) -> None:
        """Does nothing."""


def bytes_by_member(shards: int, size: int, length: int, rows: int = 1, every: int = 1) -> list[int]:
    """The bytes that each member, or one of `every`, sends in an all-reduce of rows of that length, in such a grid."""
    counts, layout = [], lay_out(shards, size)
    for rank in range(0, size, every):
        member = Counting(rank, size, rows)
        mine = [torch.empty(length, device="meta") for _ in layout.nodes[rank]]
        Reduction(member)(mine, shards, torch.empty(length, device="meta"))
        counts.append(member.bytes_sent)
    return counts


def in_threads(*acts: Callable[[], Any], on_error: Callable[[], Any] = lambda: None) -> list[Any]:
    """What each of these returned, each in a thread of its own. Raises the first error, after `on_error()`."""
    results: list[Any] = [None] * len(acts)
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            results[number] = acts[number]()
        except BaseException as error:  # noqa: BLE001 - raised again below
            errors.append(error)
            on_error()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(acts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


def together(size: int, act: Callable[[Fake], Any], rows: int = 1) -> tuple[list[Any], list[Fake]]:
    """What each member's `act` returned. Raises the error of a member; only peers of the grid have a queue."""
    queues: dict[tuple[int, int], queue.Queue[Tensor]] = {
        (a, b): queue.Queue() for a in range(size) for b in grid_of(size, rows).peers(a)
    }
    members = [Fake(rank, queues, size, rows) for rank in range(size)]
    return in_threads(*(partial(act, member) for member in members)), members
