"""Evaluation: eval mode, fixed chunks, no effect on training."""

import math
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import small
import torch
from batchgrowth.errors import WorkloadError
from batchgrowth.shards import lay_out
from batchgrowth_trainer.drivers.single_process import only_one
from batchgrowth_trainer.exchange.all_reduce import add_up
from batchgrowth_trainer.replica import evaluation
from batchgrowth_trainer.replica.evaluation import computed, evaluate, gathered_row, node_sums, try_evaluation
from batchgrowth_trainer.replica.replica import Replica
from batchgrowth_trainer.workload import Workload, correct
from torch import Tensor, nn
from torch.utils.data import TensorDataset

CHUNKS = 2  # of the 300 test examples


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
    test = replica.workload.test
    assert test is not None

    def reduce(rows: Sequence[Tensor], parts: int, like: Tensor) -> Tensor:
        layout = lay_out(parts, members)
        others: list[Tensor] = []
        for rank in range(1, members):
            chunks = computed(replica, "", lay_out(CHUNKS, members).runs[rank])
            if len(like) == 1 + len(replica.workload.metrics):
                others += node_sums(chunks, layout, rank)
            else:
                others.append(gathered_row(chunks, computed(replica, "", (0, 1))[0], len(test)))
        return add_up([*rows, *others], layout)

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
    assert evaluate(replica, 0, 1, only_one) == pytest.approx(expected, rel=1e-6)
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


@pytest.mark.parametrize("whole", [False, True])
def test_a_member_without_the_first_chunk_evaluates_too(small_job: Any, make_replica: Any, *, whole: bool) -> None:
    torch.manual_seed(1)
    workload = with_auc(nn.Linear(6, 3)) if whole else small.of(nn.Linear(6, 3))
    replica, lengths = make_replica(small_job(), workload), []

    def reduce(rows: Sequence[Tensor], _: int, like: Tensor) -> Tensor:
        lengths.extend(len(row) for row in rows)
        return like

    assert evaluate(replica, 1, 2, reduce)["loss"] == 0.0
    assert ([2, 300 * 4] if whole else [2]) == lengths


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
    assert evaluate(make_replica(small_job(), bare), 0, 1, only_one) == {}


def test_a_metric_that_is_wrong_is_named(small_job: Any, make_replica: Any) -> None:
    workload = net()
    wrong = Workload(
        model=workload.model, loss=workload.loss, train=workload.train, test=workload.test,
        metrics={"share": lambda output, target: 0.5},
    )  # fmt: skip
    with pytest.raises(WorkloadError, match=r"metrics\.share: returned a float"):
        evaluate(make_replica(small_job(), wrong), 0, 1, only_one)


def pairwise_auc(output: Tensor, target: Tensor) -> Tensor:
    """The share of pairs of an example of class 0 and another that the score of class 0 puts in order."""
    score, is_first = output[:, 0], target == 0
    return (score[is_first].unsqueeze(1) > score[~is_first]).double().mean()


def with_auc(model: nn.Module, **more: Any) -> Workload:
    workload = small.of(model)
    return Workload(
        model=model, loss=workload.loss, train=workload.train, test=workload.test, metrics=workload.metrics,
        whole_set_metrics={"auc": pairwise_auc, **more},
    )  # fmt: skip


@pytest.mark.parametrize("members", [1, 2, 3, 5])
def test_a_metric_of_the_whole_set(small_job: Any, make_replica: Any, members: int) -> None:
    """It sees the outputs of all chunks in the order of the test set; 300 examples are two chunks."""
    torch.manual_seed(1)
    replica = make_replica(small_job(), with_auc(nn.Linear(6, 3)))
    train(replica)
    inputs, target = replica.workload.test.tensors
    with torch.no_grad():
        expected = pairwise_auc(replica.model(inputs), target).item()
    values = values_of(replica, members)
    assert pytest.approx(values["auc"], rel=1e-6) == expected
    assert values == values_of(replica, 1)
    assert list(values) == ["loss", "accuracy", "auc"]


def test_it_gets_what_the_model_and_the_data_set_gave(small_job: Any, make_replica: Any) -> None:
    seen: list[tuple[Tensor, Tensor]] = []
    model = nn.Linear(6, 3)
    replica = make_replica(small_job("precision=BFloat16"), with_auc(model, kept=lambda *both: seen.append(both) or 1))
    evaluate(replica, 0, 1, only_one)
    [(output, target)] = seen
    assert (output.dtype, tuple(output.shape)) == (torch.bfloat16, (300, 3))
    assert torch.equal(replica.workload.test.tensors[1], target)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (torch.zeros(2), r"whole_set_metrics\.wrong: returned tensor\(\[0\., 0\.\]\); return one number"),
        ("high", "returned 'high'; return one number"),
    ],
)
def test_a_whole_set_metric_that_is_no_number_is_named(
    small_job: Any, make_replica: Any, value: Any, said: str
) -> None:
    replica = make_replica(small_job(), with_auc(nn.Linear(6, 3), wrong=lambda *_: value))
    with pytest.raises(WorkloadError, match=said):
        evaluate(replica, 0, 1, only_one)


def test_a_whole_set_metric_that_raises_is_named(small_job: Any, make_replica: Any) -> None:
    replica = make_replica(small_job(), with_auc(nn.Linear(6, 3), wrong=lambda output, _: output["scores"]))
    with pytest.raises(WorkloadError, match=r"whole_set_metrics\.wrong raised IndexError: .*test_evaluation\.py:"):
        evaluate(replica, 0, 1, only_one)


def test_outputs_that_cannot_be_gathered_are_named(
    small_job: Any, make_replica: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Twice(nn.Linear):
        def forward(self, inputs: Tensor) -> Any:
            both = super().forward(inputs)
            return both if self.training else (both, both)

    workload = with_auc(Twice(6, 3))

    def loss(output: Any, target: Tensor) -> Tensor:
        return workload.loss(output[0] if isinstance(output, tuple) else output, target)

    odd = Workload(
        model=workload.model, loss=loss, train=workload.train, test=workload.test,
        whole_set_metrics=workload.whole_set_metrics,
    )  # fmt: skip
    with pytest.raises(WorkloadError, match="whole_set_metrics: the output for 256 examples is a tuple"):
        evaluate(make_replica(small_job(), odd), 0, 1, only_one)
    monkeypatch.setattr(evaluation, "MOST_NUMBERS", 899)
    with pytest.raises(WorkloadError, match="the output has 3 numbers for each of 300 examples; at most 899"):
        evaluate(make_replica(small_job(), with_auc(nn.Linear(6, 3))), 0, 1, only_one)


@pytest.mark.parametrize(("first", "refused"), [(2**52, False), (2**60 + 1, True)])
def test_targets_that_would_be_rounded_are_refused(
    small_job: Any, make_replica: Any, first: int, refused: bool
) -> None:
    """Such as hashes of groups, of which two may become one."""
    workload = with_auc(nn.Linear(6, 3), groups=lambda _, target: float(len(target.unique())))
    inputs, target = workload.test.tensors
    ids = replace(
        workload, loss=lambda output, _: output.sum(dim=1), metrics={}, test=TensorDataset(inputs, target + first)
    )
    replica = make_replica(small_job(), ids)
    if refused:
        with pytest.raises(WorkloadError, match="the targets from test example 0 on have whole numbers beyond 2"):
            evaluate(replica, 0, 1, only_one)
    else:
        assert evaluate(replica, 0, 1, only_one)["groups"] == len(target.unique())


def test_a_metric_that_is_not_defined_is_recorded_as_others_are(small_job: Any, make_replica: Any) -> None:
    """A correlation of constant predictions does not end a job."""
    replica = make_replica(small_job(), with_auc(nn.Linear(6, 3), odd=lambda *_: float("nan")))
    assert math.isnan(evaluate(replica, 0, 1, only_one)["odd"])


@pytest.mark.parametrize("members", [1, 2])
def test_outputs_of_several_shapes_are_refused(small_job: Any, make_replica: Any, members: int) -> None:
    """Members whose rows had different lengths would take each other's bytes for something else."""

    class Growing(nn.Linear):
        def forward(self, inputs: Tensor) -> Tensor:
            output = super().forward(inputs)
            return output if self.training or len(inputs) == 256 else torch.cat([output, output], dim=1)

    replica = make_replica(small_job(), with_auc(Growing(6, 3)))
    said = r"the output of an example is float32 of shape \(6,\) from test example 256 on, and float32 of shape \(3,\)"
    with pytest.raises(WorkloadError, match=said):
        values_of(replica, members)


def test_what_others_and_metrics_take_is_not_watched(small_job: Any, make_replica: Any) -> None:
    watched = [False]

    @contextmanager
    def watch() -> Iterator[None]:
        watched[0] = True
        yield
        watched[0] = False

    def unwatched(*_: Tensor) -> int:
        assert not watched[0]
        return 1

    def reduce(rows: Sequence[Tensor], parts: int, like: Tensor) -> Tensor:
        unwatched()
        return only_one(rows, parts, like)

    replica = make_replica(small_job(), with_auc(nn.Linear(6, 3), seen=unwatched))
    assert evaluate(replica, 0, 1, reduce, watch())["seen"] == 1


def test_several_test_sets(small_job: Any, make_replica: Any) -> None:
    """The names of the first set's values are plain; each set has the values that it has alone."""
    workload, few = net(), small.data(40)

    def values(test: Any) -> dict[str, float]:
        torch.manual_seed(1)
        return evaluate(
            make_replica(small_job(), replace(workload, model=small.net().model, test=test)), 0, 1, only_one
        )

    first, other = values(workload.test), values(few)
    assert first | {f"few.{name}": value for name, value in other.items()} == values({"all": workload.test, "few": few})


class Running:
    """Returns its running mean, as a metric does that is made for a loop."""

    def __init__(self) -> None:
        self.total = 0.0
        self.count = 0

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        self.total += float(output[:, 0].sum())
        self.count += len(target)
        return torch.full((len(target),), self.total / self.count)


class Scaled:
    """Divides by the largest value that it was first called with."""

    largest: Tensor | None = None

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        if self.largest is None:
            self.largest = output.abs().max()
        return output[:, 0] / self.largest


class Recording:
    """Keeps what it has seen, and does not use it."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        self.seen.append(len(target))
        return correct(output, target)


def by_chance(_output: Tensor, _target: Tensor) -> float:
    return random.SystemRandom().random()


@pytest.mark.fault("T01")
@pytest.mark.parametrize(
    ("metrics", "named"),
    [
        ({"metrics": {"one": Running()}}, r"metrics\.one: .*others were evaluated.*metrics\.one\.total.*in __call__"),
        ({"metrics": {"one": Scaled()}}, r"metrics\.one: .*metrics\.one\.largest changes with each.*in __call__"),
        (
            {"whole_set_metrics": {"two": by_chance}},
            r"whole_set_metrics\.two: the same examples and weights give .*in by_chance",
        ),
    ],
)
def test_a_metric_that_depends_on_what_it_was_called_with_before_is_refused(
    small_job: Any, make_replica: Any, metrics: dict[str, Any], named: str
) -> None:
    with pytest.raises(WorkloadError, match=named):
        try_evaluation(make_replica(small_job(), replace(small.plain(), **metrics)))


def test_what_a_metric_records_is_left_alone_and_put_back(small_job: Any, make_replica: Any) -> None:
    metric = Recording()
    try_evaluation(make_replica(small_job(), replace(small.plain(), metrics={"one": metric})))
    assert metric.seen == []
