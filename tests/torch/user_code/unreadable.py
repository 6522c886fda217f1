"""Data sets that draw random numbers and, on request, cannot be read for a while."""

import errno
import random

import numpy as np
import torch
from batchgrowth_trainer.workload import Workload
from small import net
from torch import Tensor
from torch.utils.data import Dataset

fails: dict[int, list[OSError]] = {}
"""By example, the errors that reading it raises first."""
reads: list[int] = []
"""The examples in the order in which they were asked for."""


def stale(times: int = 1) -> list[OSError]:
    return [OSError(errno.ESTALE, "Stale file handle") for _ in range(times)]


class Drawing(Dataset[tuple[Tensor, Tensor]]):
    """Draws from every generator before and after the place of the fault."""

    def __init__(self, inner: Dataset[tuple[Tensor, Tensor]]) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)  # type: ignore[arg-type]

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        reads.append(index)
        inputs, target = self.inner[index]
        drawn = torch.rand(()) + random.random()
        if fails.get(index):
            raise fails[index].pop(0)
        return inputs + 0.01 * (drawn + float(np.random.random())), target


class Batched(Drawing):
    def __getitems__(self, indices: list[int]) -> list[tuple[Tensor, Tensor]]:
        return [self[index] for index in indices]


def single() -> Workload:
    return _of(Drawing)


def batched() -> Workload:
    return _of(Batched)


def _of(kind: type[Drawing]) -> Workload:
    workload = net()
    assert workload.test is not None
    return Workload(model=workload.model, loss=workload.loss, train=kind(workload.train), test=kind(workload.test),
                    metrics=workload.metrics, augment=workload.augment)  # fmt: skip
