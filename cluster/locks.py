"""One at a time, among the processes of this user."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager

from cluster.folders import cache


@contextmanager
def alone(what: str) -> Iterator[None]:
    """Waits until no other process does the same; a process that ends in any way lets go."""
    path = cache() / f"{what}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
