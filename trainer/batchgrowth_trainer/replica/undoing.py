"""A replica that goes back to where it was if what moves it fails."""

from collections.abc import Iterator
from contextlib import contextmanager

from batchgrowth_trainer.replica.replica import Replica


@contextmanager
def undone_by_errors(replica: Replica) -> Iterator[None]:
    """Go back to the state before the block if it raises."""
    start, position = {name: vector.clone() for name, vector in replica.tensors().items()}, replica.position
    try:
        yield
    except BaseException:
        replica.is_whole = False  # until all of it is back
        for name, vector in replica.tensors().items():
            vector.copy_(start[name])
        replica.moved_to(position)
        raise
