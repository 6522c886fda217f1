"""Python's garbage collector, and what it need not look through.

A full collection looks at every object, of which a process with torch and Dask has half a million, for up to .2 s.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_OF_PYTHON = 1_000  # objects that Python itself may have frozen: version 3.12 starts with some 400


@contextmanager
def existing_left_alone() -> Iterator[None]:
    """Collections in the block, or in the function that this decorates, leave alone what exists at its beginning.

    What is garbage then is freed after the block. Does nothing if the caller has frozen objects, which stay frozen.
    """
    if gc.get_freeze_count() > _OF_PYTHON:
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
