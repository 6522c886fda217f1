"""How every seed of a run is made, and the seeds of a shard.

Each random number is a pure function of the job's seed and the purpose of the draw. The number of workers is not an
argument, so no draw can depend on it.
"""

import hashlib
import random
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import numpy as np
import torch

_MASK_31 = (1 << 31) - 1
ALONE = threading.RLock()
"""Held by a thread while it uses the modules, threads and generators of the process as a run needs them.

A run that trains in this process holds it until its end, so that another run, or a model that is loaded, waits.
"""


def draw_seed(seed: int, purpose: str, *parts: int) -> int:
    """Return a 63-bit seed for one purpose, such as ("shard", update, shard); the same on every machine."""
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


def shard_seed(seed: int, update: int, shard: int) -> int:
    """Return the seed for one shard: its dropout and augmentation."""
    return draw_seed(seed, "shard", update, shard)


def reading_seed(seed: int, update: int, shard: int) -> int:
    """Return the seed for reading the examples of one shard; another process may read them."""
    return draw_seed(seed, "reading", update, shard)
