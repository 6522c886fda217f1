"""A Dask cluster on this machine: processes on the loopback interface, begun from a process that has torch loaded."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import dask
from batchgrowth.spec import JobSpec
from distributed import LocalCluster
from distributed.utils import get_mp_context

_PRELOADED = ("torch", "torch._dynamo", "torch.distributed", "sklearn.datasets", "batchgrowth_trainer.service")
LOOPBACK = "127.0.0.1"


@contextmanager
def local_cluster(spec: JobSpec, count: int) -> Iterator[LocalCluster]:
    """A cluster of `count` workers that can `scale`; its processes and files are gone at the end."""
    environment = {f"distributed.nanny.pre-spawn-environ.{key}": value for key, value in _environment(spec).items()}
    settings = {
        "distributed.worker.multiprocessing-method": "forkserver",
        "distributed.worker.memory.terminate": False,
        "distributed.admin.log-length": 100,
        **environment,
    }
    with tempfile.TemporaryDirectory(prefix="batchgrowth-") as scratch, dask.config.set(settings):
        get_mp_context().set_forkserver_preload(list(_PRELOADED))
        cluster = LocalCluster(
            n_workers=count,
            threads_per_worker=1,
            processes=True,
            host=LOOPBACK,
            dashboard_address=f"{LOOPBACK}:0",  # any free port: two runs must not meet, and Dask knows no "none"
            worker_dashboard_address=None,
            scheduler_kwargs={"dashboard": False},
            memory_limit=0,
            local_directory=scratch,
            silence_logs=logging.CRITICAL,
        )
        try:
            yield cluster
        finally:
            cluster.close(timeout=20)


def _environment(spec: JobSpec) -> dict[str, str]:
    threads = str(spec.workers.threads)
    return {
        "MALLOC_TRIM_THRESHOLD_": "1073741824",
        "MALLOC_MMAP_THRESHOLD_": "33554432",
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": threads,
    }
