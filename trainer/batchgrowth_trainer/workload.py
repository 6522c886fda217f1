"""What a user of the trainer writes: one function that returns a `Workload`.

`loading.py` calls that function and checks what it returns; this module holds the protocol
and the few calls that the training loop makes on it for every shard.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from batchgrowth.errors import DataError, WorkloadError
from torch import Tensor, nn
from torch.utils.data import TensorDataset, default_collate

PerExample = Callable[[Any, Any], Tensor]


@runtime_checkable
class Dataset(Protocol):
    """A map-style data set: `len(dataset)` examples, `dataset[i]` an (input, target) pair."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is trained, on what, and how it is measured.

    `loss` and each of `metrics` take (output, target) and return one value per example, shape (N,):
    the trainer sums over examples itself, so that a batch may be cut into shards of any size.
    `augment` takes the inputs of one training shard and returns inputs; it draws from torch's global
    generator, which the trainer seeds by (seed, update, shard).
    """

    model: nn.Module
    loss: PerExample
    train: Dataset
    test: Dataset | None = None
    metrics: Mapping[str, PerExample] = field(default_factory=dict)
    augment: Callable[[Any], Any] | None = None


def fetch(dataset: Dataset, indices: Tensor) -> tuple[Any, Any]:
    """Inputs and targets of the examples at `indices` (int64, shape (N,)), each collated along a first axis of N.

    A `TensorDataset` is indexed once per tensor, others by `__getitems__` where they have it, else item by item.
    With more than two tensors the last is the target and the others are the inputs, as a tuple.
    Raises DataError where an item cannot be read, and WorkloadError where what comes back is no (input, target) pair.
    """
    if type(dataset) is TensorDataset:
        return _pair([tensor[indices] for tensor in dataset.tensors])
    return _pair(_collated(_items(dataset, indices.tolist())))


def _pair(columns: Sequence[Any]) -> tuple[Any, Any]:
    if len(columns) < 2:
        raise WorkloadError(
            f"workload.train: an example has {len(columns)} part; an (input, target) pair is needed "
            "(without a target, give the input twice or a zero)"
        )
    return (columns[0] if len(columns) == 2 else tuple(columns[:-1])), columns[-1]


def _items(dataset: Dataset, indices: list[int]) -> list[Any]:
    many = getattr(dataset, "__getitems__", None)
    if many is None:
        return [_item(dataset, index) for index in indices]
    try:
        return list(many(indices))
    except Exception as error:
        raise DataError(f"examples {_few(indices)} of {type(dataset).__name__}: {_said(error)}") from error


def _item(dataset: Dataset, index: int) -> Any:
    try:
        return dataset[index]
    except Exception as error:
        raise DataError(f"example {index} of {type(dataset).__name__}: {_said(error)}") from error


def _collated(items: list[Any]) -> Sequence[Any]:
    try:
        columns = default_collate(items)
    except (TypeError, RuntimeError, KeyError, ValueError) as error:
        raise WorkloadError(
            f"examples cannot be put into one batch: {_said(error)}; return tensors, numbers or arrays of one shape"
        ) from error
    if not isinstance(columns, (list, tuple)):
        raise WorkloadError(f"an example is a {type(items[0]).__name__}; return an (input, target) pair")
    return columns


def predict(model: nn.Module, inputs: Any) -> Any:
    """The model's output: `model(*inputs)` for a tuple or list of inputs, else `model(inputs)`."""
    return model(*inputs) if isinstance(inputs, (tuple, list)) else model(inputs)


def checked(values: Tensor, examples: int, name: str = "loss") -> Tensor:
    """`values` itself, known to hold one floating number per example, shape (examples,).

    Raises WorkloadError naming the function (`loss`, `metrics.accuracy`) otherwise.
    Costs two comparisons where all is well: it runs once per shard.
    """
    if isinstance(values, Tensor) and values.ndim == 1 and len(values) == examples and values.is_floating_point():
        return values
    raise WorkloadError(f"{name}: {_fault(values, examples)}")


def _fault(values: object, examples: int) -> str:
    wanted = f"return one float per example, shape ({examples},)"
    if not isinstance(values, Tensor):
        return f"returned a {type(values).__name__}; {wanted}"
    if values.ndim == 0:
        return f"returned one number for the whole shard; {wanted}, as torch's losses do with reduction='none'"
    if tuple(values.shape) != (examples,):
        return f"returned shape {tuple(values.shape)} for {examples} examples; {wanted}"
    return f"returned {values.dtype}; {wanted}, for instance by .float()"


def correct(output: Tensor, target: Tensor) -> Tensor:
    """1. where the largest of the class scores (N, C) is at the target class (N,), else 0.: the accuracy metric."""
    return (output.argmax(dim=1) == target).to(torch.float32)


def _few(indices: list[int]) -> str:
    return ", ".join(map(str, indices[:4])) + (" …" if len(indices) > 4 else "")


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
