"""Errors of a run's storage, which of them may pass with a retry, and files that are written completely or not at all.

A checkpoint is a folder of such files, which `CheckpointStore.save` in checkpoint.py publishes by one rename. Imports
no torch, so that commands that only read a run start quickly.
"""

import errno
import io
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from batchgrowth.errors import CheckpointError, StorageError
from batchgrowth.manifest.files import NOT_REGULAR
from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_before_delay, wait_exponential

_LASTING_KINDS = (
    FileExistsError, FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError, io.UnsupportedOperation,
)  # fmt: skip
_LASTING = {errno.EINVAL, errno.ELOOP, errno.ENAMETOOLONG, errno.EROFS}


def may_pass(error: BaseException | None) -> bool:
    """Return whether a retry may succeed: after an OSError not about a path, a permission or a read-only disk."""
    if not isinstance(error, OSError) or isinstance(error, _LASTING_KINDS):
        return False
    return error.errno not in _LASTING


# A StorageError may pass and is retried for a while: no space is left, a disk or its server fails, another run still
# holds the lock. A CheckpointError would recur: a permission is missing, a path is no folder, a name is too long.

CHECKPOINTS = "checkpoints"
"""The folder of a run's checkpoints, in its output folder."""
READ_SECONDS = 20.0
"""Time for which reading one file is retried; a job that waits for its store says so within half a minute."""
LAST_SECONDS = 60.0
"""Time for which writing results is retried when a run ends or stops; half of a pod's grace period."""
_FIRST_WAIT_SECONDS = 0.2
_LONGEST_WAIT_SECONDS = 10.0

APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT
"""The flags for `open_own` of a file, perhaps a new one, that is written at its end."""

_T = TypeVar("_T")


def passes(error: OSError) -> bool:
    """Return whether `may_pass`, or the file system is read-only, as a failed one is until a new pod mounts it."""
    return may_pass(error) or error.errno == errno.EROFS


def storage_error(text: str, error: OSError) -> CheckpointError:
    """Return a StorageError with this text if the OSError may pass, otherwise a CheckpointError."""
    if passes(error):
        return StorageError(text)
    return CheckpointError(text)


def not_written(error: OSError) -> CheckpointError:
    """Return the error for a file of the run that could not be written."""
    return storage_error(
        f"{error.filename} could not be written ({error.strerror}); make room, or give another --output-dir. "
        "The checkpoints are intact, and --resume continues from the newest.",
        error,
    )


@contextmanager
def reported_as_checkpoint_error() -> Iterator[None]:
    """Turn an OSError that the block raises for a file of the run into a CheckpointError."""
    try:
        yield
    except OSError as error:
        raise not_written(error) from error


def retried(act: Callable[[], _T], seconds: float, note: Callable[[str], None] = lambda _: None) -> _T:
    """Return the result of `act`; for `seconds`, retry while it raises StorageError, and pass each error to `note`."""

    def report(state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        note(f"{str(error).rstrip('.')}; trying again, for up to {seconds:.0f} s")

    return Retrying(
        retry=retry_if_exception_type(StorageError),
        stop=stop_before_delay(seconds),
        wait=wait_exponential(_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS),
        before_sleep=report,
        reraise=True,
    )(act)


def read_patiently(name: str, read: Callable[[], _T]) -> _T:
    """Call `read` and return its result; retry for READ_SECONDS.

    Turn an OSError into a StorageError or a CheckpointError, except FileNotFoundError, which is raised unchanged.
    """

    def attempt() -> _T:
        try:
            return read()
        except FileNotFoundError:
            raise
        except OSError as error:
            raise storage_error(f"{name} cannot be read ({error.strerror})", error) from error

    return retried(attempt, READ_SECONDS)


# --- Files that are whole or absent: a crash at any byte leaves the old file or the new one, never half of either ---


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Add the file's name to an OSError that the block raises, because operations on an open file omit the name."""
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def replace_file(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Replace the file by `data`, flushed to the disk unless `durable` is False. Raises OSError."""
    unfinished = path.with_name(f".unfinished-{path.name}")
    unfinished.unlink(missing_ok=True)  # of a run that was killed
    try:
        write_file(unfinished, data, durable=durable)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    if durable:
        flush_folder(path.parent)


def write_file(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Write `data` to a new file, and flush it to the disk if `durable`. Raises OSError, also if it exists."""
    with named(path), os.fdopen(open_own(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
        file.write(data)
        file.flush()
        if durable:
            os.fsync(file.fileno())


def open_own(path: Path, flags: int, mode: int = 0o666) -> int:
    """Open a file of the run for writing, with the flags of `os.open`, and return its descriptor.

    A new file has this mode, less the umask.

    Raises OSError if it is a symbolic link or no regular file: somebody may have put it there, so that the run writes
    elsewhere.
    """
    # A named pipe that lies there must not block this, nor a terminal become the one of this process.
    try:
        opened = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY, mode)
    except OSError as error:
        if path.is_symlink():
            raise OSError(error.errno, f"{path.name} is a symbolic link; remove it", str(path)) from error
        raise
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise OSError(errno.EINVAL, f"{path.name} is {NOT_REGULAR}; remove it", str(path))
    return opened


def flush_folder(folder: Path) -> None:
    """Flush the folder's entries, such as a rename, to the disk, if its file system can. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # from a file system that flushes only files
            raise
    finally:
        os.close(descriptor)
