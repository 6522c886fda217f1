"""LocalSGD: logical replicas step by themselves, and at the end of a round all take the mean of their states.

A member computes the rounds of its replicas one after another with the one model that it has, each from the state at
the start of the round. The results are added along the fixed tree over the replicas, so the mean has the same bits for
any number of members. A row has, in this order: parameters, optimizer and average, the change of the buffers,
the loss of each update, the squared norm of the change, and 1 if the member requests a stop.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from math import sqrt

import torch
from batchgrowth.choices.exchanges import Outer
from batchgrowth.contract.metrics import ExchangeFigures
from batchgrowth.plan import Step, round_at
from batchgrowth.shards import subtrees, tree_sum
from torch import Tensor

from batchgrowth_trainer.exchange.all_reduce import AllReduce, Reduction
from batchgrowth_trainer.exchange.logical_replicas import LocalUpdates, committed
from batchgrowth_trainer.exchange.strategy import Round, Setting
from batchgrowth_trainer.replica.replica import Replica

_WEIGHTS = "parameters"
_OUTER_MOMENTUM = "outer.momentum"


class LocalSGD:
    """The strategy of LocalSGD."""

    @staticmethod
    def register(replica: Replica) -> None:
        """Register the momentum of the outer optimizer, if the job has one."""
        if replica.spec.exchange.settings.outer is not None:
            replica.register(_OUTER_MOMENTUM, torch.zeros_like(replica.parameters.vector.data))

    def __init__(self, setting: Setting) -> None:
        replica = setting.replica
        self._setting = setting
        self._replica = replica
        self._settings = replica.spec.exchange.settings
        self._of_gradients = AllReduce(setting)
        self._reduction = Reduction(setting.group)
        self._local = LocalUpdates(setting)
        self._outer: OuterOptimizer | None = None
        if self._settings.outer is not None:
            momentum = replica.registered[_OUTER_MOMENTUM]
            self._outer = OuterOptimizer(self._settings.outer, replica.parameters.vector.data, momentum)
        self._parts = _Parts(replica.of_one())
        self._buffers = self._parts.length, self._parts.length + replica.buffers.length
        length = self._buffers[1] + self._settings.every_updates + 2
        self._room = torch.empty(length, dtype=torch.float32, device=replica.device)
        self._start = {name: vector.clone() for name, vector in replica.of_one().items()}
        self._buffers_at_start = replica.buffers.clone()
        self._free: list[Tensor] = []

    def round(self, stop_requested: Callable[[], bool]) -> Round:
        """Make one round; before update `after_updates`, make one update with the sum of all gradients instead."""
        replica = self._replica
        if replica.position.update < self._settings.after_updates:
            return self._of_gradients.round(stop_requested)
        began = time.perf_counter()
        steps = round_at(replica.plan, replica.position, self._settings.every_updates)
        for name, vector in replica.of_one().items():
            self._start[name].copy_(vector)
        self._buffers_at_start = replica.buffers.clone()
        try:
            with self._setting.watchdog:
                runs = subtrees(*self._local.run, self._local.replicas)
                rows = [tree_sum(lo, hi, partial(self._trained, steps), self._add) for lo, hi in runs]
            computed = time.perf_counter()
            # A requested stop travels with the sums, so that all members stop after the same round.
            if stop_requested() and rows:
                rows[0][-1] = 1.0
            reduced = self._reduction(rows, self._local.replicas, self._room)
        finally:
            # Also after an error: all members share the state of the round's start, and go on from it.
            self._return_to_start()
        exchanged = time.perf_counter()
        examples = sum(step.examples for step in steps)
        mean = reduced.total[: self._buffers[1]].div_(examples)
        *losses, squares, stop = reduced.total[self._buffers[1] :].tolist()
        spread = squares / examples - float(mean[self._parts.places[_WEIGHTS]].square().sum())
        self._take(mean)
        replica.moved_to(steps[-1].after)
        waited = reduced.wait_seconds
        self._free.extend(rows)
        done = committed(steps, losses, stop=stop > 0)
        return Round(
            done=done,
            stop=stop > 0,
            compute_seconds=computed - began + time.perf_counter() - exchanged,
            exchange_seconds=exchanged - computed - waited,
            wait_seconds=waited,
            figures=ExchangeFigures(replica_distance=sqrt(max(spread, 0.0))),
        )

    def _add(self, left: Tensor, right: Tensor) -> Tensor:
        left.add_(right)
        self._free.append(right)
        return left

    def _trained(self, steps: Sequence[Step], number: int) -> Tensor:
        """Return the row of one logical replica after the updates of a round, weighted by its examples."""
        self._return_to_start()
        replica = self._replica
        row = self._free.pop().zero_() if self._free else torch.zeros_like(self._room)
        seen = self._local.make(number, steps, row[self._buffers[1] : -2])
        self._parts.write(self._start, replica.of_one(), seen, row)
        if replica.buffers.length:
            replica.buffers.change_since(self._buffers_at_start, seen, row[slice(*self._buffers)])
        return row

    def _return_to_start(self) -> None:
        # Between two of these copies, the replica has a state that no process may keep or send.
        self._replica.is_whole = False
        for name, vector in self._replica.of_one().items():
            vector.copy_(self._start[name])
        self._replica.is_whole = True

    @torch.no_grad()
    def _take(self, mean: Tensor) -> None:
        """Move the replica's vectors from the state at the round's start to the mean over the logical replicas."""
        replica = self._replica
        replica.is_whole = False
        if self._outer is None:
            self._parts.take(replica.of_one(), mean)
        else:
            self._parts.take(replica.of_one(), mean, without=(_WEIGHTS,))
            self._outer.step(mean[self._parts.places[_WEIGHTS]])
        if replica.buffers.length:
            replica.buffers.advance(mean[slice(*self._buffers)])


class OuterOptimizer:
    """SGD with momentum on `vector`, shape (length,); `momentum` has the same shape and begins at 0.

    Its gradient is the negative mean change of the replicas' weights. With a learning rate of 1 and no momentum,
    the vector moves by exactly the mean change. Douillard et al., 2023 (DiLoCo).
    """

    def __init__(self, settings: Outer, vector: Tensor, momentum: Tensor) -> None:
        self._learning_rate = float(settings.learning_rate)
        self._keep = float(settings.momentum)
        self._nesterov = settings.nesterov
        self._vector = vector
        self._momentum = momentum

    @torch.no_grad()
    def step(self, change: Tensor) -> None:
        """Move the vector by the mean change of a round, shape (length,)."""
        self._momentum.mul_(self._keep).add_(change)
        moved = change.add(self._momentum, alpha=self._keep) if self._nesterov else self._momentum
        self._vector.add_(moved, alpha=self._learning_rate)


class _Parts:
    """The place of each vector in a row, except buffers, which FlatBuffers handles."""

    def __init__(self, vectors: Mapping[str, Tensor]) -> None:
        self.places: dict[str, slice] = {}
        self.length = 0
        for name, vector in vectors.items():
            if not name.startswith("buffers."):
                self.places[name] = slice(self.length, self.length + vector.numel())
                self.length += vector.numel()

    def write(self, start: Mapping[str, Tensor], now: Mapping[str, Tensor], weight: int, row: Tensor) -> None:
        """Write a replica's vectors, times `weight`, to their places in the row."""
        for name, place in self.places.items():
            row[place].copy_(now[name] if _is_averaged_whole(name, now[name]) else now[name] - start[name])
        row[: self.length].mul_(weight)
        # The change has the weight as a factor by now, and its square twice.
        change = row[self.places[_WEIGHTS]]
        row[-2] = torch.dot(change, change) / max(weight, 1)

    def take(self, vectors: Mapping[str, Tensor], mean: Tensor, without: Collection[str] = ()) -> None:
        """Move the vectors from their values at the round's start to the means over the replicas."""
        for name, place in self.places.items():
            vector = vectors[name]
            if name in without:
                continue
            if _is_averaged_whole(name, vector):
                vector.copy_(mean[place])
            else:
                vector.add_((mean[place] if vector.is_floating_point() else mean[place].round()).to(vector.dtype))


def _is_averaged_whole(name: str, vector: Tensor) -> bool:
    """Return whether the vector itself is averaged instead of its change.

    An optimizer's mean of squares is averaged whole, because adding a rounded change could make it negative. Weights
    and counts are averaged by their change, which loses nothing when it is small.
    """
    return name != _WEIGHTS and vector.dtype is torch.float32
