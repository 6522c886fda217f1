"""A Dask cluster on this machine: processes on the loopback interface, forked from one that has torch loaded."""

import asyncio
import gc
import logging
import sys
import tempfile
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from importlib.machinery import ModuleSpec

import dask
from batchgrowth.contract.environment import DASK, worker_environment
from batchgrowth.contract.logs import DEFAULT_LOGS, Logs
from batchgrowth.spec import JobSpec
from distributed import LocalCluster
from distributed.core import Status
from distributed.utils import get_mp_context

LOOPBACK = "127.0.0.1"
PRELOADED = "batchgrowth_trainer.worker.preloaded"
"""The module that the server that forks workers imports."""
_OF_PYTHON = 1_000  # objects that Python itself may have frozen: version 3.12 starts with some 400
_CLOSE_SECONDS = 5.0
_AT_ONCE = 8  # workers that start together; more would keep the one event loop of them all from its connections
_GROW_SECONDS = 0.1
_IDLE_SECONDS = 2.0  # after which a nanny that has no process is not just restarting it
_IDLE_SECONDS_EACH = 1.0  # for each nanny that has none

log = logging.getLogger(__name__)


@contextmanager
def existing_left_alone() -> Iterator[None]:
    """Let garbage collections in the block, or in the decorated function, ignore the objects that exist at its
    beginning.

    A full collection looks at every object, of which a process with torch and Dask has half a million, for up to 0.2 s.
    Garbage among these objects is freed after the block. Does nothing if the caller has frozen objects, which stay
    frozen.
    """
    if gc.get_freeze_count() > _OF_PYTHON:
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


class LocalScaler:
    """Scales a LocalCluster, and replaces workers that die while they start, which Dask does not."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self._target = 0
        self._grows = False
        self._idle_since: dict[object, float] = {}  # workers without a process

    def scale(self, count: int, keep: Collection[str]) -> None:
        """Request `count` workers, and close spare workers; Dask's own choice could close a worker that trains."""
        names = list(self._cluster.worker_spec)
        spare = [name for name in reversed(names) if str(name) not in keep]
        self._target = count
        if count >= len(names):
            self._cluster.loop.add_callback(self._grow)
        else:
            self._cluster.loop.add_callback(self._cluster.scale_down, spare[: len(names) - count])

    async def _grow(self) -> None:
        """Start workers, a few at a time, until there are as many as requested."""
        if self._grows:
            return
        self._grows = True
        try:
            while self._cluster.status == Status.running and len(self._cluster.worker_spec) < self._target:
                present = len(self._cluster.worker_spec)
                starting = present - len(self._cluster.scheduler.workers)
                more = min(self._target - present, _AT_ONCE - starting)
                if more > 0:
                    self._cluster.scale(present + more)
                await asyncio.sleep(_GROW_SECONDS)
        finally:
            self._grows = False

    def repair(self) -> None:
        """Replace workers that failed to start.

        A nanny does not restart a worker that died before it had registered.
        """
        self._cluster.loop.add_callback(self._repair)

    async def _repair(self) -> None:
        workers = self._cluster.workers
        now = time.monotonic()
        idle = {name for name, nanny in workers.items() if not nanny.is_alive()}
        self._idle_since = {name: self._idle_since.get(name, now) for name in idle}
        # Those that only wait for their turn to start are given time.
        patience = max(_IDLE_SECONDS, _IDLE_SECONDS_EACH * len(idle))
        given_up = [workers.pop(name) for name, since in self._idle_since.items() if now - since > patience]
        if given_up:
            log.info("%d workers did not start and are replaced", len(given_up))
            self._cluster.scale(len(self._cluster.worker_spec))
        for nanny in given_up:
            with suppress(TimeoutError):  # it may wait forever for its worker to start
                await asyncio.wait_for(nanny.close(timeout=2), _CLOSE_SECONDS)


@contextmanager
def _main_left_alone() -> Iterator[None]:
    """Keep workers from importing the program's file, which without a `__main__` guard would train again in each
    worker.

    multiprocessing ignores a main module of this name; workers do not need it, because all that they use is sent to
    them.
    """
    main = sys.modules["__main__"]
    before = main.__spec__
    main.__spec__ = ModuleSpec("__main__", None)
    try:
        yield
    finally:
        main.__spec__ = before


@contextmanager
def local_cluster(spec: JobSpec, logs: Logs = DEFAULT_LOGS) -> Iterator[LocalCluster]:
    """Yield a cluster without workers yet, ready to `scale`; remove its processes and files at the end.

    If `logs` is detailed, every worker process logs too, else it is silent but for critical messages.
    """
    # The pool notes lost peers in a line of its own; torch would print a stack trace.
    environment = {**worker_environment(spec.workers.threads), "TORCH_CPP_LOG_LEVEL": "ERROR"}
    settings = {
        "distributed.worker.multiprocessing-method": "forkserver",
        "distributed.worker.memory.terminate": False,
        "distributed.worker.daemon": False,  # a worker may have loaders; it ends with its nanny all the same
        "distributed.admin.log-length": 100,
        # A process that ends closes its connections at once; one that is silent for long is slow.
        "distributed.comm.timeouts.tcp": "300s",
        "distributed.admin.large-graph-warning-threshold": "1GB",  # a function of a notebook may hold data
        **DASK,
        **{f"distributed.nanny.pre-spawn-environ.{name}": value for name, value in environment.items()},
    }
    with tempfile.TemporaryDirectory(prefix="batchgrowth-") as scratch, dask.config.set(settings), _main_left_alone():
        get_mp_context().set_forkserver_preload([PRELOADED])
        cluster = LocalCluster(
            n_workers=0,
            threads_per_worker=1,
            processes=True,
            host=LOOPBACK,
            dashboard_address=f"{LOOPBACK}:0",  # any free port: two runs must not clash, and Dask cannot be given none
            worker_dashboard_address=None,
            scheduler_kwargs={"dashboard": False},
            memory_limit=0,
            local_directory=scratch,
            silence_logs=logging.CRITICAL,  # until the preloaded module opens the log
            preload=["batchgrowth_trainer.worker.logs"] if logs.detailed else [],
            env=logs.environment,
        )
        try:
            yield cluster
        finally:
            with suppress(TimeoutError):
                cluster.close(timeout=20)
