"""A pipeline of two stages, one process each: a prototype that only the benchmark has.

The model is cut at a module's name, the micro-batches are the shards of the job, and each stage runs them 1F1B
(PipeDream-Flush: Narayanan et al., 2021). Plan, seeds, order of additions and optimizer are the trainer's own, so the
weights must be those of one process, bit for bit. docs/decisions/0049-a-pipeline-is-not-built.md says what is missing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from time import perf_counter
from typing import Any, Protocol

import torch
import torch.distributed as dist
from batchgrowth.schedule.stages import Step
from batchgrowth.shards import shard_bounds, tree_sum
from batchgrowth.spec import JobSpec
from batchgrowth_trainer.exchange.group import Group
from batchgrowth_trainer.replica.building import build_workload
from batchgrowth_trainer.replica.data import read, seed_generators, shard_seed
from batchgrowth_trainer.replica.loss import Loss
from batchgrowth_trainer.replica.replica import Replica
from batchgrowth_trainer.replica.rows import LOSS, Partial, Rows, Tail, largest_shard
from batchgrowth_trainer.workload import predict
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

STAGES = 2


def cut(model: nn.Module, at: str) -> tuple[nn.Sequential, nn.Sequential]:
    """The modules before the one with this name, and that one with those after it; all keep their names.

    Raises ValueError if a module on the way to the name is no nn.Sequential, or has no such module.
    """
    head, _, rest = at.partition(".")
    children = dict(model.named_children())
    if not isinstance(model, nn.Sequential) or head not in children:
        raise ValueError(f"{head}: no module of an nn.Sequential")
    names = list(children)
    place = names.index(head)
    before = OrderedDict((name, children[name]) for name in names[:place])
    after = OrderedDict((name, children[name]) for name in names[place:])
    if rest:
        before[head], after[head] = cut(children[head], rest)
    return nn.Sequential(before), nn.Sequential(after)


class Wire(Protocol):
    """The connection with the other stage."""

    def swap(self, outgoing: Sequence[Tensor], incoming: Sequence[Tensor]) -> None:
        """Send some tensors and fill others, both at once, until all of it is done."""


class Gloo:
    """torch.distributed's own connection. See Wire."""

    def __init__(self, peer: int) -> None:
        self._peer = peer

    def swap(self, outgoing: Sequence[Tensor], incoming: Sequence[Tensor]) -> None:
        """See Wire."""
        sending = [dist.isend(tensor, self._peer) for tensor in outgoing]
        for tensor in incoming:
            dist.recv(tensor, self._peer)
        for work in sending:
            if work is not None:
                work.wait()


class Tcp:
    """The connection that members of AllReduce have. See Wire."""

    def __init__(self, group: Group, peer: int) -> None:
        self._group, self._peer = group, peer

    def swap(self, outgoing: Sequence[Tensor], incoming: Sequence[Tensor]) -> None:
        """See Wire."""
        for out, into in zip_longest(outgoing, incoming):
            self._group.swap({} if out is None else {self._peer: out}, {} if into is None else {self._peer: into})


@dataclass(frozen=True, slots=True)
class _Lane:
    """A copy of the stage's model with the same weights and buffers of its own, for one shard under way.

    With one model for all of them, a shard would reset the buffers that the backward pass of another one has saved.
    """

    replica: Replica
    loss: Loss


@dataclass(frozen=True, slots=True)
class _Flight:
    """A shard between its forward and its backward pass."""

    lane: _Lane
    done: Partial
    output: Tensor
    outgoing: list[Tensor]


class Stage:
    """One half of the model, with the optimizer's state and the gradients of that half, in the process of that rank.

    `waited` are the seconds that it has spent in sending and receiving, so far.
    """

    def __init__(self, spec: JobSpec, at: str, rank: int, wire: Wire) -> None:
        self._spec, self._is_last, self._wire, self.waited = spec, rank == STAGES - 1, wire, 0.0
        workload, device = build_workload(spec), torch.device("cpu")
        halves = cut(workload.model, at)
        self._draws = any(isinstance(module, _DropoutNd) for module in halves[-1].modules())
        mine = replace(workload, model=halves[rank], augment=None if self._is_last else workload.augment)
        self.replica = Replica(spec, mine, device)
        self._tail = Tail((LOSS,), clock=False)
        self._rows = Rows(self.replica.length, self.replica.parameters, self._tail, None)
        twins = [self.replica.twin() for _ in range(STAGES - rank)]
        self._lanes = [_Lane(twin, Loss(spec, mine, twin.model, device)) for twin in twins]
        self._shape = self._agreed_shape()
        self._flight: _Flight | None = None
        self._arrived: list[Tensor] = []

    def update(self) -> None:
        """Take the next update of the plan."""
        replica = self.replica
        step, start = replica.plan.step_at(replica.position), replica.buffers.clone()
        for lane in self._lanes:
            lane.loss.begin()
        shard = self._last if self._is_last else self._first
        total = tree_sum(0, step.shards, lambda number: shard(step, start, number), self._rows.add)
        replica.commit(step, total.row)
        self._rows.release([total])

    def _first(self, step: Step, start: dict[torch.dtype, Tensor], shard: int) -> Partial:
        """A shard's sum in the first stage: the next shard is forward before this one is backward."""
        flight = self._flight
        if flight is None:
            flight = self._forward(step, start, shard)
            self._swap(flight.outgoing, [])
        self._flight = self._forward(step, start, shard + 1) if shard + 1 < step.shards else None
        gradient = torch.empty_like(flight.output)
        self._swap(self._flight.outgoing if self._flight else [], [gradient])
        flight.lane.replica.parameters.collect_into(flight.done.views)
        flight.output.backward(gradient)  # type: ignore[no-untyped-call]
        return flight.done

    def _forward(self, step: Step, start: dict[torch.dtype, Tensor], shard: int) -> _Flight:
        lane, done = self._lanes[shard % len(self._lanes)], self._rows.blank(shard)
        inputs, _, count = self._examples(step, shard)
        lane.replica.buffers.restore(start)
        seed_generators(shard_seed(self._spec.seed, step.position.update, shard))
        output = predict(lane.replica.model, self.replica.workload.augmented(inputs))
        self._keep_change(lane, start, count, done)
        outgoing = [output.detach().contiguous(), *([torch.get_rng_state()] if self._draws else [])]
        return _Flight(lane, done, output, outgoing)

    def _last(self, step: Step, start: dict[torch.dtype, Tensor], shard: int) -> Partial:
        """A shard's sum in the last stage: its gradient leaves while the next shard arrives."""
        if not shard:
            self._arrived = self._blank(step, shard)
            self._swap([], self._arrived)
        [lane], done, [inputs, *drawn] = self._lanes, self._rows.blank(shard), self._arrived
        _, target, count = self._examples(step, shard)
        lane.replica.buffers.restore(start)
        if drawn:
            torch.set_rng_state(drawn[0])
        lane.replica.parameters.collect_into(done.views)
        loss = lane.loss.differentiate(lane.loss(inputs.requires_grad_(), target, count))
        assert inputs.grad is not None
        self._arrived = self._blank(step, shard + 1) if shard + 1 < step.shards else []
        self._swap([inputs.grad.contiguous()], self._arrived)
        self._tail.write(done.places, loss, done.gradient, largest_shard(step) / count)
        self._keep_change(lane, start, count, done)
        return done

    def _blank(self, step: Step, shard: int) -> list[Tensor]:
        """Room for what the first stage sends of a shard: its output, and the state of the generator after it."""
        output = torch.empty(self._count(step, shard), *self._shape)
        return [output, *([torch.get_rng_state()] if self._draws else [])]

    def _count(self, step: Step, shard: int) -> int:
        bounds = shard_bounds(step.examples, step.shards)
        return bounds[shard + 1] - bounds[shard]

    def _examples(self, step: Step, shard: int) -> tuple[Any, Any, int]:
        """The inputs, the targets and the number of the shard's examples; both stages read all of them."""
        replica, count = self.replica, self._count(step, shard)
        assert count > 1, "batch norm rests in a shard of one example, which the prototype leaves out"
        return *read(replica.workload, replica.requests.of(replica.plan, step, shard)), count

    def _keep_change(self, lane: _Lane, start: dict[torch.dtype, Tensor], count: int, done: Partial) -> None:
        if self.replica.buffers.length:
            change = done.row[self.replica.parameters.length : -self._tail.length]
            lane.replica.buffers.change_since(start, count, change)

    def _swap(self, outgoing: Sequence[Tensor], incoming: Sequence[Tensor]) -> None:
        began = perf_counter()
        self._wire.swap(outgoing, incoming)
        self.waited += perf_counter() - began

    def _agreed_shape(self) -> tuple[int, ...]:
        """The shape of what the first stage sends for an example: always the same, in the prototype."""
        shape: list[Any] = [None]
        if not self._is_last:
            inputs, _, _ = self._examples(self.replica.plan.step_at(self.replica.position), 0)
            with torch.no_grad():
                shape = [tuple(predict(self._lanes[0].replica.model.eval(), inputs).shape[1:])]
        dist.broadcast_object_list(shape, src=0)
        return tuple(shape[0])
