"""Gradients in fewer bits: every node of the tree is rounded, wherever it is added, to what is sent without loss.

So the total has the same bits for any number of workers, and for one process that sends nothing.
"""

from typing import Protocol

import torch
from batchgrowth.spec import JobSpec
from torch import Tensor

BLOCK = 1024
"""Numbers that share a scale."""
_LARGEST = 127


class Coding(Protocol):
    """`width` is the number of bytes that a number takes, `block` how many numbers are coded together."""

    width: float
    block: int

    def round(self, vector: Tensor) -> None:
        """Replace the numbers, float32 of shape (n,), by the nearest that `pack` keeps."""

    def pack(self, vector: Tensor) -> Tensor:
        """Rounded numbers as bytes, of shape (size(n),)."""

    def unpack(self, packed: Tensor, vector: Tensor) -> None:
        """Write the numbers that were packed."""

    def size(self, length: int) -> int:
        """The bytes of `length` numbers."""


class BFloat16:
    """Numbers of eight significant bits."""

    width = 2.0
    block = 1

    def round(self, vector: Tensor) -> None:
        """See Coding."""
        vector.copy_(vector.bfloat16())

    def pack(self, vector: Tensor) -> Tensor:
        """See Coding."""
        return vector.bfloat16().view(torch.uint8)

    def unpack(self, packed: Tensor, vector: Tensor) -> None:
        """See Coding."""
        vector.copy_(packed.view(torch.bfloat16))

    def size(self, length: int) -> int:
        """See Coding."""
        return 2 * length


class Int8:
    """Whole numbers from -127 to 127, times a power of two for each block of 1,024.

    A power of two, so that a rounded block has the same numbers when it is packed, unpacked and packed again.
    """

    width = 1 + 4 / BLOCK
    block = BLOCK

    def round(self, vector: Tensor) -> None:
        """See Coding."""
        whole, scales = self._coded(vector)
        vector.copy_(_scaled(whole, scales)[: len(vector)])

    def pack(self, vector: Tensor) -> Tensor:
        """See Coding."""
        whole, scales = self._coded(vector)
        return torch.cat((whole.to(torch.int8).view(-1)[: len(vector)].view(torch.uint8), scales.view(torch.uint8)))

    def unpack(self, packed: Tensor, vector: Tensor) -> None:
        """See Coding."""
        scales = packed[len(vector) :].clone().view(torch.float32)
        whole = _in_blocks(packed[: len(vector)].view(torch.int8).float())
        vector.copy_(_scaled(whole, scales)[: len(vector)])

    def size(self, length: int) -> int:
        """See Coding."""
        return length + 4 * -(-length // BLOCK)

    def _coded(self, vector: Tensor) -> tuple[Tensor, Tensor]:
        """The whole numbers, shape (blocks, BLOCK), and the scales, shape (blocks,); infinite ones for such a block."""
        blocks = _in_blocks(vector)
        largest = blocks.abs().amax(dim=1)
        parts, exponents = torch.frexp(largest / _LARGEST)
        scales = torch.ldexp(torch.ones_like(largest), exponents - (parts == 0.5).int())  # the power of two not below
        scales = torch.where(torch.isfinite(largest), scales, largest)
        return (blocks / scales.unsqueeze(1)).round_(), scales


def _in_blocks(vector: Tensor) -> Tensor:
    missing = -len(vector) % BLOCK
    return torch.nn.functional.pad(vector, (0, missing)).view((len(vector) + missing) // BLOCK, BLOCK)


def _scaled(whole: Tensor, scales: Tensor) -> Tensor:
    return (whole * scales.unsqueeze(1)).view(-1)


_CODINGS: dict[str, Coding] = {"BFloat16": BFloat16(), "Int8": Int8()}


def coding_of(spec: JobSpec) -> Coding | None:
    """The coding of exchange.compression."""
    return _CODINGS[spec.exchange.compression] if spec.exchange.compression else None
