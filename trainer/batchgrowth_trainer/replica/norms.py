"""The norm of a gradient, by parameters: members that have some of them each find the same bits together."""

from collections.abc import Sequence

import torch
from torch import Tensor

SURELY_FINITE = 1e38
"""Below this square of a gradient, all norms are finite: in float32, the largest square is 3.4e38."""


def norms_of(gradient: Tensor, lengths: Sequence[int]) -> Tensor:
    """The Euclidean norms of adjacent parameters' gradients, of these lengths, shape (number of parameters,)."""
    return torch.stack(torch._foreach_norm(gradient.split_with_sizes(list(lengths))))


def norm_of_all(norms: Tensor) -> Tensor:
    """The norm of all of them together, a float64 scalar."""
    norm: Tensor = torch.linalg.vector_norm(norms, dtype=torch.float64)
    return norm
