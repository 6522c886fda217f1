"""What a run's own cluster takes from the user's settings of Dask and Python: next to nothing.

Such a setting would act on runs of one user and not of another. docs/shared-machines.md lists them.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import dask

OF_PYTHON = "PYTHON"
OF_DASK = "DASK_"
KEPT = (
    "PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE", "PYTHONNOUSERSITE", "PYTHONPLATLIBDIR", "PYTHONPYCACHEPREFIX",
    "PYTHONDONTWRITEBYTECODE", "PYTHONUTF8", "PYTHONIOENCODING", "PYTHONCOERCECLOCALE", "PYTHONUNBUFFERED",
)  # fmt: skip
"""The variables of Python that workers inherit: where modules are, and how text is encoded."""
_FLAGS = ("-I", "-E", "-s", "-S", "-B")  # of Python's command line, for the same reasons
_OWN_FLAGS = ("-P",)  # a file in the current folder must not stand in for a module of Python or torch


@contextmanager
def dask_settings(settings: Mapping[str, Any]) -> Iterator[None]:
    """Use Dask's defaults and these settings in the block, without the user's files, variables and `dask.config.set`.

    The settings are those of the whole process.
    """
    before = dict(dask.config.config)
    chosen: dict[str, Any] = {}
    dask.config.refresh(config=chosen, paths=[], env={})
    dask.config.set(settings, config=chosen)
    _replace(dask.config.config, chosen)
    try:
        yield
    finally:
        _replace(dask.config.config, before)


def _replace(config: dict[str, Any], by: Mapping[str, Any]) -> None:
    """Replace the content of `config`; no other thread misses a setting meanwhile."""
    config.update(by)
    for name in config.keys() - by.keys():
        del config[name]


def is_left_out(variable: str) -> bool:
    """Return whether workers must not inherit the environment variable of this name."""
    return variable.startswith(OF_DASK) or (variable.startswith(OF_PYTHON) and variable not in KEPT)


def worker_flags(flags: list[str]) -> list[str]:
    """Return the flags with which the interpreter of workers starts, for those of this process."""
    return [flag for flag in flags if flag in _FLAGS] + list(_OWN_FLAGS)
