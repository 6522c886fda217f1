"""The baselines, in plain torch.distributed over gloo: one process, DDP, and two exchanges tensor by tensor.

They use the same model, loss, data, order of examples, number of threads and allocator settings as ours, without
our extra work per update: a history row with the loss, and the check of a stop flag.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter

import torch
import torch.distributed as dist
from batchgrowth.position import Position
from batchgrowth.schedule.plan import make_plan
from batchgrowth.schedule.stages import Plan
from batchgrowth.spec import JobSpec
from batchgrowth_trainer.loading import load_workload
from batchgrowth_trainer.replica.data import draw_seed, example_order
from batchgrowth_trainer.workload import Workload, fetch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from bench.loopback import sent_bytes
from bench.systems import DDP, GATHER, ONE, REDUCE

Exchange = Callable[[list[Tensor]], None]
BLOCK_SECONDS = 0.25  # which has a report of our worker, or an update


@dataclass(frozen=True, slots=True)
class Sample:
    """Means per timed update: milliseconds, and bytes over the loopback interface.

    `blocks` are the milliseconds per update of the blocks of a run, none if only the whole was timed.
    """

    ms: float
    sent: float
    blocks: tuple[float, ...] = ()


def sample_of(ends: Sequence[float], sent: float = 0.0) -> Sample:
    """The sample of updates between these times, in seconds: the beginning of the first, and the end of each."""
    count = len(ends) - 1
    mean = (ends[-1] - ends[0]) / count
    block = min(count, max(1, round(BLOCK_SECONDS / mean)))
    starts = range(0, count - block + 1, block)
    return Sample(mean * 1e3, sent, tuple((ends[at + block] - ends[at]) / block * 1e3 for at in starts))


def measure(system: str, spec: JobSpec, warm: int, rank: int, world: int) -> Sample:
    """The means over the updates of the spec's plan after the first `warm`, by this rank's clock."""
    plan, workload = make_plan(spec), workload_of(spec)
    parameters = list(workload.model.parameters())
    # The models have the same seed, but each rank draws its own dropout masks.
    torch.manual_seed(rank)
    model = DistributedDataParallel(workload.model) if system == DDP else workload.model
    optimizer = torch.optim.SGD(parameters, lr=float(spec.learning_rate.initial), momentum=0.9)
    model.train()
    exchange = EXCHANGES[system]
    ends, before = [0.0], 0
    for update, indices in enumerate(shares(spec, plan, rank, world)):
        if update == warm:
            ends[0], before = _start(world)
        optimizer.zero_grad()
        inputs, target = fetch(workload.train, indices)
        workload.loss(model(inputs), target).mean().backward()  # type: ignore[no-untyped-call]
        exchange([p.grad for p in parameters if p.grad is not None])
        optimizer.step()
        if update >= warm:
            ends.append(perf_counter())
    _meet(world)
    return sample_of(ends, (sent_bytes() - before) / (plan.updates - warm))


def _start(world: int) -> tuple[float, int]:
    _meet(world)
    return perf_counter(), sent_bytes()


def _meet(world: int) -> None:
    if world > 1:
        dist.barrier()


def workload_of(spec: JobSpec) -> Workload:
    """The job's workload, with the model's weights by its seed."""
    return load_workload(
        spec.workload.entrypoint,
        spec.workload.arguments,
        seed=draw_seed(spec.seed, "model") % 2**32,
        examples=spec.workload.examples,
    )


def shares(spec: JobSpec, plan: Plan, rank: int, world: int) -> Iterator[Tensor]:
    """This rank's indices for each update: an equal share of the examples that our systems use for it."""
    position, epoch, order = Position(), -1, torch.empty(0)
    while not plan.is_done(position):
        step = plan.step_at(position)
        if position.epoch != epoch:
            epoch, order = position.epoch, example_order(spec.seed, position.epoch, plan.examples_per_epoch)
        first, last = (step.examples * part // world for part in (rank, rank + 1))
        yield order[position.offset + first : position.offset + last]
        position = step.after


def _nothing(gradients: list[Tensor]) -> None:
    """Does nothing: one process exchanges nothing, and DDP exchanges during backward."""


def _gather_scatter(gradients: list[Tensor]) -> None:
    """Rank 0 gathers each tensor, averages it and scatters the mean (CS744 report, task 2A)."""
    world, is_root = dist.get_world_size(), dist.get_rank() == 0
    for gradient in gradients:
        parts = [torch.empty_like(gradient) for _ in range(world)] if is_root else None
        dist.gather(gradient, parts, dst=0)
        mean = torch.stack(parts).mean(0) if parts else None
        dist.scatter(gradient, None if mean is None else [mean] * world, src=0)


def _all_reduce(gradients: list[Tensor]) -> None:
    """One all_reduce per tensor (CS744 report, task 2B)."""
    world = dist.get_world_size()
    for gradient in gradients:
        dist.all_reduce(gradient)
        gradient.div_(world)


EXCHANGES: dict[str, Exchange] = {DDP: _nothing, ONE: _nothing, GATHER: _gather_scatter, REDUCE: _all_reduce}
