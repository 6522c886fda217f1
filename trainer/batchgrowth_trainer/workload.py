"""The interface for users' code: a function that returns a `Workload`.

`user_code` calls that function and checks its result; this module holds the interface and the calls that the
training loop makes on it for every shard.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch
from batchgrowth.errors import WorkloadError
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from batchgrowth_trainer.user_errors import (
    seen_at,
)

PerExample = Callable[[Any, Any], Tensor]
TrainingStep = Callable[[nn.Module, Any, Any], Tensor]
Collate = Callable[[list[Any]], Any]
"""The examples of a shard -> their batch: (inputs, target), or a dictionary with one of TARGET_KEYS."""
TARGET_KEYS = ("labels", "label", "target")
"""The keys that the target of a dictionary may have; the first one present counts, other values are the inputs."""


@runtime_checkable
class Dataset(Protocol):
    """A map-style data set: `len(dataset)` examples, `dataset[i]` an (input, target) pair or a dictionary of both."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A model, its data, its loss and its metrics.

    `test` is one test set or several by name; the loss and the metrics of the first have their plain names, those of
    another are reported as NAME.loss, NAME.METRIC. `loss` and each of `metrics` take (output, target) and return one
    value per example, shape (N,); the trainer sums over examples, so that a batch can be cut into shards of any size.
    If `loss` is a module with parameters, or a method of one, they are trained like the model's. `collate` makes one
    batch of a shard's examples, for instance by padding them to the longest; by default torch's own does, which stacks
    them. `whole_set_metrics` take the outputs and targets of the whole test set, on the CPU and in
    its order, and return a number: for what is not a mean over examples, such as the area under a ROC curve. `augment`
    takes and returns the inputs of one training shard; it draws from torch's global generator, which the trainer seeds
    with (seed, update, shard). `step` takes (model, inputs, target) and returns one loss per example of a training
    shard, instead of `loss`: for losses that need more than one call of the model, or more than its output.
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
    def loss_module(self) -> nn.Module | None:
        """Return the module that computes the loss; None if a function does, or a part of the model."""
        module = module_behind(self.loss)
        if any(module is part for part in self.model.modules()):
            return None
        return module

    @property
    def test_sets(self) -> Mapping[str, Dataset]:
        """Return the test sets by name; a single one has the name ""."""
        if self.test is None:
            return {}
        return self.test if isinstance(self.test, Mapping) else {"": self.test}

    def augmented(self, inputs: Any) -> Any:
        """Return the inputs of a training shard, changed by `augment` if there is one."""
        if self.augment is None:
            return inputs
        inputs = self.augment(inputs)
        if inputs is None:
            raise WorkloadError(f"augment: returned a NoneType; return the inputs{seen_at(self.augment)}")
        return inputs

    def values(self, model: nn.Module, inputs: Any, target: Any) -> Any:
        """Return the losses of a training shard: the result of `step`, or of `loss` if there is no `step`."""
        if self.step is not None:
            return self.step(model, inputs, target)
        return self.loss(predict(model, inputs), target)

    def checked(self, values: Any, target: Any, examples: int) -> Tensor:
        """Return `values`, one loss per example. Raises WorkloadError if they are something else."""
        name = "loss"
        function: Callable[..., Any] = self.loss
        if self.step is not None:
            name = "step"
            function = self.step
        if (
            self.collate is not None
            and isinstance(target, Tensor)
            and isinstance(values, Tensor)
            and values.ndim == 1
            and target.ndim > 0
            and len(values) == len(target) != examples  # collate has dropped some examples, or made more
        ):
            raise WorkloadError(
                f"collate: returned {len(target)} targets for {examples} examples; keep every example"
                f"{seen_at(self.collate)}"
            )
        losses = checked(values, examples, name, function)
        if not losses.requires_grad:
            raise WorkloadError(
                f"{name}: its result does not depend on the model's parameters; leave out detach(), .data, .numpy() "
                f"and no_grad() on the way to it{seen_at(function)}"
            )
        return losses


def module_behind(function: Any) -> nn.Module | None:
    """Return the module that a function is, or whose method it is; None for any other function."""
    while isinstance(function, partial):
        function = function.func
    owner = getattr(function, "__self__", function)
    return owner if isinstance(owner, nn.Module) else None


def predict(model: nn.Module, inputs: Any) -> Any:
    """Call `model(*inputs)` for a tuple or list, `model(**inputs)` for a mapping, otherwise `model(inputs)`.

    A PackedSequence, which is a tuple for torch's convenience, is passed as it is.
    """
    if isinstance(inputs, Tensor):
        return model(inputs)
    if isinstance(inputs, Mapping):
        return model(**inputs)
    if isinstance(inputs, (tuple, list)) and not isinstance(inputs, PackedSequence):
        return model(*inputs)
    return model(inputs)


def checked(values: Tensor, examples: int, name: str = "loss", function: Any = None) -> Tensor:
    """Return `values` if they hold one float per example, shape (examples,).

    Otherwise raises WorkloadError with the name (such as `metrics.accuracy`) and line of the function that returned it.
    Called once per shard, so the check is cheap.
    """
    if isinstance(values, Tensor) and values.shape == (examples,) and values.is_floating_point():
        return values
    raise WorkloadError(f"{name}: {_fault(values, examples)}{seen_at(function)}")


def _fault(values: object, examples: int) -> str:
    wanted = f"return one float per example, shape ({examples},)"
    if not isinstance(values, Tensor):
        return f"returned a {type(values).__name__}; {wanted}"
    if values.ndim == 0 and examples == 1:
        return (
            f"returned a number of shape () for one example; {wanted}: squeeze() also removes the axis of the examples"
        )
    if values.ndim == 0:
        return f"returned one number for the whole shard; {wanted}, as torch's losses do with reduction='none'"
    if tuple(values.shape) != (examples,):
        return f"returned shape {tuple(values.shape)} for {examples} examples; {wanted}"
    return f"returned {values.dtype}; {wanted}, for instance by .float()"


def correct(output: Tensor, target: Tensor) -> Tensor:
    """Return each example's accuracy, shape (N,): 1.0 if its largest score of (N, C) is its target's, otherwise 0.0."""
    return (output.argmax(dim=1) == target).to(torch.float32)
