"""BFloat16 computes the model and its loss in bfloat16, and adds and keeps everything in float32."""

from typing import Any

import pytest
import torch
from batchgrowth_trainer.drivers.single_process import only_one
from batchgrowth_trainer.replica.evaluation import evaluate
from batchgrowth_trainer.replica.replica import Replica
from batchgrowth_trainer.workload import Workload
from small import data, plain


class Seen:
    """A workload that keeps the dtypes of its model's outputs."""

    def __init__(self) -> None:
        self.dtypes: set[torch.dtype] = set()
        base = plain()
        self.workload = Workload(
            model=base.model, loss=lambda output, target: base.loss(self.see(output), target),
            train=base.train, test=base.train,
        )  # fmt: skip

    def see(self, output: torch.Tensor) -> torch.Tensor:
        self.dtypes.add(output.dtype)
        return output


def summed(replica: Replica) -> torch.Tensor:
    step = replica.plan.step_at(replica.position)
    [node] = replica.partials(step, (0, step.shards))
    return node.row


@pytest.mark.parametrize(("precision", "dtype"), [("Float32", torch.float32), ("BFloat16", torch.bfloat16)])
def test_the_model_computes_in_it(small_job: Any, make_replica: Any, precision: str, dtype: torch.dtype) -> None:
    seen = Seen()
    replica = make_replica(small_job(f"precision={precision}"), seen.workload)
    replica.commit(replica.plan.step_at(replica.position), summed(replica))
    evaluate(replica, 0, 1, only_one)
    assert {dtype} == seen.dtypes
    assert {tensor.dtype for tensor in replica.tensors().values() if tensor.is_floating_point()} == {torch.float32}


def test_its_gradient_is_close_to_that_of_float32(small_job: Any, make_replica: Any) -> None:
    exact, rough = (make_replica(small_job(f"precision={precision}"), plain()) for precision in ("Float32", "BFloat16"))
    rows = [summed(replica) for replica in (exact, rough)]
    assert not torch.equal(*rows)
    torch.testing.assert_close(rows[1], rows[0], rtol=0.1, atol=0.05 * float(rows[0].abs().max()))


def test_a_loss_in_bfloat16_is_added_in_float32(small_job: Any, make_replica: Any) -> None:
    """A sum of 257 ones in bfloat16 is 256."""
    ones = Workload(
        model=plain().model,
        loss=lambda output, _: torch.ones(len(output), dtype=torch.bfloat16) + 0 * output.sum(1).bfloat16(),
        train=data(257),
    )
    whole = "batch={initial: 257, maximum: 257, shard: 257}", "workload.examples=257"
    replica = make_replica(small_job("precision=BFloat16", *whole), ones)
    step = replica.plan.step_at(replica.position)
    assert step.shards == 1
    assert replica.commit(step, summed(replica)).loss == 1.0
