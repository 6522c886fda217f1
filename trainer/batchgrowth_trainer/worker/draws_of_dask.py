"""Dask's threads draw from a generator of their own.

A worker's event loop draws from the global generator of `random` while another thread reads examples, for instance to
estimate the size of a message by a sample of it. The trainer has seeded that generator for a shard, and whatever the
examples draw from it must depend on the seed alone.
"""

import random

import dask.sizeof
import distributed.comm.core
import distributed.utils_comm

_DRAW = (dask.sizeof, distributed.comm.core, distributed.utils_comm)
"""The modules that draw while a worker trains."""


def draw_apart() -> None:
    """Replace the module `random` in these modules by a generator of their own."""
    for module in _DRAW:
        vars(module)["random"] = random.Random()  # noqa: S311  (no secret)
