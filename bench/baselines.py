"""The baselines in plain torch: DDP over gloo, one process, and the loops that users write for one process.

They use the same model, loss, data, number of threads and allocator settings as ours, without our extra work per
update: a history row with the loss, and the check of a stop flag. All but the users' loops, which draw an order of
torch's own, take the examples in our order, too.

Two processes are started once, and are idle while other systems are measured.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Any, Self, cast

import torch
import torch.distributed as dist
from batchgrowth.plan import Plan, make_plan
from batchgrowth.position import Position
from batchgrowth.spec import JobSpec
from batchgrowth_trainer.building import build_workload
from batchgrowth_trainer.replica.data import example_order, fetch
from batchgrowth_trainer.replica.reproducible import prepare_process
from batchgrowth_trainer.workload import Dataset
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from bench.cases import DATALOADER, DDP, GATHERED, LOADERS, ONE, PLAIN, REDUCED, WORKERS
from bench.loopback import sent_bytes

BLOCK_SECONDS = 0.25
"""The length of a block of updates that is timed by itself, in seconds: that of a report of our worker."""

_Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class Sample:
    """Means per timed update: milliseconds, and bytes over the loopback interface.

    `blocks` are the milliseconds per update of the blocks of a run, none if only the whole was timed.
    """

    ms: float
    sent: float
    blocks: tuple[float, ...] = ()


def sample_of(ends: Sequence[float], sent: float = 0.0) -> Sample:
    """Return the sample of updates between these times, in seconds: the start of the first, and the end of each."""
    count = len(ends) - 1
    mean = (ends[-1] - ends[0]) / count
    block = min(count, max(1, round(BLOCK_SECONDS / mean)))
    starts = range(0, count - block + 1, block)
    return Sample(mean * 1e3, sent, tuple((ends[at + block] - ends[at]) / block * 1e3 for at in starts))


class Peers:
    """The two processes; the context manager ends them."""

    def __init__(self, spec: JobSpec) -> None:
        context = multiprocessing.get_context("spawn")
        # They meet in a file, since another process could take a port between its choice and its use.
        self._folder = tempfile.TemporaryDirectory(prefix="batchgrowth-bench-")
        store = Path(self._folder.name) / "store"
        self._ends: list[Connection] = []
        self._processes = []
        for rank in range(WORKERS):
            mine, theirs = context.Pipe()
            # It is not a daemon, since a DataLoader has children; it ends with its pipe.
            process = context.Process(target=_serve, args=(rank, store, spec, theirs), daemon=False)
            process.start()
            theirs.close()
            self._ends.append(mine)
            self._processes.append(process)

    def measure(self, system: str, spec: JobSpec, warm: int) -> Sample:
        """Return rank 0's sample; rank 1 is idle if one process trains. Raises EOFError if a process has failed."""
        ends = self._ends
        if system in (ONE, PLAIN, DATALOADER):
            ends = ends[:1]
        for end in ends:
            end.send((system, spec, warm, len(ends)))
        samples: list[Sample] = [end.recv() for end in ends]
        return samples[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for end in self._ends:
            end.close()
        for process in self._processes:
            process.join(timeout=10)
            process.kill()
        self._folder.cleanup()


def _serve(rank: int, store: Path, spec: JobSpec, orders: Connection) -> None:
    prepare_process(spec)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=store.as_uri(), rank=rank, world_size=WORKERS)
    try:
        while True:
            system, job, warm, world = orders.recv()
            if system in (PLAIN, DATALOADER):
                orders.send(_measure_loop(system, job, warm))
            else:
                orders.send(_measure_shares(system, job, warm, rank, world))
    except EOFError:
        dist.destroy_process_group()


def _measure_shares(system: str, spec: JobSpec, warm: int, rank: int, world: int) -> Sample:
    """Return the means over the updates of the spec's plan after the first `warm`, by this rank's clock."""
    plan = make_plan(spec)
    workload = build_workload(spec)
    parameters = list(workload.model.parameters())
    torch.manual_seed(rank)  # the models have the same seed, but each rank draws its own dropout masks
    model = workload.model
    if system == DDP:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(parameters, lr=float(spec.learning_rate.initial), momentum=0.9)
    model.train()
    ends: list[float] = []
    before = 0
    for update, indices in enumerate(shares(spec, plan, rank, world)):
        if update == warm:
            _meet(world)
            ends.append(perf_counter())
            before = sent_bytes()
        optimizer.zero_grad()
        inputs, target = fetch(workload.train, indices)
        workload.loss(model(inputs), target).mean().backward()  # type: ignore[no-untyped-call]
        if system in PER_TENSOR_MEANS:
            PER_TENSOR_MEANS[system](parameters, rank, world)
        optimizer.step()
        if update >= warm:
            ends.append(perf_counter())
    _meet(world)
    return sample_of(ends, (sent_bytes() - before) / (plan.updates - warm))


def _gathered(parameters: Sequence[nn.Parameter], rank: int, world: int) -> None:
    """Replace each gradient by its mean over the ranks, which rank 0 computes and scatters."""
    for parameter in parameters:
        assert parameter.grad is not None
        if rank:
            dist.gather(parameter.grad, dst=0)
            dist.scatter(parameter.grad, src=0)
        else:
            each = [torch.empty_like(parameter.grad) for _ in range(world)]
            dist.gather(parameter.grad, each, dst=0)
            mean = torch.stack(each).mean(dim=0)
            dist.scatter(parameter.grad, [mean] * world, src=0)


def _reduced(parameters: Sequence[nn.Parameter], _rank: int, world: int) -> None:
    """Replace each gradient by its mean over the ranks, of an all_reduce for each tensor."""
    for parameter in parameters:
        assert parameter.grad is not None
        dist.all_reduce(parameter.grad)
        parameter.grad /= world


PER_TENSOR_MEANS = {GATHERED: _gathered, REDUCED: _reduced}
"""System -> how it exchanges gradients between backward and the optimizer's step."""


def _meet(world: int) -> None:
    if world > 1:
        dist.barrier()


def shares(spec: JobSpec, plan: Plan, rank: int, world: int) -> Iterator[Tensor]:
    """Yield this rank's indices for each update: an equal share of the examples that our systems use for it."""
    position = Position()
    epoch = -1
    order = torch.empty(0)
    while not plan.is_done(position):
        step = plan.step_at(position)
        if position.epoch != epoch:
            epoch = position.epoch
            order = example_order(spec.seed, epoch, plan.examples_per_epoch)
        first = step.examples * rank // world
        last = step.examples * (rank + 1) // world
        yield order[position.offset + first : position.offset + last]
        position = step.after


def _measure_loop(system: str, spec: JobSpec, warm: int) -> Sample:
    """Return the sample of a loop that users of PyTorch write for one process, after the first `warm` updates."""
    workload = build_workload(spec)
    loss = nn.CrossEntropyLoss()
    model = workload.model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=float(spec.learning_rate.initial), momentum=0.9)
    batches = _from_memory(workload.train, spec)
    if system == DATALOADER:
        batches = _from_loader(workload.train, spec)
    ends = [perf_counter()]
    for inputs, target in batches:
        optimizer.zero_grad()
        loss(model(inputs), target).backward()
        optimizer.step()
        ends.append(perf_counter())
    return sample_of(ends[warm:])


def _from_memory(data: Dataset, spec: JobSpec) -> Iterator[_Batch]:
    assert isinstance(data, TensorDataset)
    inputs, targets = data.tensors
    for _ in range(spec.epochs):
        order = torch.randperm(len(data))
        for first in range(0, len(data), spec.batch.initial):
            indices = order[first : first + spec.batch.initial]
            yield inputs[indices], targets[indices]


def _from_loader(data: Dataset, spec: JobSpec) -> Iterator[_Batch]:
    loader = DataLoader(
        cast("torch.utils.data.Dataset[Any]", data),
        spec.batch.initial,
        shuffle=True,
        num_workers=LOADERS,
        persistent_workers=True,
    )
    for _ in range(spec.epochs):
        yield from loader
