"""Parameters that the weight decay leaves alone, as torch's parameter groups do it."""

from typing import Any

import pytest
import torch
from batchgrowth.errors import WorkloadError
from small import of
from torch import Tensor, nn

BIAS_AND_NORM = "optimizer.withoutDecay={belowDimensions: 2}"
BY_NAME = "optimizer.withoutDecay={names: ['*.bias', '1.*']}"
OPTIMIZERS = {
    "SGD": ("optimizer={type: SGD, sgd: {momentum: '0.9', weightDecay: '0.1'}}",
            lambda groups: torch.optim.SGD(groups, lr=0.05, momentum=0.9)),
    "AdamW": ("optimizer={type: AdamW, adamW: {weightDecay: '0.1'}}",
              lambda groups: torch.optim.AdamW(groups, lr=0.05)),
}  # fmt: skip


def model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3))


def is_spared(name: str, parameter: Tensor) -> bool:
    return parameter.ndim < 2


@pytest.mark.parametrize("asked", [BIAS_AND_NORM, BY_NAME])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_steps_equal_those_of_torchs_groups(small_job: Any, make_replica: Any, optimizer: str, asked: str) -> None:
    overrides, theirs_of = OPTIMIZERS[optimizer]
    replica = make_replica(small_job("learningRate.rule=Constant", overrides, asked), of(model()))
    reference = model()
    named = dict(reference.named_parameters())
    theirs = theirs_of([
        {"params": [p for name, p in named.items() if not is_spared(name, p)], "weight_decay": 0.1},
        {"params": [p for name, p in named.items() if is_spared(name, p)], "weight_decay": 0.0},
    ])  # fmt: skip
    for _ in range(4):
        step = replica.plan.step_at(replica.position)
        [node] = replica.partials(step, (0, step.shards))
        mean = node.row / step.examples
        for span in replica.parameters.spans:
            named[span.name].grad = span.of(mean).clone()
        replica.commit(step, node.row)
        theirs.step()
    for name, mine in replica.model.named_parameters():
        torch.testing.assert_close(mine.detach(), named[name].detach(), rtol=1e-5, atol=1e-6)


def test_every_parameter_may_be_spared(small_job: Any, make_replica: Any) -> None:
    weights = []
    for asked in (("optimizer.withoutDecay={names: ['*']}",), ("optimizer.sgd.weightDecay=0",)):
        replica = make_replica(small_job(*asked), of(model()))
        step = replica.plan.step_at(replica.position)
        [node] = replica.partials(step, (0, step.shards))
        replica.commit(step, node.row)
        weights.append(replica.parameters.vector.detach())
    assert torch.equal(*weights)


def test_a_pattern_that_no_parameter_has_is_refused(small_job: Any, make_replica: Any) -> None:
    job = small_job("optimizer.withoutDecay={names: ['0.*', 'norm.*']}")
    said = r"optimizer\.withoutDecay\.names\[1\]: no trained parameter is named norm\.\*; there are 0\.weight, 0\.bias"
    with pytest.raises(WorkloadError, match=said):
        make_replica(job, of(model()))
