"""Finding the function that a manifest names, calling it, and checking the `Workload` that it returns."""

from batchgrowth_trainer.loading.entrypoints import find_function, find_modules_in
from batchgrowth_trainer.loading.workloads import load_workload

__all__ = ["find_function", "find_modules_in", "load_workload"]
