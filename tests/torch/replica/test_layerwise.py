"""LARS and LAMB against their papers' formulas, written out for one parameter at a time in double precision."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from batchgrowth_trainer.replica.flat import FlatParameters
from batchgrowth_trainer.replica.optimizers import optimizer_of
from torch import Tensor, nn

LR, STEPS = 0.1, 5
LARS = "optimizer={type: LARS, lars: {momentum: '0.8', trustCoefficient: '0.02', weightDecay: '0.05'}"
LAMB = "optimizer={type: LAMB, lamb: {beta1: '0.8', beta2: '0.95', epsilon: '0.001', weightDecay: '0.05'}"
SPARED = ", withoutDecay: {belowDimensions: 2}"


def model() -> nn.Module:
    torch.manual_seed(2)
    made = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3))
    nn.init.zeros_(made[1].bias)  # without a norm, there is nothing that a step could be in proportion to
    return made


def lars(weights: Tensor, gradients: list[Tensor], *, spared: bool) -> Tensor:
    """You et al., 2017, with the learning rate outside of the momentum; spared parameters take steps of SGD."""
    velocity = torch.zeros_like(weights)
    for gradient in gradients:
        ratio, push = 1.0, gradient
        if not spared:
            push = gradient + 0.05 * weights
            if weights.norm() > 0:
                ratio = 0.02 * weights.norm() / (gradient.norm() + 0.05 * weights.norm())
        velocity = 0.8 * velocity + ratio * push
        weights = weights - LR * velocity
    return weights


def lamb(weights: Tensor, gradients: list[Tensor], *, spared: bool) -> Tensor:
    """You et al., 2020, algorithm 2; spared parameters take steps of Adam."""
    mean, square = torch.zeros_like(weights), torch.zeros_like(weights)
    for done, gradient in enumerate(gradients, 1):
        mean, square = 0.8 * mean + 0.2 * gradient, 0.95 * square + 0.05 * gradient**2
        push = (mean / (1 - 0.8**done)) / ((square / (1 - 0.95**done)).sqrt() + 0.001)
        ratio = 1.0
        if not spared:
            push = push + 0.05 * weights
            if weights.norm() > 0:
                ratio = weights.norm() / push.norm()
        weights = weights - LR * ratio * push
    return weights


@pytest.mark.parametrize("spares", [False, True])
@pytest.mark.parametrize(("override", "reference"), [(LARS, lars), (LAMB, lamb)], ids=["LARS", "LAMB"])
def test_steps_are_the_papers(small_job: Any, override: str, reference: Callable[..., Tensor], *, spares: bool) -> None:
    flat = FlatParameters(model(), torch.device("cpu"), lambda _, parameter: spares and parameter.ndim < 2)
    optimizer = optimizer_of(small_job(override + (SPARED if spares else "") + "}").spec, flat)
    draw = torch.Generator().manual_seed(0)
    rows = [torch.zeros(flat.length) for _ in range(STEPS)]
    for row in rows:
        for view in flat.gradient_views(row):
            view.copy_(torch.randn(view.shape, generator=draw))
    expected = {
        span.name: reference(
            parameter.detach().double(), [span.of(row).double() for row in rows], spared=spares and parameter.ndim < 2
        )
        for parameter, span in flat.members
    }
    for done, row in enumerate(rows):
        optimizer.step(row, LR, done)
    for parameter, span in flat.members:
        torch.testing.assert_close(parameter.detach().double(), expected[span.name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("override", [LARS, LAMB], ids=["LARS", "LAMB"])
def test_a_gradient_of_zero_moves_only_what_decays(small_job: Any, override: str) -> None:
    """No step is NaN."""
    flat = FlatParameters(model(), torch.device("cpu"))
    before = flat.vector.detach().clone()
    optimizer_of(small_job(override + "}").spec, flat).step(torch.zeros(flat.length), LR, 0)
    assert torch.isfinite(flat.vector).all()
    assert torch.equal(torch.sign(before - flat.vector.detach()).abs(), torch.sign(before).abs())
