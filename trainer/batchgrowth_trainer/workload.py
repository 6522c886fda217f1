"""The interface for users' code: a function that returns a `Workload`.

`loading` calls that function and checks its result; this module holds the interface and the calls that the
training loop makes on it for every shard.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch
from batchgrowth.errors import DataError, WorkloadError
from torch import Tensor, nn
from torch.utils.data import TensorDataset
from torch.utils.data._utils.collate import collate, default_collate_fn_map

from batchgrowth_trainer.blame import (
    ReadFault,
    advice_for,
    is_of_the_device,
    may_pass,
    reason,
    reported_as_workload_error,
    seen_at,
)

PerExample = Callable[[Any, Any], Tensor]
Attempt = Callable[[Callable[[], Any]], Any]
"""Calls a function that reads examples, perhaps more than once, and returns its result."""
TrainingStep = Callable[[nn.Module, Any, Any], Tensor]
Collate = Callable[[list[Any]], Any]
"""The examples of a shard -> their batch: (inputs, target), or a dictionary with one of TARGET_KEYS."""
TARGET_KEYS = ("labels", "label", "target")
"""Where the target is in a dictionary, the first of them that is there; the other values are the inputs."""


@runtime_checkable
class Dataset(Protocol):
    """A map-style data set: `len(dataset)` examples, `dataset[i]` an (input, target) pair or a dictionary of both."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A model, its data, its loss and its metrics.

    `test` is one test set or several by name; the loss and the metrics of the first have their plain names, those of
    another are reported as NAME.loss, NAME.METRIC.
    `loss` and each of `metrics` take (output, target) and return one value per example, shape (N,); the trainer
    sums over examples, so that a batch can be cut into shards of any size.
    `collate` makes one batch of a shard's examples, for instance by padding them to the longest; by default torch's
    own does, which stacks them.
    `whole_set_metrics` take the outputs and targets of the whole test set, on the CPU and in its order, and return a
    number: for what is not a mean over examples, such as the area under a ROC curve.
    `augment` takes and returns the inputs of one training shard; it draws from torch's global generator, which the
    trainer seeds with (seed, update, shard).
    `step` takes (model, inputs, target) and returns one loss per example of a training shard, in the place of
    `loss` of the model's output: for losses that need more than one call of the model, or more than its output.
    """

    model: nn.Module
    loss: PerExample
    train: Dataset
    test: Dataset | Mapping[str, Dataset] | None = None
    metrics: Mapping[str, PerExample] = field(default_factory=dict)
    whole_set_metrics: Mapping[str, Callable[[Tensor, Tensor], Any]] = field(default_factory=dict)
    augment: Callable[[Any], Any] | None = None
    collate: Collate | None = None
    step: TrainingStep | None = None

    @property
    def test_sets(self) -> Mapping[str, Dataset]:
        """The test sets by name; a single one has the name ""."""
        if self.test is None:
            return {}
        return self.test if isinstance(self.test, Mapping) else {"": self.test}

    def augmented(self, inputs: Any) -> Any:
        """Return what `augment` makes of a training shard's inputs; the inputs themselves without `augment`."""
        if self.augment is None:
            return inputs
        inputs = self.augment(inputs)
        if inputs is None:
            raise WorkloadError(f"augment: returned a NoneType; return the inputs{seen_at(self.augment)}")
        return inputs

    def values(self, model: nn.Module, inputs: Any, target: Any) -> Any:
        """Return what `step`, or `loss` without a step, returns for a training shard."""
        return self.loss(predict(model, inputs), target) if self.step is None else self.step(model, inputs, target)

    def checked(self, values: Any, target: Any, examples: int) -> Tensor:
        """Return `values`, one loss per example. Raises WorkloadError if they are something else."""
        name, function = ("loss", self.loss) if self.step is None else ("step", self.step)
        if self.collate is not None and isinstance(target, Tensor) and isinstance(values, Tensor):
            _check_none_dropped(self.collate, target, values, examples)
        losses = checked(values, examples, name, function)
        if not losses.requires_grad:
            raise WorkloadError(
                f"{name}: its result does not depend on the model's parameters; leave out detach(), .data, .numpy() "
                f"and no_grad() on the way to it{seen_at(function)}"
            )
        return losses


def at_once(read: Callable[[], Any]) -> Any:
    """Read once: the default Attempt."""
    return read()


def fetch(
    dataset: Dataset, indices: Tensor, attempt: Attempt = at_once, collate: Collate | None = None
) -> tuple[Any, Any]:
    """Return the inputs and targets at `indices` (int64, shape (N,)), collated along a first axis of N.

    A `TensorDataset` is indexed once per tensor, another data set by `__getitems__` if it has it, else item by item.
    If an example has more than two parts, the last is the target and the others are the inputs, as a tuple. If it is a
    dictionary, the target is under one of TARGET_KEYS, and the inputs are the rest.
    Raises DataError if an item cannot be read, a ReadFault if that may pass, and WorkloadError if it has no target.
    """
    if type(dataset) is TensorDataset and collate is None:
        return _pair([tensor[indices] for tensor in dataset.tensors])
    items = _items(dataset, indices.tolist(), attempt)
    source = collate or getattr(dataset, "__getitem__", None)
    return _pair(_collated(items, collate, source), source)


def _pair(columns: Any, source: Any = None) -> tuple[Any, Any]:
    """Split a batch that the function `source` made into its inputs and its target."""
    if isinstance(columns, (list, tuple)) and len(columns) == 2:
        return columns[0], columns[1]
    if isinstance(columns, Mapping):
        return _split(columns, source)
    if not isinstance(columns, (list, tuple)):
        raise WorkloadError(
            f"a batch is a {type(columns).__name__}; let collate return (inputs, target){seen_at(source)}"
        )
    if len(columns) < 2:
        raise WorkloadError(
            f"workload.train: an example has {len(columns)} part; an (input, target) pair is needed "
            f"(without a target, give None){seen_at(source)}"
        )
    return tuple(columns[:-1]), columns[-1]


def _split(columns: Mapping[str, Any], source: Any) -> tuple[dict[str, Any], Any]:
    at = next((key for key in TARGET_KEYS if key in columns), None)
    if at is None:
        raise WorkloadError(
            f"an example is a dictionary of {', '.join(map(str, columns))}; add its target under one of "
            f"{', '.join(TARGET_KEYS)}, or return an (input, target) pair{seen_at(source)}"
        )
    return {key: value for key, value in columns.items() if key != at}, columns[at]


def _items(dataset: Dataset, indices: list[int], attempt: Attempt) -> list[Any]:
    many = getattr(dataset, "__getitems__", None)
    if many is not None:
        return list(attempt(lambda: _read(many, indices, dataset, indices)))
    if attempt is at_once:  # spares a call for each example
        return [_read(dataset.__getitem__, index, dataset, (index,)) for index in indices]
    return [attempt(partial(_read, dataset.__getitem__, index, dataset, (index,))) for index in indices]


def _read(get: Callable[[Any], Any], key: Any, dataset: Dataset, indices: Sequence[int]) -> Any:
    try:
        return get(key)
    except Exception as error:
        which = f"example{'s' if len(indices) > 1 else ''} {_few(indices)} of {type(dataset).__name__}"
        remedy = advice_for(error) or f"read it alone in Python to see the whole traceback: train[{indices[0]}]"
        text = f"{which}: {reason(error)}; {remedy}"
        passing = may_pass(error) or is_of_the_device(error)
        raise (ReadFault(text, which) if passing else DataError(text)) from error


def _collated(items: list[Any], own: Collate | None, source: Any) -> Any:
    if own is not None:
        with reported_as_workload_error(
            "collate", "call it with a list of examples in Python to see the whole traceback"
        ):
            return own(items)
    try:
        columns = collate(items, collate_fn_map=_COLLATED)
    except (TypeError, RuntimeError, KeyError, ValueError) as error:
        raise WorkloadError(
            f"examples cannot be put into one batch: {type(error).__name__}: {error}; return tensors, numbers or "
            f"arrays of one shape, or give the workload a collate function{seen_at(source)}"
        ) from error
    if not isinstance(columns, (list, tuple, Mapping)):
        raise WorkloadError(
            f"an example is a {type(items[0]).__name__}; return an (input, target) pair{seen_at(source)}"
        )
    return columns


def _collated_none(items: list[Any], **_: Any) -> None:
    if any(item is not None for item in items):
        raise TypeError("None is mixed with values")


_COLLATED = {**default_collate_fn_map, type(None): _collated_none}


def predict(model: nn.Module, inputs: Any) -> Any:
    """Call `model(*inputs)` for a tuple or list, `model(**inputs)` for a dictionary, otherwise `model(inputs)`."""
    if isinstance(inputs, dict):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, (tuple, list)) else model(inputs)


def checked(values: Tensor, examples: int, name: str = "loss", function: Any = None) -> Tensor:
    """Return `values` if they hold one float per example, shape (examples,).

    Raises WorkloadError naming the function that returned it (`loss`, `metrics.accuracy`) and its line otherwise.
    Called once per shard, so the check is cheap.
    """
    if isinstance(values, Tensor) and values.shape == (examples,) and values.is_floating_point():
        return values
    raise WorkloadError(f"{name}: {_fault(values, examples)}{seen_at(function)}")


def _fault(values: object, examples: int) -> str:
    wanted = f"return one float per example, shape ({examples},)"
    if not isinstance(values, Tensor):
        return f"returned a {type(values).__name__}; {wanted}"
    if values.ndim == 0:
        return f"returned one number for the whole shard; {wanted}, as torch's losses do with reduction='none'"
    if tuple(values.shape) != (examples,):
        return f"returned shape {tuple(values.shape)} for {examples} examples; {wanted}"
    return f"returned {values.dtype}; {wanted}, for instance by .float()"


def _check_none_dropped(collate: Collate, target: Tensor, values: Tensor, examples: int) -> None:
    """Raise WorkloadError if losses and targets are equally many, but fewer or more than the examples."""
    if values.ndim == 1 and target.ndim > 0 and len(values) == len(target) != examples:
        raise WorkloadError(
            f"collate: returned {len(target)} targets for {examples} examples; keep every example{seen_at(collate)}"
        )


def correct(output: Tensor, target: Tensor) -> Tensor:
    """Return the accuracy metric: 1.0 if the largest class score of (N, C) is the target's, (N,), otherwise 0.0."""
    return (output.argmax(dim=1) == target).to(torch.float32)


def _few(indices: Sequence[int]) -> str:
    return ", ".join(map(str, indices[:4])) + (" …" if len(indices) > 4 else "")
