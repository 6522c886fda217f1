"""Preloaded by Dask in the workers of a local cluster, before they register."""

import faulthandler
import re
from contextlib import suppress
from pathlib import Path

from distributed import Worker

from batchgrowth_trainer.user_errors import is_users
from batchgrowth_trainer.worker.exits import outlive_signals

_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)
"""A frame as faulthandler writes it, the innermost first."""


async def dask_setup(worker: Worker) -> None:
    """Let only the driver act on signals to all processes, and record where a fatal error ends this process."""
    outlive_signals()
    with suppress(OSError):  # a full disk
        path = _last_words(worker._original_local_dir, worker.name)
        faulthandler.enable(path.open("w"), all_threads=False)  # open for as long as the process lives


def place_of_fatal_error(folder: str, name: object) -> str:
    """Return where in users' code a fatal error, such as a segmentation fault, ended that worker; empty if unknown."""
    try:
        text = _last_words(folder, name).read_text(errors="replace")
    except OSError:
        return ""
    found = [(file, line, function) for file, line, function in _FRAME.findall(text) if is_users(file)]
    return f"at {found[0][0]}:{found[0][1]}, in {found[0][2]}" if found else ""


def _last_words(folder: str, name: object) -> Path:
    return Path(folder) / f"last-words-of-{name}"
