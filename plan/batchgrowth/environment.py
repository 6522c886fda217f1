"""What Dask's processes must be given before they start, in pods and on this machine."""

TRIM_THRESHOLD_BYTES, MMAP_THRESHOLD_BYTES = 1 << 30, 32 << 20
"""How much freed memory glibc keeps: with Dask's own settings, updates on CPUs take up to 1.8 times as long."""

DASK: dict[str, bool | str] = {
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "1s",
    "distributed.admin.system-monitor.interval": "5s",
}
"""Settings for scheduler and workers: with Dask's own, a worker that does nothing takes a twentieth of a core to watch
itself, 50 times a second, and samples the stack of the thread that trains twice as often."""


def worker_environment(threads: int) -> dict[str, str]:
    """The variables that fix a worker's allocator and its number of `threads`."""
    return {
        "MALLOC_TRIM_THRESHOLD_": str(TRIM_THRESHOLD_BYTES),
        "MALLOC_MMAP_THRESHOLD_": str(MMAP_THRESHOLD_BYTES),
        **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads)),
    }
