"""What Dask's processes must be given before they start, in pods and on this machine."""

TRIM_THRESHOLD_BYTES, ARENAS, MMAPPED_CHUNKS = 1 << 30, 1, 0
"""How much freed memory glibc keeps, in how many arenas, and how many chunks it maps from the system by themselves.

With Dask's own settings, updates on CPUs take up to 1.8 times as long. An arena of a thread that is not the first of
its process gives memory back in pieces of 64 MiB, and a chunk of 32 MiB or more that is mapped by itself is given back
when it is freed; the next update then waits for each page, of VGG-11 for some 30,000.
"""

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
        "MALLOC_ARENA_MAX": str(ARENAS),
        "MALLOC_MMAP_MAX_": str(MMAPPED_CHUNKS),
        **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads)),
    }
