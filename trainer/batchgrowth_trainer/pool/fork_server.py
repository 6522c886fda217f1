"""The start of the process that forks local workers, with torch loaded; worker/fork_server_preload.py runs in it."""

import multiprocessing
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker, util

from batchgrowth.errors import ClusterError

from batchgrowth_trainer.pool.settings import is_left_out, worker_flags
from batchgrowth_trainer.worker.signals import signals_wait

LONGEST_FOLDER_BYTES = 70
"""The longest path of the folder for temporary files; sockets are two levels below it."""


def start_fork_server(preload: str, environment: Mapping[str, str]) -> None:
    """Start the process that forks workers, with this module loaded, unless this program has started one already.

    `environment` is added to the variables that workers inherit. The module calls `signals.outlive_signals`. Raises
    ClusterError if the process cannot start, or could not talk to those that it forks.
    """
    try:
        multiprocessing.Lock()
    except OSError as error:
        raise ClusterError(
            f"no semaphore can be made, which processes of one run share ({error}); they lie in /dev/shm: let that be "
            "a folder that you can write to, with free space"
        ) from error
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
