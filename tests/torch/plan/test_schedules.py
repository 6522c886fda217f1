"""Schedules give the learning rates of torch.optim.lr_scheduler, stepped once an epoch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from batchgrowth import JobSpec, Position, make_plan
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LambdaLR,
    LinearLR,
    LRScheduler,
    PolynomialLR,
    StepLR,
)

EPOCHS, RATE = 30, 0.05

CASES: list[Any] = [
    pytest.param({"type": "Constant"}, lambda o: LambdaLR(o, lambda _: 1.0), id="constant"),
    pytest.param(
        {"type": "Step", "step": {"factor": "0.1", "everyEpochs": 7}}, lambda o: StepLR(o, 7, gamma=0.1), id="step"
    ),
    pytest.param({"type": "Cosine"}, lambda o: CosineAnnealingLR(o, EPOCHS), id="cosine"),
    pytest.param(
        {"type": "Cosine", "cosine": {"finalFactor": "0.1"}},
        lambda o: CosineAnnealingLR(o, EPOCHS, eta_min=RATE / 10),
        id="cosine to a tenth",
    ),
    pytest.param(
        {"type": "Linear"}, lambda o: LinearLR(o, start_factor=1, end_factor=0, total_iters=EPOCHS), id="linear"
    ),
    pytest.param(
        {"type": "Linear", "linear": {"finalFactor": "0.2", "epochs": 12}},
        lambda o: LinearLR(o, start_factor=1, end_factor=0.2, total_iters=12),
        id="linear that ends early",
    ),
    pytest.param({"type": "Polynomial"}, lambda o: PolynomialLR(o, EPOCHS, power=2.0), id="polynomial"),
    pytest.param(
        {"type": "Polynomial", "polynomial": {"power": "0.9"}}, lambda o: PolynomialLR(o, EPOCHS, power=0.9), id="0.9"
    ),
    pytest.param(
        {"type": "InverseSquareRoot", "inverseSquareRoot": {"offsetEpochs": 4}},
        lambda o: LambdaLR(o, lambda epoch: math.sqrt(4 / (4 + epoch))),
        id="inverse square root",
    ),
]


def ours(schedule: dict[str, Any]) -> list[float]:
    """The learning rate of each epoch of a plan."""
    spec = JobSpec.model_validate(
        {
            "workload": {"entrypoint": "a:b", "examples": 100},
            "epochs": EPOCHS,
            "batch": {"initial": 100, "maximum": 100},
            "learningRate": {"initial": str(RATE), "schedule": schedule},
        }
    )
    plan = make_plan(spec)
    return [plan.step_at(Position(epoch, epoch)).learning_rate for epoch in range(EPOCHS)]


def theirs(make: Callable[[Optimizer], LRScheduler]) -> list[float]:
    """The learning rate of each epoch by torch."""
    optimizer = SGD([torch.nn.Parameter(torch.zeros(1))], lr=RATE)
    scheduler, rates = make(optimizer), list[float]()
    for _ in range(EPOCHS):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


@pytest.mark.parametrize(("schedule", "make"), CASES)
def test_rates_are_torchs(schedule: dict[str, Any], make: Callable[[Optimizer], LRScheduler]) -> None:
    """Torch multiplies the rate of the epoch before, so its numbers have a rounding error per epoch."""
    assert pytest.approx(theirs(make), rel=1e-11) == ours(schedule)
