"""The log of a process that runs Dask; Dask preloads this module in the workers of a local cluster that logs."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

from batchgrowth.contract.logs import DEFAULT_LOGS, Logs, configure_logs
from distributed import Worker

_DASK = {"distributed", "asyncio"}


def set_up_logs(logs: Logs) -> None:
    """Send this process's log and Dask's to stderr; the default settings leave the logs as Python and Dask configure
    them.
    """
    if logs == DEFAULT_LOGS:
        return
    configure_logs(logs.level, logs.format)
    for logger in _dask_loggers():
        logger.handlers.clear()
        logger.propagate = True
        logger.setLevel(logging.NOTSET)
    for name in _DASK:
        logging.getLogger(name).setLevel(logs.dask_level.number)
    logging.getLogger(f"distributed.{__package__}").setLevel(logs.level.number)  # see worker.certificates
    for name in ("matplotlib", "PIL"):  # too chatty at debug
        logging.getLogger(name).setLevel(max(logs.level.number, logging.INFO))


def silence_dask() -> None:
    """Drop all of Dask's messages but critical ones: Dask logs tracebacks about a lost worker, and the run logs one
    line.
    """
    for logger in _dask_loggers():
        logger.setLevel(logging.CRITICAL)


@contextmanager
def quiet_dask() -> Iterator[None]:
    """Drop all of Dask's messages but critical ones inside the block."""
    before = {logger: logger.level for logger in _dask_loggers()}
    silence_dask()
    try:
        yield
    finally:
        for logger, level in before.items():
            logger.setLevel(level)


def _dask_loggers() -> list[logging.Logger]:
    return [logging.getLogger(n) for n in list(logging.root.manager.loggerDict) if n.partition(".")[0] in _DASK]


async def dask_setup(_worker: Worker) -> None:
    """Take the settings from the environment; Dask calls this before the worker registers."""
    set_up_logs(Logs.of(os.environ))
