"""The loops of one process that users of PyTorch write: over tensors in memory, and over a DataLoader.

They have the same model, data, optimizer, number of threads and allocator settings as our single worker, and none of
our extra work per update. The order of the examples is torch's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter
from typing import cast

import torch
from batchgrowth.spec import JobSpec
from batchgrowth_trainer.replica.building import build_workload
from batchgrowth_trainer.workload import Dataset
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from bench.baselines import Sample, sample_of
from bench.systems import DATALOADER, LOADERS, PLAIN

SYSTEMS = (PLAIN, DATALOADER)

_Batch = tuple[Tensor, Tensor]


def measure(system: str, spec: JobSpec, warm: int) -> Sample:
    """The sample of the updates after the first `warm`; nothing is sent."""
    workload, loss = build_workload(spec), nn.CrossEntropyLoss()
    model = workload.model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=float(spec.learning_rate.initial), momentum=0.9)
    batches = _from_memory if system == PLAIN else _from_loader
    ends = [perf_counter()]
    for inputs, target in batches(workload.train, spec):
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
        cast("torch.utils.data.Dataset[_Batch]", data),
        spec.batch.initial,
        shuffle=True,
        num_workers=LOADERS,
        persistent_workers=True,
    )
    for _ in range(spec.epochs):
        yield from loader
