"""Where every random number of a run comes from: a pure function of the seed and of what is being drawn.

Nothing here knows how many workers there are, so nothing drawn here can depend on it.
"""

from __future__ import annotations

import hashlib
import random
import struct

import numpy as np
import torch
from torch import Tensor

_MASK_31 = (1 << 31) - 1


def draw_seed(seed: int, purpose: str, *parts: int) -> int:
    """A 63-bit seed for one purpose, for example ("shard", update, shard); equal on every machine."""
    key = struct.pack(f"<{len(parts) + 1}q", seed, *parts) + purpose.encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little") >> 1


def seed_generators(value: int) -> None:
    """Set torch's, numpy's and Python's global generators, the ones that users' code draws from."""
    torch.default_generator.manual_seed(value)  # torch.manual_seed would note where it was called from: 60 us a time
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(value)
    np.random.seed(value & _MASK_31)
    random.seed(value)


def seed_shard(seed: int, update: int, shard: int) -> None:
    """Before a shard's data are fetched: dropout and augmentation draw from (seed, update, shard) alone."""
    seed_generators(draw_seed(seed, "shard", update, shard))


def example_order(seed: int, epoch: int, examples: int) -> Tensor:
    """The epoch's permutation of the training examples, shape (examples,), int64."""
    generator = torch.Generator().manual_seed(draw_seed(seed, "order", epoch))
    return torch.randperm(examples, generator=generator)
