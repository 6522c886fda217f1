"""Locks between the processes of one user."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cluster.folders import cache


@contextmanager
def alone(what: str, *, wait: bool = True) -> Iterator[None]:
    """Hold a named lock of this user; the kernel releases it when the process ends.

    Raises BlockingIOError without `wait` if another process holds the lock.
    """
    with locked(_path(what), fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB):
        yield


@contextmanager
def together(what: str) -> Iterator[None]:
    """Hold the same lock beside any number of processes that hold it together, but beside none that holds it alone."""
    with locked(_path(what), fcntl.LOCK_SH):
        yield


@contextmanager
def locked(path: Path, how: int = fcntl.LOCK_EX) -> Iterator[None]:
    """Hold the lock of a file, which is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        fcntl.flock(lock, how)
        yield


def _path(what: str) -> Path:
    return cache() / f"{what}.lock"
