"""Every random number of a run, as a pure function of the job's seed and the purpose of the draw.

The number of workers is not an argument, so no draw can depend on it.
"""

import hashlib
import random
import struct

import numpy as np
import torch
from torch import Tensor

_MASK_31 = (1 << 31) - 1


def draw_seed(seed: int, purpose: str, *parts: int) -> int:
    """A 63-bit seed for one purpose, such as ("shard", update, shard); the same on every machine."""
    key = struct.pack(f"<{len(parts) + 1}q", seed, *parts) + purpose.encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little") >> 1


def seed_generators(value: int) -> None:
    """Seed the global generators of torch, numpy and Python, which users' code draws from."""
    torch.default_generator.manual_seed(value)  # torch.manual_seed records its caller, which takes 60 us
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(value)
    np.random.seed(value & _MASK_31)
    random.seed(value)


def seed_shard(seed: int, update: int, shard: int) -> None:
    """Seed the generators for one shard, before its data is fetched, for dropout and augmentation."""
    seed_generators(draw_seed(seed, "shard", update, shard))


def example_order(seed: int, epoch: int, examples: int) -> Tensor:
    """The epoch's permutation of the training examples, shape (examples,), int64."""
    generator = torch.Generator().manual_seed(draw_seed(seed, "order", epoch))
    return torch.randperm(examples, generator=generator)
