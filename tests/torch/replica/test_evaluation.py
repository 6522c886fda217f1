"""Evaluation: eval mode, fixed chunks, no effect on training."""

from collections.abc import Sequence
from typing import Any

import pytest
import small
import torch
from batchgrowth.errors import WorkloadError
from batchgrowth_trainer.drivers.single_process import only_one
from batchgrowth_trainer.replica.evaluation import evaluate, node_sums
from batchgrowth_trainer.replica.replica import Replica
from batchgrowth_trainer.replica.tree import add_up, lay_out
from batchgrowth_trainer.workload import Workload, correct
from torch import Tensor, nn


def net() -> Workload:
    torch.manual_seed(1)
    return small.net()


class Counting(nn.Module):
    """Writes, and replaces, its buffers even in eval mode, and its output depends on them."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls = self.calls + 1
        return self.layer(x) * self.calls


def values_of(replica: Replica, members: int) -> dict[str, float]:
    """The joint result of several members."""

    def reduce(rows: Sequence[Tensor], chunks: int, like: Tensor) -> Tensor:
        layout = lay_out(chunks, members)
        test = replica.workload.test
        assert test is not None
        others = [node_sums(replica, test, layout, rank) for rank in range(1, members)]
        return add_up([*rows, *(row for some in others for row in some)], layout)

    return evaluate(replica, 0, members, reduce)


def train(replica: Replica, updates: int = 3) -> None:
    for _ in range(updates):
        step = replica.plan.step_at(replica.position)
        replica.commit(step, replica.partials(step, (0, step.shards))[0].row)


def test_the_model_is_scored_in_eval_mode(small_job: Any, make_replica: Any) -> None:
    replica = make_replica(small_job(), net())
    train(replica)
    inputs, target = replica.workload.test.tensors
    with torch.no_grad():
        output = replica.model.eval()(inputs)
    expected = {
        "loss": replica.workload.loss(output, target).mean().item(),
        "accuracy": correct(output, target).mean().item(),
    }
    assert pytest.approx(expected, rel=1e-6) == evaluate(replica, 0, 1, only_one)
    assert replica.model.training


@pytest.mark.parametrize("members", [2, 3, 5])
@pytest.mark.parametrize("model", ["net", "counting"])
def test_any_number_of_members_finds_the_same_numbers(
    small_job: Any, make_replica: Any, members: int, model: str
) -> None:
    workload = net() if model == "net" else small.of(Counting())
    replica = make_replica(small_job(), workload)
    train(replica)
    assert values_of(replica, 1) == values_of(replica, members)


@pytest.mark.parametrize("model", ["net", "counting"])
def test_it_leaves_no_trace(small_job: Any, make_replica: Any, model: str) -> None:
    """Neither buffers nor later updates' draws change."""

    def trained(evaluating: bool) -> dict[str, Tensor]:
        torch.manual_seed(1)
        replica = make_replica(small_job(), small.net() if model == "net" else small.of(Counting()))
        for _ in range(4):
            train(replica, 1)
            if evaluating:
                before = {name: tensor.clone() for name, tensor in replica.tensors().items()}
                evaluate(replica, 0, 1, only_one)
                assert all(torch.equal(before[name], tensor) for name, tensor in replica.tensors().items())
        return {name: tensor.clone() for name, tensor in replica.tensors().items()}

    with_, without = trained(True), trained(False)
    assert all(torch.equal(with_[name], without[name]) for name in without)


def test_without_a_test_set_there_is_nothing_to_say(small_job: Any, make_replica: Any) -> None:
    workload = net()
    bare = Workload(model=workload.model, loss=workload.loss, train=workload.train)
    assert {} == evaluate(make_replica(small_job(), bare), 0, 1, only_one)


def test_a_metric_that_is_wrong_is_named(small_job: Any, make_replica: Any) -> None:
    workload = net()
    wrong = Workload(
        model=workload.model, loss=workload.loss, train=workload.train, test=workload.test,
        metrics={"share": lambda output, target: 0.5},
    )  # fmt: skip
    with pytest.raises(WorkloadError, match=r"metrics\.share: returned a float"):
        evaluate(make_replica(small_job(), wrong), 0, 1, only_one)
