"""Opens regular files and the shell's pipes, and refuses other pipes and devices, which could make a reader wait."""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

NOT_REGULAR = "not a regular file"
_OF_THE_SHELL = ("/dev/fd/", "/dev/stdin", "/proc/self/fd/")
"""Names of what the shell has opened for this process, as in `check <(helm template …)`."""


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file, or a link to one, for reading.

    Raises OSError with the file's name, at once, for everything else: a pipe would wait for its writer, and a device
    may never end.
    """
    _check(path, os.stat(path).st_mode)  # before it is opened, because opening a device may do something
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC), "rb")
    # Something else may have taken the name since. A pipe would have been opened at once, because of O_NONBLOCK.
    try:
        _check(path, os.fstat(file.fileno()).st_mode)
    except OSError:
        file.close()
        raise
    return file


def open_given(path: Path) -> BinaryIO:
    """Open what a user named on the command line: a regular file, or a pipe that the shell has opened."""
    if str(path).startswith(_OF_THE_SHELL):
        return path.open("rb")
    return open_regular(path)


def read_regular(path: Path) -> bytes:
    """Return the content of a regular file. Raises OSError as `open_regular` does."""
    with open_regular(path) as file:
        return file.read()


def _check(path: Path, mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, NOT_REGULAR, str(path))
