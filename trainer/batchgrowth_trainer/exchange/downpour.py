"""Downpour: workers push gradients to a server and fetch weights, each at its own pace. Dean et al., 2012.

The server is a thread of rank 0. An idle worker gets the next update of the plan and the weights as they are, computes
the gradient of the whole batch and pushes it; the server steps, and the worker is idle again. The worker of rank 0
computes beside the server, with a model of its own.

A round has 16 updates for each member, and ends when all are made. Then the server sends its whole state to all.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Protocol, runtime_checkable

import torch
from batchgrowth.contract.metrics import ExchangeFigures
from batchgrowth.plan import Step, round_at
from torch import Tensor

from batchgrowth_trainer.exchange.group import Group, PeerLost
from batchgrowth_trainer.exchange.logical_replicas import committed
from batchgrowth_trainer.exchange.strategy import Round, Setting
from batchgrowth_trainer.replica.replica import undone_by_errors
from batchgrowth_trainer.replica.reproducible import prepare_process

_UPDATES = 16  # of each member in a round
_TICK_SECONDS = 0.2  # between two checks that the generation is not over
_OVER = -1  # in the place of an update's index


@dataclass(slots=True)
class _Begun:
    """An update under way: its index, the updates made before its fetch, and an upper bound of its staleness."""

    index: int
    made: int
    bound: int


class BoundedStaleness:
    """Decides which update of a round an idle worker may begin, so that no gradient is staler than `maximum`.

    The staleness of a gradient is the number of updates made between the fetch of its weights and its push. Each of
    these updates was under way at the fetch or has begun since, and both are counted before an update begins. So an
    update may begin only if no bound, its own or that of an update under way, would exceed the maximum. The updates, 0
    to `updates` - 1, begin in order.
    """

    def __init__(self, updates: int, maximum: int) -> None:
        self._updates = updates
        self._maximum = maximum
        self._next = 0
        self._under_way: dict[int, _Begun] = {}
        self.staleness: list[int] = []
        """The staleness of each gradient, in the order of the pushes."""

    @property
    def is_over(self) -> bool:
        """Return whether all updates are made."""
        return len(self.staleness) == self._updates

    @property
    def under_way(self) -> set[int]:
        """Return the ranks that compute."""
        return set(self._under_way)

    def may_begin(self) -> bool:
        """Return whether a further update may begin now."""
        bounds = [len(self._under_way), *(begun.bound + 1 for begun in self._under_way.values())]
        return self._next < self._updates and (not self._under_way or max(bounds) <= self._maximum)

    def begin(self, rank: int) -> int:
        """Note that this rank begins an update with the current weights; return the update's index."""
        assert self.may_begin()
        for begun in self._under_way.values():
            begun.bound += 1
        self._under_way[rank] = _Begun(self._next, len(self.staleness), len(self._under_way))
        self._next += 1
        return self._next - 1

    def end(self, rank: int) -> int:
        """Note that this rank has pushed the gradient of its update, which is made now; return the update's index."""
        begun = self._under_way.pop(rank)
        self.staleness.append(len(self.staleness) - begun.made)
        return begun.index


@runtime_checkable
class Served(Group, Protocol):
    """A group whose rank 0 can wait until any of several peers has sent something."""

    def arrived(self, peers: set[int], seconds: float) -> list[int]:
        """Return the peers that have sent bytes; after `seconds` or a `wake`, perhaps none. Raises PeerLost."""

    def wake(self) -> None:
        """Make the call of `arrived` in another thread return, or else its next call."""


class Downpour:
    """The strategy of Downpour."""

    def __init__(self, setting: Setting) -> None:
        assert isinstance(setting.group, Served)
        self._setting = setting
        self._replica = setting.replica
        self._group = setting.group
        self._others = set(range(self._group.size)) - {self._group.rank}
        serves_others = self._group.rank == 0 and self._group.size > 1
        self._computing = self._replica.twin(own_weights=True) if serves_others else self._replica
        self._model = list(self._replica.model_tensors().values())
        self._row = torch.empty(self._replica.length, dtype=torch.float32, device=self._replica.device)
        self._compute_seconds = 0.0

    def round(self, stop_requested: Callable[[], bool]) -> Round:
        """Make sixteen updates per member, or as many as the epoch has; one per member if a stop is requested."""
        replica = self._replica
        began = time.perf_counter()
        self._compute_seconds = 0.0
        steps = round_at(replica.plan, replica.position, _UPDATES * self._group.size)
        with undone_by_errors(replica):
            if self._group.rank:
                end = self._work(steps)
            else:
                stop = stop_requested()
                end = self._lead(steps[: self._group.size] if stop else steps, stop=stop)
        stop_asked, largest, mean, *losses = end.tolist()
        steps = steps[: len(losses)]
        replica.moved_to(steps[-1].after)
        done = committed(steps, losses, stop=stop_asked > 0)
        waited = max(time.perf_counter() - began - self._compute_seconds, 0.0)
        figures = ExchangeFigures(largest_staleness=int(largest), mean_staleness=mean)
        return Round(done, stop_asked > 0, self._compute_seconds, 0.0, waited, figures)

    def _gradient(self, step: Step) -> Tensor:
        """Return the row of an update's whole batch; valid until the next call."""
        began = time.perf_counter()
        with self._setting.watchdog:
            whole = self._computing.partials(step, (0, step.shards))
        self._computing.rows.release(whole)
        self._compute_seconds += time.perf_counter() - began
        return whole[0].row

    def _work(self, steps: Sequence[Step]) -> Tensor:
        """Compute the updates that the server assigns; return the server's figures, as `_lead` does.

        Raises PeerLost and WorkloadError.
        """
        while True:
            order = torch.empty(2, dtype=torch.int64)
            self._group.swap({}, {0: order})
            index, length = order.tolist()
            if index == _OVER:
                end = torch.empty(length, dtype=torch.float64)
                for tensor in (end, *self._replica.tensors().values()):
                    self._group.swap({}, {0: tensor})
                return end
            for vector in self._model:
                self._group.swap({}, {0: vector})
            self._group.swap({0: self._gradient(steps[index])}, {})
            self._setting.check()

    def _lead(self, steps: Sequence[Step], *, stop: bool) -> Tensor:
        """Make the round's updates with all workers, send them the round's figures and the whole state, and return the
        figures: whether to stop, the largest and the mean staleness, and each update's sum of losses.
        """
        bounded = BoundedStaleness(len(steps), self._replica.spec.exchange.settings.maximum_staleness)
        losses = [0.0] * len(steps)
        if self._others:
            self._serve_and_work(bounded, steps, losses)
        else:
            for step in steps:
                bounded.begin(0)
                losses[bounded.end(0)] = self._made(step, self._gradient(step))
                self._setting.check()
        mean = sum(bounded.staleness) / len(steps)
        end = torch.tensor([float(stop), max(bounded.staleness), mean, *losses], dtype=torch.float64)
        order = torch.tensor([_OVER, len(end)])
        for tensor in (order, end, *self._replica.tensors().values()) if self._others else ():
            self._send(self._others, tensor)
        return end

    def _serve_and_work(self, bounded: BoundedStaleness, steps: Sequence[Step], losses: list[float]) -> None:
        orders: SimpleQueue[int] = SimpleQueue()
        pushed: SimpleQueue[Tensor | None] = SimpleQueue()
        # The server's thread takes the optimizer's steps, and torch keeps some settings for each thread.
        prepare = partial(prepare_process, self._replica.spec)
        with ThreadPoolExecutor(1, "server", prepare) as thread:
            serving = thread.submit(self._serve, bounded, steps, losses, orders, pushed)
            # Also if the server fails: otherwise the loop below would wait for an order forever.
            serving.add_done_callback(lambda _: orders.put(_OVER))
            try:
                while (index := orders.get()) != _OVER:
                    pushed.put(self._gradient(steps[index]))
                    self._group.wake()
            except BaseException:
                pushed.put(None)
                self._group.wake()
                raise
            serving.result()

    def _serve(
        self,
        bounded: BoundedStaleness,
        steps: Sequence[Step],
        losses: list[float],
        orders: SimpleQueue[int],
        pushed: SimpleQueue[Tensor | None],
    ) -> None:
        """Apply the gradients in the order in which workers push them, until all updates are made.

        `orders` and `pushed` connect the worker in this process; None in `pushed` says that it has failed. Raises
        PeerLost if the generation is over, or if a worker has been computing for too long.
        """
        idle = deque(range(self._group.size))
        begun = dict[int, float]()
        patience = self._replica.spec.patience_seconds
        while not bounded.is_over:
            while idle and bounded.may_begin():
                rank = idle.popleft()
                begun[rank] = time.monotonic()
                self._order(rank, bounded.begin(rank), orders)
            for rank, row in self._arrived(bounded.under_way, pushed):
                index = bounded.end(rank)
                losses[index] = self._made(steps[index], row)
                idle.append(rank)
            self._setting.check()
            for rank in bounded.under_way - {0}:
                if time.monotonic() - begun[rank] > patience:
                    raise PeerLost(f"rank {rank} has pushed no gradient within {patience:g} s")

    def _order(self, rank: int, index: int, orders: SimpleQueue[int]) -> None:
        """Give a worker an update and the weights."""
        if rank == 0:
            for mine, vector in zip(self._computing.model_tensors().values(), self._model, strict=True):
                mine.copy_(vector)
            orders.put(index)
            return
        for tensor in (torch.tensor([index, 0]), *self._model):
            self._send({rank}, tensor)

    def _arrived(self, under_way: set[int], pushed: SimpleQueue[Tensor | None]) -> Iterator[tuple[int, Tensor]]:
        """Yield the gradients that have arrived, each with its rank. Raises PeerLost."""
        for peer in self._group.arrived(under_way - {0}, _TICK_SECONDS):
            self._group.swap({}, {peer: self._row})
            yield peer, self._row
        while not pushed.empty():
            row = pushed.get()
            if row is None:
                raise PeerLost("the worker beside the server has failed")
            yield 0, row

    def _made(self, step: Step, row: Tensor) -> float:
        """Make an update, and return the sum of its examples' losses. Raises WorkloadError."""
        gradient, rest = self._replica.split(row)
        return self._replica.take_step(step, gradient, rest, step.examples).loss

    def _send(self, peers: set[int], tensor: Tensor) -> None:
        self._group.swap(dict.fromkeys(peers, tensor), {})
