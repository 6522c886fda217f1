"""Python's garbage collector, and what it need not look through.

A full collection looks at every object, of which a process with torch and Dask has half a million, for up to .2 s.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def existing_left_alone() -> Iterator[None]:
    """Collections in the block, or in the function that this decorates, leave alone what exists at its beginning.

    What is garbage then is freed after the block. Does nothing if objects are frozen already, which stay frozen.
    """
    if gc.get_freeze_count():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
