"""Workloads with one fault each, after some good updates."""

import os
from pathlib import Path

import torch
from batchgrowth_trainer.workload import Workload
from batchgrowth_trainer.workloads import digits
from torch import Tensor

FAULT = os.environ.get("FAULT_AT_IMPORT")
if FAULT:
    raise RuntimeError(f"import fails: {FAULT}")

GOOD_SHARDS = 40


class Counted(torch.nn.Module):
    """Raises after a number of forward passes in training."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner, self.calls = inner, 0

    def forward(self, images: Tensor) -> Tensor:
        self.calls += self.training
        if self.calls > GOOD_SHARDS:
            raise ValueError("the images are too blue")  # line that the error must name
        return self.inner(images)


def forward() -> Workload:
    net = digits.mlp("8")
    return Workload(model=Counted(net.model), loss=net.loss, train=net.train, test=net.test)


def wrong() -> Workload:
    return {"model": "none"}  # type: ignore[return-value]


def scalar() -> Workload:
    net = digits.mlp("8")
    return Workload(model=net.model, loss=lambda output, target: output.mean(), train=net.train)


def nan() -> Workload:
    net, calls = digits.mlp("8"), [0]

    def loss(output: Tensor, target: Tensor) -> Tensor:
        calls[0] += 1
        return net.loss(output, target) * (float("nan") if calls[0] > GOOD_SHARDS else 1.0)

    return Workload(model=net.model, loss=loss, train=net.train, test=net.test)


def missing() -> Workload:
    return Workload(model=torch.nn.Linear(1, 1), loss=torch.nn.MSELoss(), train=Path("/no/such/data.bin").open())
