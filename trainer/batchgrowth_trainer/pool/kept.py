"""Workers that outlive a run: local ones, for a program that makes many short runs, and the Dask cluster of a user."""

import atexit
import os
import threading
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from batchgrowth.contract.logs import DEFAULT_LOGS, Logs
from batchgrowth.errors import Fault, SpecError
from batchgrowth.spec import JobSpec
from distributed.core import Status

from batchgrowth_trainer.pool.local_cluster import (
    LocalScaler,
    WorkerProcesses,
    new_cluster,
    own_settings,
    scratch_folder,
)

IDLE_SECONDS = 60.0
"""How long workers are kept without a run."""


class _GrowingScaler(LocalScaler):
    """Starts workers that are missing, and keeps those that a run does not need: the next run may."""

    def scale(self, count: int, keep: Collection[str]) -> None:
        """See Scaler."""
        if count >= len(self._cluster.worker_spec):
            super().scale(count, keep)


class KeptWorkers:
    """A cluster of this machine that runs use one after another.

    It is closed when no run has used it for `IDLE_SECONDS`, when a run ends with an error, and with the program.
    """

    def __init__(self) -> None:
        self._resources = ExitStack()
        self._cluster: WorkerProcesses | None = None
        self._threads = 0
        self._process = 0
        self._lock = threading.RLock()
        self._timer: threading.Timer | None = None

    @contextmanager
    def lent(self, spec: JobSpec, logs: Logs = DEFAULT_LOGS) -> Iterator[tuple[WorkerProcesses, LocalScaler]]:
        """Lend the cluster to a run for the block; a training.ClusterOf."""
        with self._lock, own_settings():
            self._stop_timer()
            cluster = self._running(spec.workers.threads, logs)
            try:
                yield cluster, _GrowingScaler(cluster)
            except BaseException:
                self.close()
                raise
            self._timer = threading.Timer(IDLE_SECONDS, self._close_if_idle)
            self._timer.daemon = True
            self._timer.start()

    def close(self) -> None:
        """End the workers; the next run starts new ones."""
        with self._lock:
            self._stop_timer()
            resources = self._resources
            self._resources = ExitStack()
            self._cluster = None
            if self._process == os.getpid():  # a forked process does not own the workers
                resources.close()

    def _running(self, threads: int, logs: Logs) -> WorkerProcesses:
        cluster = self._cluster
        fits = self._threads == threads and self._process == os.getpid()
        if cluster is not None and fits and cluster.status == Status.running:
            return cluster
        self.close()
        self._threads = threads
        self._process = os.getpid()
        scratch = self._resources.enter_context(scratch_folder())
        self._cluster = new_cluster(scratch, threads, logs)
        self._resources.callback(self._cluster.end)
        return self._cluster

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _close_if_idle(self) -> None:
        with self._lock:
            # A timer that waits for the lock cannot be cancelled any more, and the run that held it has another one.
            if self._timer is threading.current_thread():
                self.close()


KEPT = KeptWorkers()
"""The kept workers of this process."""
atexit.register(KEPT.close)


# --- The cluster of a user ---


class BorrowedScaler:
    """Asks the cluster for more workers, and never for fewer: its own choice could close one that trains."""

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster
        self._asked = 0

    def scale(self, count: int, keep: Collection[str]) -> None:  # noqa: ARG002
        """See Scaler."""
        present = len(self._cluster.scheduler_info.get("workers", {}))
        if count > max(self._asked, present):
            self._asked = count
            self._cluster.scale(count)

    def repair(self) -> None:
        """Repeat what was asked for, in case a worker was lost."""
        if self._asked:
            self._cluster.scale(self._asked)

    def check_starts(self, known: Collection[str]) -> None:
        """Do nothing: the cluster starts its workers."""

    def forget_starts(self) -> None:
        """Do nothing: the cluster starts its workers."""

    def worked_at(self) -> float:
        """Return the beginning of time: nothing is known of a worker that does not answer."""
        return 0.0


class Borrowed:
    """Lends a user's cluster to a run; a training.ClusterOf."""

    def __init__(self, cluster: Any) -> None:
        """Raise SpecError for an object that is no cluster whose number of workers can be set."""
        address = getattr(cluster, "scheduler_address", None)
        if not callable(getattr(cluster, "scale", None)) or not isinstance(address, str):
            given = f"a {type(cluster).__name__} was given"
            remedy = "give a Dask cluster such as LocalCluster or KubeCluster, or the address of a scheduler"
            raise SpecError([Fault("cluster", given, remedy)])
        if getattr(cluster, "asynchronous", False):
            raise SpecError([Fault("cluster", "it is asynchronous", "make it with asynchronous=False")])
        if address.startswith("inproc://"):
            given = "its workers are threads of this process"
            raise SpecError([Fault("cluster", given, "make it with processes=True: a worker needs a process")])
        self._cluster = cluster

    @contextmanager
    def lent(self, _spec: JobSpec, _logs: Logs) -> Iterator[tuple[Any, BorrowedScaler]]:
        """Lend the cluster for the block, and leave it as it is then."""
        yield self._cluster, BorrowedScaler(self._cluster)
