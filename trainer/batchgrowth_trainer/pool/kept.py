"""Local workers that are kept from one run to the next, for a program that makes many short runs."""

import atexit
import os
import threading
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager

from batchgrowth.contract.logs import DEFAULT_LOGS, Logs
from batchgrowth.spec import JobSpec
from distributed.core import Status

from batchgrowth_trainer.pool.local_cluster import LocalScaler, WorkerProcesses, new_cluster, own_settings
from batchgrowth_trainer.pool.scratch import scratch_folder

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
            self._start_timer()

    def close(self) -> None:
        """End the workers; the next run starts new ones."""
        with self._lock:
            self._stop_timer()
            resources = self._resources
            self._resources = ExitStack()
            self._cluster = None
            if self._process == os.getpid():  # a forked process has no right to them
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

    def _start_timer(self) -> None:
        self._timer = threading.Timer(IDLE_SECONDS, self._close_if_idle)
        self._timer.daemon = True
        self._timer.start()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _close_if_idle(self) -> None:
        with self._lock:
            if self._timer is threading.current_thread():
                self.close()


KEPT = KeptWorkers()
"""The kept workers of this process."""
atexit.register(KEPT.close)
