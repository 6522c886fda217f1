"""Gradients in fewer bits: exchange.compression rounds the sum at every node of the tree, and the rounded sums are sent
without loss.

So the total has the same bits for any number of workers, and for one process that sends nothing. `Reduction` in
all_reduce.py packs and unpacks what it sends.
"""

import math
import time
from typing import Protocol

import torch
from batchgrowth.spec import JobSpec
from torch import Tensor

from batchgrowth_trainer.replica.flat import Partial
from batchgrowth_trainer.replica.replica import Replica

BLOCK = 1024
"""Number of consecutive elements that share a scale."""
_LARGEST = 127
_MEASURE_SECONDS = 1.0  # between two nodes whose rounding is measured; measuring takes half as long as rounding


class Compression:
    """Rounds the gradient in each node of the tree; the replica calls it as `quantize_node`.

    `error` is the norm of the rounding error at the last measured node, divided by the norm of its gradient; None
    before the first.
    """

    def __init__(self, coding: "Coding") -> None:
        self.coding = coding
        self.error: float | None = None
        self._measured_at = -_MEASURE_SECONDS

    def __call__(self, node: Partial) -> None:
        """Round the gradient of a node to values that can be sent in fewer bits."""
        gradient = node.gradient
        if time.monotonic() - self._measured_at < _MEASURE_SECONDS:
            self.coding.quantize(gradient)
            return
        self._measured_at = time.monotonic()
        before = gradient.clone()
        self.coding.quantize(gradient)
        size = float(before.norm())
        changed = float(before.sub_(gradient).norm())
        if 0 < size < math.inf and math.isfinite(changed):
            self.error = changed / size


def compression_for(spec: JobSpec) -> Compression | None:
    """Return the compression that a job asks for, or None."""
    asked = spec.exchange.compression
    if asked is None:
        return None
    return Compression(CODINGS[asked])


def compression_in(replica: Replica) -> Compression | None:
    """Return the compression that the replica applies to its sums; None if its job compresses nothing."""
    compression = replica.quantize_node
    assert compression is None or isinstance(compression, Compression)
    return compression


class Coding(Protocol):
    """A way to code numbers in fewer bytes: `width` bytes for each, and `block` numbers together."""

    width: float
    block: int

    def quantize(self, vector: Tensor) -> None:
        """Round the numbers, float32 of shape (n,), in place to the nearest numbers that `pack` can represent."""

    def pack(self, vector: Tensor) -> Tensor:
        """Return quantized numbers as bytes, of shape (size(n),)."""

    def unpack(self, packed: Tensor, vector: Tensor) -> None:
        """Unpack the numbers of `packed` into `vector`, float32 of shape (n,)."""

    def size(self, length: int) -> int:
        """Return the bytes of `length` numbers."""


class BFloat16:
    """The coding of numbers in eight significant bits."""

    width = 2.0
    block = 1

    def quantize(self, vector: Tensor) -> None:
        """Round to the nearest bfloat16."""
        vector.copy_(vector.bfloat16())

    def pack(self, vector: Tensor) -> Tensor:
        """Return two bytes a number."""
        return vector.bfloat16().view(torch.uint8)

    def unpack(self, packed: Tensor, vector: Tensor) -> None:
        """Write the numbers of `packed` into `vector`."""
        vector.copy_(packed.view(torch.bfloat16))

    def size(self, length: int) -> int:
        """Return two bytes for each of `length` numbers."""
        return 2 * length


class Int8:
    """The coding of numbers as whole numbers from -127 to 127, times a power of two for each block of 1,024.

    The scale is a power of two so that a quantized block stays the same when it is packed, unpacked and packed again.
    """

    width = 1 + 4 / BLOCK
    block = BLOCK

    def quantize(self, vector: Tensor) -> None:
        """Round to the nearest multiple of the block's scale."""
        whole, scales = self._coded(vector)
        vector.copy_(_scaled(whole, scales)[: len(vector)])

    def pack(self, vector: Tensor) -> Tensor:
        """Return one byte per number, then the scales of the blocks."""
        whole, scales = self._coded(vector)
        return torch.cat((whole.to(torch.int8).view(-1)[: len(vector)].view(torch.uint8), scales.view(torch.uint8)))

    def unpack(self, packed: Tensor, vector: Tensor) -> None:
        """Write the numbers of `packed` into `vector`."""
        # A copy, since a view as float32 has to begin at a multiple of four bytes.
        scales = packed[len(vector) :].clone().view(torch.float32)
        whole = _in_blocks(packed[: len(vector)].view(torch.int8).float())
        vector.copy_(_scaled(whole, scales)[: len(vector)])

    def size(self, length: int) -> int:
        """Return a byte for each number, and four for each block."""
        return length + 4 * -(-length // BLOCK)

    def _coded(self, vector: Tensor) -> tuple[Tensor, Tensor]:
        """Return the whole numbers, shape (blocks, BLOCK), and the scales, shape (blocks,).

        The scale of a block that is not finite is infinite or NaN.
        """
        blocks = _in_blocks(vector)
        largest = blocks.abs().amax(dim=1)
        parts, exponents = torch.frexp(largest / _LARGEST)
        scales = torch.ldexp(torch.ones_like(largest), exponents - (parts == 0.5).int())  # rounded up to a power of two
        # Among the smallest floats the quotient may be rounded down, to a scale with which the largest needs nine bits.
        scales = torch.where(scales * _LARGEST < largest, 2 * scales, scales)
        scales = torch.where(torch.isfinite(largest), scales, largest)
        return (blocks / scales.unsqueeze(1)).round_(), scales


def _in_blocks(vector: Tensor) -> Tensor:
    missing = -len(vector) % BLOCK
    return torch.nn.functional.pad(vector, (0, missing)).view((len(vector) + missing) // BLOCK, BLOCK)


def _scaled(whole: Tensor, scales: Tensor) -> Tensor:
    return (whole * scales.unsqueeze(1)).view(-1)


CODINGS: dict[str, Coding] = {"BFloat16": BFloat16(), "Int8": Int8()}
"""The codings by their names in exchange.compression."""
