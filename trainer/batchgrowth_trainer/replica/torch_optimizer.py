"""Torch: a subclass of torch.optim.Optimizer over the parameters of a model.

Between two steps its state is in flat vectors, so that it can move to another process or into a checkpoint.
"""

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from batchgrowth.choices.optimizers import TorchBlock
from batchgrowth.errors import WorkloadError
from batchgrowth.spec import JobSpec
from torch import Tensor, nn

from batchgrowth_trainer.replica.flat import FlatParameters
from batchgrowth_trainer.replica.seeds import draw_seed, seed_generators
from batchgrowth_trainer.user_code import find_function
from batchgrowth_trainer.user_errors import reported_as_workload_error

FIELD = "optimizer.torch.optimizer"
_REMEDY = (
    "give the arguments that the class takes in optimizer.torch.arguments, and name one whose step() needs no closure"
)
_NUMBERS = "numbers"
_TRIED = 1e-3  # every element of the gradient that is tried, to see what the optimizer keeps
_NOT_KEPT = ("params", "lr")
_CPU = torch.device("cpu")

Made = torch.optim.Optimizer
Make = Callable[[list[nn.Parameter]], Made]
Store = dict[str, Any]


def maker(settings: TorchBlock) -> Callable[[JobSpec, FlatParameters], "TorchOptimizer"]:
    """Return a function that makes the optimizer for the parameters of a model."""

    def made(spec: JobSpec, parameters: FlatParameters) -> TorchOptimizer:
        return TorchOptimizer(settings, spec, parameters)

    return made


@dataclass(frozen=True, slots=True)
class _Kept:
    """A value that the optimizer keeps, for a parameter or in a group, and its place in the vector `name`."""

    owner: int
    key: str
    name: str
    place: slice
    shape: tuple[int, ...]
    device: torch.device
    kind: type


class TorchOptimizer:
    """Wraps an optimizer of a given torch class in the interface of a FlatOptimizer."""

    def __init__(self, settings: TorchBlock, spec: JobSpec, parameters: FlatParameters) -> None:
        """Raise WorkloadError if there is no such optimizer, or its state cannot travel."""
        self._class = find_function(settings.optimizer, FIELD)
        if not (isinstance(self._class, type) and issubclass(self._class, torch.optim.Optimizer)):
            raise WorkloadError(f"{FIELD}: {settings.optimizer} is no subclass of torch.optim.Optimizer; name one")
        self._settings = settings
        self._seed = spec.seed
        self._rate = float(spec.learning_rate.initial)
        self._spans = parameters.spans
        vector = parameters.vector.data
        self._spared = [span.start >= parameters.last_from for span in self._spans]
        self._leaves = [nn.Parameter(span.of(vector)) for span in self._spans]
        self.state: dict[str, Tensor] = {}
        with reported_as_workload_error(f"{FIELD}: {settings.optimizer}", _REMEDY):
            self._all_kept = list(self._tried())
            self._optimizer = self._made(self._leaves)

    def step(self, gradient: Tensor, learning_rate: float, updates_done: int) -> None:
        """Move the parameters by one update; `gradient` is the mean over the batch, shape (length,).

        Raises WorkloadError if the optimizer raises an error, or keeps other values than after its first step.
        """
        # The optimizer may draw random numbers: seeded by the update, every process draws the same.
        seed_generators(draw_seed(self._seed, "optimizer", updates_done))
        for leaf, span in zip(self._leaves, self._spans, strict=True):
            leaf.grad = span.of(gradient)
        with reported_as_workload_error(f"{FIELD}: {self._settings.optimizer} at update {updates_done + 1}", _REMEDY):
            if updates_done == 0:
                self._optimizer = self._made(self._leaves)
            else:
                self._bring_back()
            for group in self._optimizer.param_groups:
                group["lr"] = learning_rate
            self._optimizer.step()
        self._keep()
        for leaf in self._leaves:
            leaf.grad = None

    def _made(self, leaves: list[nn.Parameter]) -> Made:
        """Make the optimizer; parameters that do not decay have a group of their own."""
        plain = [leaf for leaf, spared in zip(leaves, self._spared, strict=True) if not spared]
        others = [leaf for leaf, spared in zip(leaves, self._spared, strict=True) if spared]
        groups: list[Store] = [{"params": plain}] if plain else []
        if others:
            groups.append({"params": others, "weight_decay": 0.0})
        made: Made = self._class(groups, lr=self._rate, **self._settings.values)
        if others and "weight_decay" not in made.defaults:
            raise WorkloadError(
                f"optimizer.withoutDecay: {self._settings.optimizer} has no weight_decay, so leave withoutDecay out"
            )
        return made

    def _tried(self) -> Iterator[_Kept]:
        """Make the optimizer; find the values that it keeps by steps on copies of the parameters, and make vectors for
        them.
        """
        leaves = [nn.Parameter(leaf.detach().clone()) for leaf in self._leaves]
        trial = self._made(leaves)
        before: list[Store] = [{}] * len(leaves) + [deepcopy(_settings_of(group)) for group in trial.param_groups]
        for _ in range(2):
            for leaf in leaves:
                leaf.grad = torch.full_like(leaf, _TRIED)
            trial.step()
        lengths: dict[str, int] = {}
        for owner, store in enumerate(_stores(trial, leaves)):
            for key, value in sorted(_settings_of(store).items()):
                if value is None or (key in before[owner] and _is_same(before[owner][key], value)):
                    continue
                name, count = self._kind_of(key, value)
                start = lengths.get(name, 0)
                lengths[name] = start + count
                shape: tuple[int, ...] = ()
                device = _CPU
                if name != _NUMBERS:
                    shape = tuple(value.shape)
                    device = value.device
                yield _Kept(owner, key, name, slice(start, start + count), shape, device, type(value))
        for name, length in lengths.items():
            dtype = torch.float64 if name == _NUMBERS else getattr(torch, name)
            self.state[name] = torch.zeros(length, dtype=dtype, device=self._leaves[0].device)

    def _kind_of(self, key: str, value: Any) -> tuple[str, int]:
        """Return the name of the vector for a value, and how many of the vector's elements the value takes."""
        if isinstance(value, Tensor):
            return str(value.dtype).removeprefix("torch."), value.numel()
        if isinstance(value, bool | int | float):
            return _NUMBERS, 1
        raise WorkloadError(
            f"{FIELD}: {self._settings.optimizer} keeps a {type(value).__name__} in {key!r}, which cannot move to "
            "another worker; it may keep tensors and numbers"
        )

    def _bring_back(self) -> None:
        stores = _stores(self._optimizer, self._leaves)
        numbers = self.state[_NUMBERS].tolist() if _NUMBERS in self.state else []
        for kept in self._all_kept:
            if kept.name == _NUMBERS:
                stores[kept.owner][kept.key] = kept.kind(numbers[kept.place.start])
            else:
                stores[kept.owner][kept.key] = self.state[kept.name][kept.place].view(kept.shape).to(kept.device)

    def _keep(self) -> None:
        stores = _stores(self._optimizer, self._leaves)
        numbers = []
        for kept in self._all_kept:
            value = stores[kept.owner].get(kept.key)
            if kept.name == _NUMBERS and isinstance(value, bool | int | float):
                numbers.append(float(value))
            elif isinstance(value, Tensor) and tuple(value.shape) == kept.shape:
                self.state[kept.name][kept.place].view(kept.shape).copy_(value)
            else:
                raise WorkloadError(
                    f"{FIELD}: {self._settings.optimizer} keeps something else in {kept.key!r} than at first, which "
                    "cannot move to another worker"
                )
        if numbers:
            self.state[_NUMBERS].copy_(torch.tensor(numbers, dtype=torch.float64))


def _stores(optimizer: Made, leaves: list[nn.Parameter]) -> list[Store]:
    """Return the dictionaries in which an optimizer keeps values: for each parameter, then for each group."""
    return [*(optimizer.state[leaf] for leaf in leaves), *optimizer.param_groups]


def _settings_of(store: Store) -> Store:
    return {key: value for key, value in store.items() if key not in _NOT_KEPT}


def _is_same(before: Any, now: Any) -> bool:
    if isinstance(before, Tensor) and isinstance(now, Tensor):
        return torch.equal(before, now)
    return type(before) is type(now) and bool(before == now)
