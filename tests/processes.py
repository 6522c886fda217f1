"""Whether processes have ended that are no children of the test's own."""

from collections.abc import Iterable

import psutil


def still_running(processes: Iterable[psutil.Process], *, seconds: float) -> list[psutil.Process]:
    """Those that have not ended within that time.

    A process has also ended if it is a zombie: its new parent has not asked for its exit code yet.
    """
    _, left = psutil.wait_procs(list(processes), timeout=seconds)
    return [process for process in left if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]
