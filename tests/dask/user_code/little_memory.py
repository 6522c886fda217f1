"""The table of examples/memmap in a process that may take little more memory than it has, and less than the table."""

import re
import resource
from pathlib import Path

import memmap
import numpy as np
from batchgrowth_trainer.workload import Workload

MORE_BYTES = 96 << 20


def workload(table: str, **arguments: str) -> Workload:
    """Raises AssertionError if the process could have read the whole table."""
    taken = re.search(r"VmData:\s*(\d+) kB", Path("/proc/self/status").read_text())
    assert taken
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (int(taken[1]) * 1024 + MORE_BYTES, most))
    assert not fits(table), "the limit is too high for this test"
    return memmap.workload(table, **arguments)


def fits(table: str) -> bool:
    try:
        np.fromfile(table, np.float32)
    except MemoryError:
        return False
    return True
