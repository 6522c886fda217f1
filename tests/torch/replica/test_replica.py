"""One replica: gradients, the fixed tree, the step, and what happens when the workload misbehaves."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import small
import torch
from batchgrowth.errors import WorkloadError
from batchgrowth.plan import Step
from batchgrowth.shards import lay_out, merge_order
from batchgrowth_trainer.exchange.all_reduce import add_up
from batchgrowth_trainer.replica.replica import Replica
from batchgrowth_trainer.workload import Workload
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

BATCH = "batch={{initial: {0}, maximum: {0}, shard: {1}, growth: {{type: Constant}}}}"

PROPERTY = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def net() -> Workload:
    torch.manual_seed(1)
    return small.net()


def first_step(replica: Replica) -> Step:
    return replica.plan.step_at(replica.position)


def total(replica: Replica, step: Step, workers: int = 1) -> Tensor:
    """The sum over all shards, as added by several workers."""
    layout = lay_out(step.shards, workers)
    rows = [p.row.clone() for run in layout.runs for p in replica.partials(step, run)]
    return add_up(rows, layout)


def state(replica: Replica) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in replica.tensors().items()}


def train(replica: Replica, updates: int, workers: int = 1) -> Replica:
    for _ in range(updates):
        step = first_step(replica)
        replica.commit(step, total(replica, step, workers))
    return replica


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def _flatten_as_on_a_gpu(self: Any) -> None:
    """Move the weights into other memory, as cuDNN's function does."""
    with torch.no_grad():
        for weight in self._flat_weights:
            weight.set_(weight.clone())


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.out = nn.GRU(small.FEATURES, 5, batch_first=True), nn.Linear(5, small.CLASSES)

    def forward(self, rows: Tensor) -> Tensor:
        self.rnn.flatten_parameters()
        output, _ = self.rnn(rows.unsqueeze(1))
        return self.out(output.squeeze(1))  # type: ignore[no-any-return]


def test_the_weights_of_a_recurrent_layer_are_trained_on_a_gpu(
    small_job: Any, make_replica: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload = replace(small.plain(), model=Recurrent())
    monkeypatch.setattr(nn.RNNBase, "flatten_parameters", _flatten_as_on_a_gpu)
    replica = make_replica(small_job(), workload)
    before = {name: parameter.clone() for name, parameter in workload.model.named_parameters()}
    train(replica, 1)
    for parameter, span in replica.parameters.members:
        assert parameter.data_ptr() == span.of(replica.parameters.vector).data_ptr()
        assert not torch.equal(parameter, before[span.name])


@pytest.mark.fault("A07")
@pytest.mark.parametrize("shard", [1, 3, 7, 40])
def test_the_gradient_is_the_mean_gradient_of_plain_torch(small_job: Any, make_replica: Any, shard: int) -> None:
    replica = make_replica(small_job(BATCH.format(40, shard)), small.plain())
    reference, step = small.plain(), first_step(replica)
    indices = replica.requests.order(0, 90)[:40]
    inputs, target = (tensor[indices] for tensor in reference.train.tensors)
    loss = reference.loss(reference.model(inputs), target).mean()
    loss.backward()
    row = total(replica, step) / 40
    views = replica.parameters.gradient_views(row)
    for parameter, view in zip(reference.model.parameters(), views, strict=True):
        torch.testing.assert_close(view, parameter.grad, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(row[-2], loss.detach(), rtol=1e-5, atol=1e-7)


@pytest.mark.fault("A07")
@PROPERTY
@given(examples=st.integers(1, 90), shard=st.integers(1, 12), workers=st.integers(2, 7))
def test_any_number_of_workers_adds_up_to_the_same_bits(
    small_job: Any, make_replica: Any, examples: int, shard: int, workers: int
) -> None:
    """With batch norm, dropout and noise, and also if a shard holds a single example."""
    replica = make_replica(small_job(BATCH.format(examples, shard)), net())
    step = first_step(replica)
    assert torch.equal(total(replica, step), total(replica, step, workers))


@PROPERTY
@given(cuts=st.lists(st.integers(0, 12), max_size=5), shards=st.integers(1, 12))
def test_any_split_of_the_shards_gives_nodes_that_add_up_to_the_same_bits(
    small_job: Any, make_replica: Any, cuts: list[int], shards: int
) -> None:
    replica = make_replica(small_job(BATCH.format(shards * 4 - 1, 4)), net())
    step = first_step(replica)
    assert shards == step.shards
    bounds = sorted({0, shards, *(min(cut, shards) for cut in cuts)})
    nodes = [p for run in pairwise(bounds) for p in replica.partials(step, run)]
    rows = [node.row.clone() for node in nodes]
    for left, right in merge_order([(node.lo, node.hi) for node in nodes], shards):
        rows[left] += rows[right]
    assert torch.equal(total(replica, step), rows[0])


@pytest.mark.fault("D07")
@pytest.mark.parametrize("workers", [2, 3, 5])
def test_a_whole_epoch_ends_with_the_same_state(small_job: Any, make_replica: Any, workers: int) -> None:
    """90 examples in batches of 28 end with a short batch of 6."""
    job = small_job(BATCH.format(28, 4))
    alone, together = train(make_replica(job, net()), 4), train(make_replica(job, net()), 4, workers)
    assert (alone.position.epoch, alone.position.offset) == (1, 0)
    assert same(state(alone), state(together))


@pytest.mark.fault("D07")
def test_a_lone_example_uses_the_running_statistics_of_batch_norm(small_job: Any, make_replica: Any) -> None:
    replica = make_replica(small_job(BATCH.format(89, 89)), net())
    train(replica, 1)
    before = replica.buffers.clone()
    assert first_step(replica).examples == 1
    train(replica, 1)
    assert same({"b": before[torch.float32]}, {"b": replica.buffers.vectors[torch.float32]})
    assert all(torch.isfinite(tensor).all() for tensor in replica.tensors().values())


class Frozen(nn.Sequential):
    """A net whose user froze its batch norm in the usual way."""

    def train(self, mode: bool = True) -> "Frozen":
        super().train(mode)
        self[1].eval()
        return self


def frozen() -> Workload:
    torch.manual_seed(1)
    return small.of(Frozen(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)))


@pytest.mark.parametrize("workers", [2, 3])
def test_a_lone_example_does_not_thaw_batch_norm_for_the_shards_after_it(
    small_job: Any, make_replica: Any, workers: int
) -> None:
    """Three examples in shards of at most two are shards of one and of two."""
    replica = make_replica(small_job(BATCH.format(3, 2)), frozen())
    step = first_step(replica)
    assert torch.equal(total(replica, step), total(replica, step, workers))


def broken_after(calls: int, break_it: Callable[[Tensor], Tensor]) -> Workload:
    """A net whose loss fails from a certain call on."""
    workload, seen = net(), [0]

    def loss(output: Tensor, target: Tensor) -> Tensor:
        seen[0] += 1
        plain = workload.loss(output, target)
        return break_it(plain) if seen[0] > calls else plain

    return Workload(model=workload.model, loss=loss, train=workload.train)


@pytest.mark.fault("D01")
@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_a_loss_that_is_not_finite_leaves_the_state_as_it_was(small_job: Any, make_replica: Any, number: float) -> None:
    replica = make_replica(small_job(BATCH.format(8, 4)), broken_after(9, lambda loss: loss * number))
    train(replica, 4)
    before, position = state(replica), replica.position
    with pytest.raises(WorkloadError, match=r"update 5 \(epoch 1, batch 8, learning rate 0\.05\) is not finite"):
        train(replica, 1)
    assert same(before, state(replica))
    assert position == replica.position


@pytest.mark.fault("D01")
def test_a_gradient_that_is_not_finite_leaves_the_state_as_it_was(small_job: Any, make_replica: Any) -> None:
    """The square root of zero has a finite value and an infinite slope."""
    replica = make_replica(small_job(BATCH.format(8, 4)), broken_after(2, lambda loss: (loss - loss).sqrt()))
    train(replica, 1)
    before = state(replica)
    with pytest.raises(WorkloadError, match="gradient norm nan"):
        train(replica, 1)
    assert same(before, state(replica))


@pytest.mark.fault("D18")
@pytest.mark.parametrize("error", [KeyError("left"), SystemExit("left")], ids=lambda error: type(error).__name__)
def test_a_workload_that_raises_leaves_the_state_as_it_was(
    small_job: Any, make_replica: Any, error: BaseException
) -> None:
    """An exit too: as such it would end the trainer as if the job were done."""

    def fail(loss: Tensor) -> Tensor:
        raise error

    replica = make_replica(small_job(BATCH.format(8, 4)), broken_after(3, fail))
    train(replica, 1)
    before = state(replica)
    with pytest.raises(
        WorkloadError, match=r"update 2, shard 1 raised \w+: '?left'? \(.*test_replica\.py:\d+, in fail\)"
    ):
        train(replica, 1)
    assert same(before, state(replica))


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda output, target: output.sum(), "returned one number for the whole shard"),
        (lambda output, target: output, r"returned shape \(4, 3\) for 4 examples"),
        (lambda output, target: None, "returned a NoneType"),
    ],
    ids=["scalar", "matrix", "nothing"],
)
def test_a_wrong_loss_is_reported(small_job: Any, make_replica: Any, loss: Any, message: str) -> None:
    workload = net()
    replica = make_replica(
        small_job(BATCH.format(8, 4)), Workload(model=workload.model, loss=loss, train=workload.train)
    )
    with pytest.raises(WorkloadError, match=message):
        train(replica, 1)


def test_a_step_of_ones_own(small_job: Any, make_replica: Any) -> None:
    """It has the place of the loss of the model's output, and the same is asked of what it returns."""
    workload, ends = net(), []
    for step in (None, lambda model, inputs, target: workload.loss(model(inputs), target)):
        torch.manual_seed(1)
        ends.append(state(train(make_replica(small_job(), replace(workload, model=small.net().model, step=step)), 3)))
    assert same(*ends)
    mean = replace(workload, model=small.net().model, step=lambda model, inputs, target: model(inputs).mean())
    with pytest.raises(WorkloadError, match="step: returned one number for the whole shard"):
        train(make_replica(small_job(), mean), 1)


def test_the_stop_flag_rides_on_the_sum(small_job: Any, make_replica: Any) -> None:
    replica = make_replica(small_job(), net())
    step = first_step(replica)
    quiet, asking = replica.partials(step, (0, step.shards)), replica.partials(step, (0, step.shards), stop=True)
    assert torch.equal(quiet[0].row[:-1], asking[0].row[:-1])
    assert not replica.commit(step, quiet[0].row).stop
    replica = make_replica(small_job(), net())
    assert replica.commit(step, asking[0].row).stop


def test_a_snapshot_put_into_another_replica_goes_on_with_the_same_bits(small_job: Any, make_replica: Any) -> None:
    first, second = train(make_replica(small_job(), net()), 14), make_replica(small_job(), small.net())
    second.restore(first.snapshot())
    assert same(state(train(first, 5)), state(train(second, 5)))


def test_a_snapshot_is_a_copy(small_job: Any, make_replica: Any) -> None:
    replica = make_replica(small_job(), net())
    snapshot = replica.snapshot()
    kept = {name: tensor.clone() for name, tensor in snapshot.tensors.items()}
    train(replica, 1)
    assert same(kept, dict(snapshot.tensors))


@pytest.mark.fault("C06")
@pytest.mark.parametrize("batch", [4, 16, 90])
def test_the_model_sees_no_more_than_a_shard_however_large_the_batch(
    small_job: Any, make_replica: Any, batch: int
) -> None:
    """So a device whose memory holds one shard holds every batch that growth leads to."""
    workload, seen = small.plain(), list[int]()
    workload.model.register_forward_hook(lambda _model, inputs, _output: seen.append(len(inputs[0])))
    train(make_replica(small_job(BATCH.format(batch, 4)), workload), 1)

    assert (4, batch) == (max(seen), sum(seen))


@pytest.mark.fault("C06")
def test_rows_are_used_again_and_memory_does_not_grow(small_job: Any, make_replica: Any) -> None:
    replica = make_replica(small_job(BATCH.format(16, 4)), net())
    seen = set()
    for _ in range(5):
        step = first_step(replica)
        partials = replica.partials(step, (0, step.shards))
        seen.add(partials[0].row.data_ptr())
        replica.commit(step, partials[0].row)
        replica.rows.release(partials)
    assert replica.rows.free <= 3
    assert len(seen) <= 3
