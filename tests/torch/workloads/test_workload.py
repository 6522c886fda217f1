"""The calls that the training loop makes on a workload: fetch, predict, checked."""

from typing import Any

import pytest
import torch
from batchgrowth.errors import DataError, WorkloadError
from batchgrowth_trainer.replica.data import fetch
from batchgrowth_trainer.workload import TARGET_KEYS, checked, correct, predict
from torch import Tensor, nn
from torch.utils.data import Subset, TensorDataset

TENSORS = (torch.arange(12.0).view(6, 2), torch.arange(6))


class Batched:
    """A data set that reads many examples at once, and counts its calls."""

    def __init__(self) -> None:
        self.asked = 0

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        raise AssertionError("asked for one example although many can be read at once")

    def __getitems__(self, indices: list[int]) -> list[tuple[Tensor, Tensor]]:
        self.asked += 1
        return [(TENSORS[0][index], TENSORS[1][index]) for index in indices]


PLAIN = [(TENSORS[0][k], k) for k in range(6)]
DATASETS = [TensorDataset(*TENSORS), Subset(TensorDataset(*TENSORS), range(6)), Batched(), PLAIN]


@pytest.mark.parametrize("dataset", DATASETS, ids=lambda dataset: type(dataset).__name__)
def test_every_kind_of_data_set_gives_the_same_batch(dataset: Any) -> None:
    inputs, target = fetch(dataset, torch.tensor([4, 0, 5]))
    assert torch.equal(torch.tensor([[8.0, 9.0], [0.0, 1.0], [10.0, 11.0]]), inputs)
    assert torch.equal(torch.tensor([4, 0, 5]), target)


LAYOUTS = {
    "contiguous": torch.arange(96.0).view(4, 3, 2, 4),
    "channels last": torch.arange(96.0).view(4, 3, 2, 4).to(memory_format=torch.channels_last),
    "permuted": torch.arange(96.0).view(2, 4, 3, 4).permute(3, 1, 0, 2),
    "gray, channels last": torch.arange(64.0).as_strided((4, 1, 4, 4), (16, 1, 4, 1)),
    "of 1 x 1, channels last": torch.arange(12.0).as_strided((4, 3, 1, 1), (3, 1, 3, 3)),
    "expanded": torch.arange(4.0)[:, None].expand(4, 3),
    "every second": torch.arange(8.0)[::2],
    "complex": torch.arange(4.0).to(torch.complex64),
    "empty": torch.zeros(4, 0, 2),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_tensor_is_read_as_indexing_reads_it(layout: str) -> None:
    tensor = LAYOUTS[layout]
    indices = torch.tensor([2, 0, 3])

    inputs, target = fetch(TensorDataset(tensor, tensor), indices)

    for read in (inputs, target):
        assert torch.equal(read, tensor[indices])
        assert read.stride() == tensor[indices].stride()  # a convolution's bits may depend on it


def test_many_examples_are_read_at_once_where_the_data_set_can() -> None:
    dataset = Batched()
    fetch(dataset, torch.arange(6))
    assert dataset.asked == 1


def test_of_three_tensors_the_last_is_the_target() -> None:
    (first, second), target = fetch(TensorDataset(torch.zeros(4), torch.ones(4), torch.arange(4)), torch.tensor([1, 3]))
    assert (first.sum().item(), second.sum().item()) == (0.0, 2.0)
    assert target.tolist() == [1, 3]


def test_inputs_may_be_a_dictionary() -> None:
    inputs, target = fetch([({"a": 1.0}, 0), ({"a": 2.0}, 1)], torch.tensor([1, 0]))
    assert inputs["a"].tolist() == [2.0, 1.0]
    assert target.tolist() == [1, 0]


def test_there_need_not_be_a_target() -> None:
    inputs, target = fetch([(1.0, None), (2.0, None)], torch.tensor([1, 0]))
    assert inputs.tolist() == [2.0, 1.0]
    assert target is None


@pytest.mark.parametrize("key", TARGET_KEYS)
def test_an_example_may_be_one_dictionary(key: str) -> None:
    """As of Hugging Face's data sets."""
    items = [{"a": torch.zeros(2), key: 5, "b": 1.0}, {"a": torch.ones(2), key: 6, "b": 2.0}]
    inputs, target = fetch(items, torch.tensor([1, 0]))
    assert inputs.keys() == {"a", "b"}
    assert inputs["b"].tolist() == [2.0, 1.0]
    assert target.tolist() == [6, 5]


def test_a_collate_function_of_ones_own() -> None:
    def padded(items: list[tuple[list[int], int]]) -> tuple[Tensor, Tensor]:
        rows = [torch.tensor(tokens) for tokens, _ in items]
        return nn.utils.rnn.pad_sequence(rows, batch_first=True), torch.tensor([label for _, label in items])

    inputs, target = fetch([([1, 2, 3], 0), ([4], 1)], torch.tensor([1, 0]), collate=padded)
    assert inputs.tolist() == [[4, 0, 0], [1, 2, 3]]
    assert target.tolist() == [1, 0]


def test_a_collate_function_gets_the_examples_of_a_tensor_data_set() -> None:
    inputs, target = fetch(TensorDataset(*TENSORS), torch.tensor([5]), collate=lambda items: (len(items), items[0][1]))
    assert (inputs, target) == (1, 5)


def _raises(items: list[Any]) -> Any:
    raise KeyError("tokens")


@pytest.mark.parametrize(
    ("collate", "said"),
    [
        (len, "a batch is a int; let collate return"),
        (_raises, r"collate raised KeyError: 'tokens' .*test_workload\.py:"),
    ],
)
def test_a_collate_function_that_does_not_fit(collate: Any, said: str) -> None:
    with pytest.raises(WorkloadError, match=said):
        fetch([(1.0, 0)], torch.tensor([0]), collate=collate)


class Broken(Batched):
    """A data set whose fourth example cannot be read."""

    __getitems__ = None  # type: ignore[assignment]

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if index == 3:
            raise OSError("image_3.png is truncated")
        return TENSORS[0][index], TENSORS[1][index]


@pytest.mark.fault("A20", "D03")
def test_an_example_that_cannot_be_read_is_named() -> None:
    with pytest.raises(DataError, match=r"example 3 of Broken: OSError: image_3\.png is truncated"):
        fetch(Broken(), torch.tensor([1, 3]))


class BrokenBatch(Batched):
    def __getitems__(self, indices: list[int]) -> list[tuple[Tensor, Tensor]]:
        raise KeyError("shard-7")


@pytest.mark.fault("D03")
def test_examples_that_cannot_be_read_together_are_named() -> None:
    with pytest.raises(DataError, match=r"examples 0, 1, 2, 3 … of BrokenBatch: KeyError: 'shard-7'"):
        fetch(BrokenBatch(), torch.arange(6))


class Collated(Batched):
    def __getitems__(self, indices: list[int]) -> Any:
        return TENSORS[0][indices], TENSORS[1][indices]


def test_examples_that_are_a_batch_already_are_a_workload_error() -> None:
    said = r"workload\.train: __getitems__ returned a tuple of 2 for 4 indices; return a list.*in __getitems__"
    with pytest.raises(WorkloadError, match=said):
        fetch(Collated(), torch.arange(4))


@pytest.mark.parametrize(
    ("items", "said"),
    [
        ([torch.zeros(2), torch.zeros(2)], "return an .input, target. pair"),
        ([(torch.zeros(2), 0), (torch.zeros(3), 1)], "return tensors, numbers or arrays of one shape"),
        ([(object(), 0), (object(), 1)], "return tensors, numbers or arrays of one shape"),
        ([(None, 0), (1.0, 0)], "None is mixed with values.*or give the workload a collate function"),
        ([{"a": 1.0}, {"a": 2.0}], "a dictionary of a; add its target under one of labels, label, target"),
        ([(1.0,), (2.0,)], "an example has 1 part; an .input, target. pair is needed"),
    ],
)
def test_examples_of_the_wrong_kind_are_a_workload_error(items: list[Any], said: str) -> None:
    with pytest.raises(WorkloadError, match=said):
        fetch(items, torch.tensor([0, 1]))


def test_a_data_set_of_one_tensor_has_no_target() -> None:
    with pytest.raises(WorkloadError, match="pair is needed"):
        fetch(TensorDataset(torch.zeros(4)), torch.tensor([0]))


class Sum(nn.Module):
    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return left + right


def test_inputs_become_arguments() -> None:
    two = torch.full((3,), 2.0)
    assert predict(Sum(), (two, two)).tolist() == [4.0] * 3
    assert predict(Sum(), [two, two]).tolist() == [4.0] * 3
    assert predict(Sum(), {"left": two, "right": two}).tolist() == [4.0] * 3
    assert predict(nn.Identity(), two).tolist() == [2.0] * 3


def test_one_loss_per_example_is_passed_through() -> None:
    losses = torch.rand(5, requires_grad=True)
    assert losses is checked(losses, 5)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (torch.tensor(1.0), r"loss: returned one number for the whole shard; .*shape \(5,\).*reduction='none'"),
        (torch.zeros(5, 1), r"loss: returned shape \(5, 1\) for 5 examples"),
        (torch.zeros(4), r"loss: returned shape \(4,\) for 5 examples"),
        (torch.zeros(5, dtype=torch.int64), r"loss: returned torch\.int64; .*\.float\(\)"),
        (1.5, "loss: returned a float"),
        (None, "loss: returned a NoneType"),
    ],
)
def test_anything_else_is_a_workload_error(values: Any, said: str) -> None:
    with pytest.raises(WorkloadError, match=said):
        checked(values, 5)


def test_a_metric_is_named() -> None:
    with pytest.raises(WorkloadError, match=r"metrics\.top5: returned shape"):
        checked(torch.zeros(2), 5, "metrics.top5")


def test_accuracy_counts_what_is_right() -> None:
    scores = torch.tensor([[0.1, 0.9], [0.8, 0.2], [0.4, 0.6]])
    assert correct(scores, torch.tensor([1, 1, 1])).tolist() == [1.0, 0.0, 1.0]
