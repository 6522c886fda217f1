"""Copies of users' modules."""

from collections.abc import Iterable
from copy import deepcopy
from typing import TypeVar

from torch import Tensor, nn

from batchgrowth_trainer.user_errors import reported_as_workload_error

Parts = TypeVar("Parts")
_REMEDY = "keep out of the model what Python cannot copy, such as a lock, an open file or a connection"


def copied(parts: Parts, modules: Iterable[nn.Module | None]) -> Parts:
    """Return a deep copy of objects that hold these modules. Raises WorkloadError if they cannot be copied.

    Torch copies no tensor that a call has computed, such as the weight of a layer with `weight_norm`, or the last
    output that a model remembers; the copy gets the values alone.
    """
    layers = {layer for module in modules if module is not None for layer in module.modules()}
    held = [value for layer in layers for value in vars(layer).values()]
    computed = [value for value in held if isinstance(value, Tensor) and value.grad_fn is not None]
    with reported_as_workload_error("copying the model", _REMEDY):
        return deepcopy(parts, {id(tensor): tensor.detach().clone() for tensor in computed})
