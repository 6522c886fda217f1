"""Bounds on a gradient, as in torch.nn.utils: Pascanu et al., 2013."""

from batchgrowth.spec import Clipping
from torch import Tensor

_EPSILON = 1e-6  # torch's own


def clip(gradient: Tensor, norm: float, clipping: Clipping | None) -> None:
    """Bound the gradient, shape (length,), in place; `norm` is its Euclidean norm."""
    if clipping is None:
        return
    if clipping.value is not None:
        gradient.clamp_(-float(clipping.value), float(clipping.value))
    if clipping.norm is not None and norm > float(clipping.norm):
        gradient.mul_(float(clipping.norm) / (norm + _EPSILON))
