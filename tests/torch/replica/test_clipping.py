"""Clipping is torch's own, over the whole gradient, and after what growth measures."""

from typing import Any

import pytest
import torch
from batchgrowth.spec import Clipping
from batchgrowth_trainer.replica.replica import clip
from small import plain
from torch import nn


def clipped(gradient: torch.Tensor, **clipping: str) -> torch.Tensor:
    copy = gradient.clone()
    clip(copy, float(torch.linalg.vector_norm(gradient)), Clipping(**clipping))
    return copy


@pytest.mark.parametrize("norm", ["0.5", "3.7", "1000"])
def test_a_norm_is_torchs(norm: str) -> None:
    gradient = torch.randn(50, generator=torch.Generator().manual_seed(0))
    theirs = nn.Parameter(torch.zeros(50))
    theirs.grad = gradient.clone()
    nn.utils.clip_grad_norm_([theirs], float(norm))
    torch.testing.assert_close(clipped(gradient, norm=norm), theirs.grad, rtol=1e-6, atol=0)


def test_a_gradient_within_the_norm_keeps_its_bits() -> None:
    gradient = torch.full((4,), 0.5)
    assert torch.equal(gradient, clipped(gradient, norm="1"))


def test_a_value_bounds_each_element() -> None:
    assert clipped(torch.tensor([-2.0, 0.25, 7.0]), value="0.5").tolist() == [-0.5, 0.25, 0.5]


def test_an_update_uses_the_clipped_gradient_and_growth_the_whole(small_job: Any, make_replica: Any) -> None:
    """With SGD, the weights move by the learning rate times the bound."""
    moved, sizes = [], []
    for more in ((), ("optimizer.clipping={norm: '0.001'}",)):
        replica = make_replica(small_job("optimizer={type: SGD, sgd: {momentum: '0'}}", *more), plain())
        advance, before = replica.advance, replica.parameters.vector.detach().clone()
        replica.advance = lambda step, taken, advance=advance: sizes.append(taken.norm) or advance(step, taken)
        step = replica.plan.step_at(replica.position)
        [node] = replica.partials(step, (0, step.shards))
        done = replica.commit(step, node.row)
        moved.append(float(torch.linalg.vector_norm(replica.parameters.vector.detach() - before)) / done.learning_rate)
    assert sizes[1] > 0.001
    assert pytest.approx(sizes[0], rel=1e-5) == sizes[1]
    assert pytest.approx([sizes[0], 0.001], rel=1e-3) == moved
