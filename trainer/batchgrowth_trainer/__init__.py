"""The trainer, which does the arithmetic. torch and Dask live here.

From Python: `train` a workload or `load` a run; both return a `Run`. A workload is a function that returns a
`Workload`. `DaskClassifier` and `DaskRegressor` are scikit-learn estimators.
Each name is imported at its first use, since torch and Dask take seconds.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from batchgrowth_trainer.api import Run, load, train
    from batchgrowth_trainer.estimators.estimator import DaskClassifier, DaskRegressor
    from batchgrowth_trainer.workload import Workload, correct
    from batchgrowth_trainer.workloads.dask_arrays import DaskArrays

__all__ = ["DaskArrays", "DaskClassifier", "DaskRegressor", "Run", "Workload", "correct", "load", "train"]

_HOMES = {
    "DaskArrays": "workloads.dask_arrays",
    "DaskClassifier": "estimators.estimator",
    "DaskRegressor": "estimators.estimator",
    "Run": "api",
    "Workload": "workload",
    "correct": "workload",
    "load": "api",
    "train": "api",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
