"""Locks between the processes of one user."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager

from cluster.folders import cache


@contextmanager
def alone(what: str) -> Iterator[None]:
    """Holds a named file lock; the kernel releases it when the process ends."""
    path = cache() / f"{what}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
