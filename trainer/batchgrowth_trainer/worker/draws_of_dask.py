"""Dask's threads draw from a generator of their own.

A worker's event loop draws from the global generator of `random` while another thread reads examples, for instance to
estimate the size of a message by a sample of it. The trainer has seeded that generator for a shard, and whatever the
examples draw from it must depend on the seed alone.
"""

import random
import sys

_PACKAGES = {"dask", "distributed", "tornado"}


def draw_apart() -> None:
    """Replace the module `random` in each module of Dask and tornado that is loaded and uses it."""
    for name, module in tuple(sys.modules.items()):
        if name.partition(".")[0] in _PACKAGES and getattr(module, "random", None) is random:
            vars(module)["random"] = random.Random()  # noqa: S311  (no secret)
