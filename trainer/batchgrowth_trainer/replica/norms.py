"""The norm of a gradient, by parameters: members that have some of them each find the same bits together."""

from collections.abc import Sequence

import torch
from torch import Tensor


def norms_of(gradients: Sequence[Tensor]) -> Tensor:
    """The Euclidean norm of each parameter's gradient, shape (number of parameters,)."""
    return torch.stack(torch._foreach_norm(list(gradients)))


def norm_of_all(norms: Tensor) -> Tensor:
    """The norm of all of them together, a float64 scalar."""
    return norms.double().square().sum().sqrt()
