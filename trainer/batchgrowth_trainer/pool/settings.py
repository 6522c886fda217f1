"""What a run's own cluster takes from the user's settings of Dask and Python: next to nothing.

Such a setting would act on runs of one user and not of another. docs/shared-machines.md lists them.
"""

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker, util
from typing import Any

import dask
from batchgrowth.errors import ClusterError

from batchgrowth_trainer.worker.exits import signals_wait

OF_PYTHON = "PYTHON"
OF_DASK = "DASK_"
KEPT = (
    "PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE", "PYTHONNOUSERSITE", "PYTHONPLATLIBDIR", "PYTHONPYCACHEPREFIX",
    "PYTHONDONTWRITEBYTECODE", "PYTHONUTF8", "PYTHONIOENCODING", "PYTHONCOERCECLOCALE", "PYTHONUNBUFFERED",
)  # fmt: skip
"""The variables of Python that workers inherit: where modules are, and how text is encoded."""
LONGEST_FOLDER_BYTES = 70
"""The longest path of the folder for temporary files; sockets are two levels below it."""
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


def start_fork_server(preload: str, environment: Mapping[str, str]) -> None:
    """Start the process that forks workers, with this module loaded, unless this program has started one already.

    `environment` is added to the variables that workers inherit. The module calls `exits.outlive_signals`. Raises
    ClusterError if the process cannot start.
    """
    forkserver.set_forkserver_preload([preload])
    folder = tempfile.gettempdir()
    try:
        with _interpreter(environment):
            with signals_wait():  # the tracker takes SIGINT and SIGTERM by itself, and would end by SIGHUP
                resource_tracker.ensure_running()
            with signals_wait():
                forkserver.ensure_running()
    except OSError as error:  # most of all: the path of a socket may have 108 bytes
        raise ClusterError(
            f"the process that starts workers cannot be started ({error}); it has a socket below {folder}, whose path "
            f"has {len(os.fsencode(folder))} bytes: set TMPDIR to a folder of your own with a path of at most "
            f"{LONGEST_FOLDER_BYTES} bytes and free space"
        ) from error


@contextmanager
def _interpreter(environment: Mapping[str, str]) -> Iterator[None]:
    """Let Python start other processes with the variables and flags of workers; restore this process's at the end."""
    before = dict(os.environ)
    flags_of_this_process = util._args_from_interpreter_flags  # type: ignore[attr-defined]
    try:
        for name in before:
            if is_left_out(name):
                del os.environ[name]
        os.environ.update(environment)
        util._args_from_interpreter_flags = lambda: worker_flags(flags_of_this_process())  # type: ignore[attr-defined]
        yield
    finally:
        util._args_from_interpreter_flags = flags_of_this_process  # type: ignore[attr-defined]
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


def is_left_out(variable: str) -> bool:
    """Return whether workers must not inherit the environment variable of this name."""
    return variable.startswith(OF_DASK) or (variable.startswith(OF_PYTHON) and variable not in KEPT)


def worker_flags(flags: list[str]) -> list[str]:
    """Return the flags with which the interpreter of workers starts, for those of this process."""
    return [flag for flag in flags if flag in _FLAGS] + list(_OWN_FLAGS)
