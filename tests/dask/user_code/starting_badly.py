"""Workloads that take long to load, or end the process that loads them."""

import ctypes
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from batchgrowth_trainer.workload import Workload
from batchgrowth_trainer.workloads import digits


def in_workers(act: Callable[[], object]) -> Workload:
    """The digits net, after the act; the test's own process does without it."""
    if multiprocessing.parent_process() is not None:
        act()
    return digits.mlp(hidden="8")


def slow(until: str) -> Workload:
    """Loads until there is a file of that name."""

    def load() -> None:
        while not Path(until).exists():
            time.sleep(0.05)

    return in_workers(load)


def exiting() -> Workload:
    return in_workers(lambda: os._exit(3))


def crashing() -> Workload:
    return in_workers(lambda: ctypes.string_at(0))


def killed() -> Workload:
    return in_workers(lambda: os.kill(os.getpid(), signal.SIGKILL))


def unpicklable() -> Workload:
    """Raises an error that cannot be sent."""

    class Odd(BaseException):
        pass

    def act() -> None:
        raise Odd("odd")

    return in_workers(act)
