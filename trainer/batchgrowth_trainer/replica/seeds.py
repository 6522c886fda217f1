"""Seeds: each random number is a pure function of the job's seed and the purpose of the draw.

The number of workers is not an argument, so no draw can depend on it.
"""

import hashlib
import random
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import numpy as np
import torch

from batchgrowth_trainer.replica.reproducible import ALONE

_MASK_31 = (1 << 31) - 1


def draw_seed(seed: int, purpose: str, *parts: int) -> int:
    """Return a 63-bit seed for one purpose; the same on every machine.

    The dropout and the augmentation of a shard draw from ("shard", update, shard).
    """
    key = struct.pack(f"<{len(parts) + 1}q", seed, *parts) + purpose.encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little") >> 1


def seed_generators(value: int) -> None:
    """Seed the global generators of torch, numpy and Python, which users' code draws from."""
    torch.default_generator.manual_seed(value)  # torch.manual_seed records its caller, which takes 60 us
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(value)
    np.random.seed(value & _MASK_31)
    random.seed(value)


def generator_states() -> Callable[[], None]:
    """Return a function that restores the global generators' present states."""
    torch_state = torch.get_rng_state()
    numpy_state = np.random.get_state()
    python_state = random.getstate()
    used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    cuda_states = torch.cuda.get_rng_state_all() if used else []

    def restore() -> None:
        torch.set_rng_state(torch_state)
        with suppress(torch.AcceleratorError):  # of a GPU that has failed, whose own error is on its way
            torch.cuda.set_rng_state_all(cuda_states)
        np.random.set_state(numpy_state)
        random.setstate(python_state)

    return restore


@contextmanager
def untouched_randomness() -> Iterator[None]:
    """Restore the global generators' states after the block."""
    with ALONE:
        restore = generator_states()
    try:
        yield
    finally:
        with ALONE:
            restore()


def reading_seed(seed: int, update: int, shard: int) -> int:
    """Return the seed for reading the examples of one shard; another process may read them."""
    return draw_seed(seed, "reading", update, shard)
