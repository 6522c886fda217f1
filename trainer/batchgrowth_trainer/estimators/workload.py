"""The workload of an estimator, built in each process that computes: its module, its loss and its training set."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from batchgrowth.errors import Fault, SpecError
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from batchgrowth_trainer.estimators.examples import TrainingSet, first_inputs
from batchgrowth_trainer.replica.modules import copied
from batchgrowth_trainer.workload import Workload, correct, predict

SIZES = ("n_features_in", "n_outputs")
"""Parameters of a module that the estimator fills in, from the data, if they are not given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What an estimator trains. `module` and `loss` are classes, objects or functions; see the estimators' docstring.

    `sizes` are the numbers of features and outputs that the data have, by the names in SIZES.
    """

    module: Any
    module_settings: Mapping[str, Any]
    loss: Any
    loss_settings: Mapping[str, Any]
    sizes: Mapping[str, int]
    train: TrainingSet
    validation: TrainingSet | None = None
    metrics: Mapping[str, Callable[[Any, Any], Tensor]] = field(default_factory=dict)

    def workload(self) -> Workload:
        """Return the workload; its model draws its weights from torch's global generator."""
        train = self.train.dataset()
        model = made_module(self.module, self.module_settings, self.sizes)
        inputs = first_inputs(train)
        initialize_lazy(model, _parted(inputs)[0] if self.train.is_weighted else inputs)
        loss = per_example(self.loss, self.loss_settings)
        test = None
        if self.validation is not None:
            test = self.validation.dataset()
        step = partial(_weighted, loss) if self.train.is_weighted else None
        return Workload(model=model, loss=loss, train=train, test=test, metrics=self.metrics, step=step)


def _weighted(loss: Callable[[Any, Any], Tensor], model: nn.Module, inputs: Any, weights: Tensor) -> Tensor:
    """Return the losses of a shard whose examples are (inputs, target, weight), each times its weight."""
    own, target = _parted(inputs)
    return loss(predict(model, own), target) * weights


def _parted(inputs: Any) -> tuple[Any, Any]:
    """Return the inputs and the target of examples with weights, for which the trainer takes both as inputs."""
    *parts, target = inputs
    return parts[0] if len(parts) == 1 else tuple(parts), target


# --- The module ---


def check_module(module: Any, settings: Mapping[str, Any]) -> None:
    """Raise SpecError if the parameter `module` cannot make a torch module, or an object was given settings."""
    if module is None or isinstance(module, nn.Module):
        if settings:
            name = next(iter(settings))
            what = "a module that is made already" if module is not None else "no module"
            raise SpecError([Fault(f"module__{name}", f"given with {what}", "give the module's class as module")])
        return
    if isinstance(module, type) and not issubclass(module, nn.Module):
        raise SpecError([_no_module(f"the class {module.__name__}")])
    if not callable(module):
        raise SpecError([_no_module(f"a {type(module).__name__}")])
    _check_arguments("module", module, settings)


def _no_module(given: str) -> Fault:
    return Fault("module", f"{given} was given", "give a class derived from torch.nn.Module, or an object of one")


def made_module(module: Any, settings: Mapping[str, Any], sizes: Mapping[str, int]) -> nn.Module:
    """Return a new module: an object is copied, a class or function is called, None is one linear layer."""
    if module is None:
        if "n_features_in" not in sizes:
            given = "not given, and the inputs of the Dataset are no rows of numbers"
            raise SpecError([Fault("module", given, "give a class derived from torch.nn.Module")])
        return nn.Linear(sizes["n_features_in"], sizes["n_outputs"])
    if isinstance(module, nn.Module):
        # A fit must not train the user's own object: the next fit begins with the same weights.
        return copied(module, [module])
    takes = _parameters_of(module) or ()
    filled = {name: sizes[name] for name in SIZES if name in takes and name in sizes}
    made = module(**{**filled, **settings})
    if not isinstance(made, nn.Module):
        raise SpecError([_no_module(f"{_name_of(module)}, which returns a {type(made).__name__},")])
    return made


def initialize_lazy(model: nn.Module, inputs: Any) -> None:
    """Give layers without sizes, such as LazyLinear, the sizes of these inputs, which are a batch."""
    if not any(is_lazy(tensor) for tensor in (*model.parameters(), *model.buffers())):
        return
    training = model.training
    # In eval mode, so that the call moves no running mean and draws no random number.
    model.eval()
    with torch.no_grad():
        predict(model, inputs)
    model.train(training)


def _check_arguments(parameter: str, function: Any, settings: Mapping[str, Any]) -> None:
    """Raise SpecError if `function`, given as `parameter`, does not take an argument of each name in `settings`."""
    takes = _parameters_of(function)
    for name in settings:
        if takes is not None and name not in takes:
            listed = ", ".join(takes) or "nothing"
            raise SpecError(
                [Fault(f"{parameter}__{name}", f"{_name_of(function)} takes no such argument", f"it takes {listed}")]
            )


def _parameters_of(function: Any) -> tuple[str, ...] | None:
    """Return the names of the arguments that can be given by name; None if any name is taken."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        return None
    if any(one.kind is one.VAR_KEYWORD for one in parameters):
        return None
    return tuple(one.name for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY))


def _name_of(function: Any) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


# --- The loss: torch's losses reduce a batch to one number, and the trainer needs one for each example ---


class _PerExample:
    """Lets a loss module return one loss per example, shape (N,), as a base that comes before the loss's class."""

    def forward(self, output: Any, target: Any) -> Tensor:
        losses: Tensor = super().forward(*aligned(output, target))  # type: ignore[misc]
        return _one_each(losses)


def _one_each(losses: Tensor) -> Tensor:
    if losses.ndim > 1:
        return losses.flatten(1).mean(dim=1)
    return losses


def aligned(output: Any, target: Any) -> tuple[Any, Any]:
    """Return output and target with equal shapes if they differ by an axis of length 1, as (N, 1) and (N,) do.

    Labels of two classes, whole numbers, become floats for an output of one score per example.
    """
    if not isinstance(output, Tensor) or not isinstance(target, Tensor):
        return output, target
    one_score = output.ndim == 1 or output.shape[1:] == (1,)
    if one_score and output.ndim == target.ndim + 1:
        output = output.squeeze(1)
    elif output.ndim + 1 == target.ndim and target.shape[-1] == 1:
        output = output.unsqueeze(1)
    if one_score and not target.is_floating_point():
        target = target.to(output.dtype)
    return output, target


@dataclass(frozen=True, slots=True)
class _LossFunction:
    """A function (output, target) -> loss, with the reduction and the shapes of a loss module."""

    function: Callable[..., Any]
    settings: Mapping[str, Any]

    def __call__(self, output: Any, target: Any) -> Tensor:
        """Return one loss per example, shape (N,)."""
        losses: Tensor = self.function(*aligned(output, target), **self.settings)
        return _one_each(losses)


def check_loss(loss: Any, settings: Mapping[str, Any]) -> None:
    """Raise SpecError if the parameter `loss` is no loss, or takes no such settings."""
    remedy = (
        "give a class such as torch.nn.CrossEntropyLoss, an object of one, or a function (output, target) -> Tensor"
    )
    if isinstance(loss, type) and not issubclass(loss, nn.Module):
        raise SpecError([Fault("loss", f"the class {loss.__name__} was given", remedy)])
    if not callable(loss):
        raise SpecError([Fault("loss", f"a {type(loss).__name__} was given", remedy)])
    if "reduction" in settings:
        reason = "leave it out: losses are summed over examples, so that a batch can be cut into shards of any size"
        raise SpecError([Fault("loss__reduction", f"{settings['reduction']!r} was given", reason)])
    if isinstance(loss, nn.Module) and settings:
        name = next(iter(settings))
        raise SpecError([Fault(f"loss__{name}", "given with a loss that is made already", "give its class as loss")])
    _check_arguments("loss", loss, settings)


def per_example(loss: Any, settings: Mapping[str, Any]) -> Callable[[Any, Any], Tensor]:
    """Return the loss as a function (output, target) -> one value per example; a module if `loss` is or makes one."""
    if isinstance(loss, nn.Module):
        own = copied(loss, [loss])
        if hasattr(own, "reduction"):
            own.reduction = "none"  # type: ignore[assignment]
        # A subclass of its own class, so that the copy keeps its parameters, buffers and attributes.
        own.__class__ = type(type(loss).__name__, (_PerExample, type(loss)), {})
        return own
    arguments = dict(settings)
    if "reduction" in (_parameters_of(loss) or ()):
        arguments["reduction"] = "none"
    if isinstance(loss, type):
        kind = type(loss.__name__, (_PerExample, loss), {})
        made: Callable[[Any, Any], Tensor] = kind(**arguments)
        return made
    return _LossFunction(loss, arguments)


def accuracy(output: Tensor, target: Tensor, threshold: float = 0.0) -> Tensor:
    """Return 1.0 for each example whose class is the target's, else 0.0, from (N, C) scores, (N, 1) or (N,).

    A single score per example means the second class if it is above the threshold.
    """
    if output.ndim == 1 or output.shape[1] == 1:
        return ((output.reshape(-1) > threshold) == target.reshape(-1).bool()).to(torch.float32)
    return correct(output, target)


def accuracy_of_probabilities(output: Tensor, target: Tensor) -> Tensor:
    """Return the accuracy, as `accuracy` does, if outputs are probabilities of the second class."""
    return accuracy(output, target, threshold=0.5)
