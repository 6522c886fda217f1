"""Tensors of every dtype as bytes: numpy has no bfloat16, and Dask sends numpy arrays without copying them."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Packed:
    """The bytes of a tensor, uint8, shape (bytes,), with its own dtype, such as "bfloat16", and shape."""

    data: np.ndarray
    dtype: str
    shape: tuple[int, ...]


def pack(tensor: Tensor) -> Packed:
    """The tensor packed; shares its memory if it is contiguous and on the CPU."""
    own = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return Packed(_bytes_of(own), str(own.dtype).removeprefix("torch."), tuple(own.shape))


def unpack(packed: Packed) -> Tensor:
    """The tensor that was packed, on the CPU; a copy, since the bytes that Dask received may be read-only."""
    tensor = torch.empty(packed.shape, dtype=getattr(torch, packed.dtype))
    _bytes_of(tensor)[:] = packed.data
    return tensor


def _bytes_of(tensor: Tensor) -> np.ndarray:
    """The bytes of a contiguous tensor, uint8, shape (bytes,); shares its memory."""
    return tensor.view(-1).view(torch.uint8).numpy()


def pack_all(tensors: Mapping[str, Tensor]) -> dict[str, Packed]:
    """Every tensor packed, by name."""
    return {name: pack(tensor) for name, tensor in tensors.items()}


def unpack_all(packed: Mapping[str, Packed]) -> dict[str, Tensor]:
    """Every tensor that was packed, by name."""
    return {name: unpack(one) for name, one in packed.items()}
