"""Processes that read examples ahead, while this one computes: spec.workers.loaders of them.

The plan knows what is read next: the shards of this member, update after update, and after an evaluation again. What
was read ahead and is not wanted after all, since the number of members or the batch has changed, is dropped. Every
shard is read with its own seed, so the processes change nothing but the time.

They are forked before this process has peers, and release its sockets at once, so that its end is noticed. A data set
that a worker has in memory is not copied.
"""

import logging
import multiprocessing
import os
import shutil
import stat
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from typing import Any

import numpy as np
import torch

from batchgrowth_trainer.blame import ReadFault
from batchgrowth_trainer.replica.reading import Request, is_indexed, read
from batchgrowth_trainer.workload import Workload

Batch = tuple[Any, Any]
Following = Callable[[], Iterator[Request]]
"""The requests that will come, the present one first."""
SHARED_MEMORY = "/dev/shm"  # noqa: S108  (not a temporary file)
LEAST_SHARED_BYTES = 128 << 20
_LOG = logging.getLogger(__name__)
_PARENT_SECONDS = 1.0  # between two looks whether the parent still lives


class Loaders:
    """Reads the examples of a workload, in `processes` other processes; in this one if there are none."""

    def __init__(self, workload: Workload, processes: int, ahead: int) -> None:
        self._workload, self._most = workload, processes * ahead
        self._lanes: defaultdict[str | None, _Lane] = defaultdict(_Lane)
        needed = processes > 0 and not is_indexed(workload, workload.train)
        self._pool = _pool(workload, processes) if needed and _has_room() else None

    def read(self, request: Request, following: Following) -> Batch:
        """The inputs and targets of a request; those of `following` are read ahead.

        Raises DataError, WorkloadError, and a ReadFault if a process that reads has died.
        """
        if self._pool is None:
            return read(self._workload, request)
        lane = self._lanes[request.test]
        if not lane.has(request):
            lane.restart(following())
        try:
            for coming in islice(lane.coming, self._most - len(lane.waiting)):
                future = self._pool.submit(_read, coming.test, coming.indices.numpy(), coming.seed)
                lane.waiting.append((coming, future))
            _, future = lane.waiting.popleft()
            return future.result()
        except BrokenProcessPool as error:
            raise ReadFault(
                "a process that reads examples has died, perhaps because memory ran out; give the workers more of it, "
                "or set fewer workers.loaders",
                "a dead loader",
            ) from error

    def close(self) -> None:
        """End the processes."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


class _Lane:
    """Requests of one data set: those under way, in order, and those that will come."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[Request, Future[Batch]]] = deque()
        self.coming: Iterator[Request] = iter(())

    def has(self, request: Request) -> bool:
        """Whether the request is the next of those under way."""
        return bool(self.waiting) and self.waiting[0][0].seed == request.seed

    def restart(self, coming: Iterator[Request]) -> None:
        """Drop what is under way."""
        for _, future in self.waiting:
            future.cancel()
        self.waiting.clear()
        self.coming = coming


def _has_room() -> bool:
    """Whether shared memory is more than the 64 MiB that containers get, with which loaders would end by SIGBUS."""
    total = shutil.disk_usage(SHARED_MEMORY).total
    if total < LEAST_SHARED_BYTES:
        _LOG.warning(
            "workers.loaders is ignored: %s has %d MiB and loaders need %d; mount an emptyDir of medium Memory there",
            SHARED_MEMORY, total >> 20, LEAST_SHARED_BYTES >> 20,
        )  # fmt: skip
    return total >= LEAST_SHARED_BYTES


def _pool(workload: Workload, processes: int) -> ProcessPoolExecutor:
    context = multiprocessing.get_context("fork")  # a workload need not be picklable
    pool = ProcessPoolExecutor(processes, context, _begin, (workload, os.getpid()))
    for started in [pool.submit(os.getpid) for _ in range(processes)]:
        started.result()
    return pool


_own: list[Workload] = []  # of a process that reads


def _begin(workload: Workload, parent: int) -> None:
    _own[:] = [workload]
    torch.set_num_threads(1)
    _release_sockets()
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _release_sockets() -> None:
    """Put /dev/null in the place of each inherited socket; the number stays taken, so none is closed by mistake."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for name in os.listdir("/proc/self/fd"):
        number = int(name)
        try:
            is_socket = stat.S_ISSOCK(os.fstat(number).st_mode)
        except OSError:
            continue  # that of the listing itself
        if is_socket:
            os.dup2(nothing, number)
    os.close(nothing)


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_PARENT_SECONDS)
    os._exit(1)


def _read(test: str | None, indices: np.ndarray, seed: int) -> Batch:
    return read(_own[0], Request(test, torch.from_numpy(indices), seed))
