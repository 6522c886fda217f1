"""Environment and settings of Dask's processes, which must be set before they start, in pods and on this machine."""

TRIM_THRESHOLD_BYTES = 1 << 30
ARENAS = 1
MMAPPED_CHUNKS = 0
"""How much freed memory glibc keeps, in how many arenas, and how many chunks it maps separately.

With Dask's own settings, updates on CPUs take up to 1.8 times as long. An arena of any thread but the first returns
memory to the system in pieces of 64 MiB, and a separately mapped chunk of 32 MiB or more is returned when it is freed.
The next update then waits for each page again: about 30,000 pages for VGG-11.
"""

HASH_SEED = "6640"
"""The seed of Python's hashes in workers, on which the order of a set of texts depends.

Code may number words in that order, and every process must give them the same numbers. Dask sets the same seed.
"""

DASK: dict[str, bool | str] = {
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "1s",
    "distributed.admin.system-monitor.interval": "5s",
}
"""Settings for scheduler and workers.

With Dask's own, an idle worker spends 5 % of a core on watching itself, 50 times a second, and samples the stack of the
training thread 100 times a second.
"""


def worker_environment(threads: int) -> dict[str, str]:
    """Return the variables that fix a worker's allocator and its number of `threads`."""
    return {
        "MALLOC_TRIM_THRESHOLD_": str(TRIM_THRESHOLD_BYTES),
        "MALLOC_ARENA_MAX": str(ARENAS),
        "MALLOC_MMAP_MAX_": str(MMAPPED_CHUNKS),
        **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads)),
    }
