"""Tells faults that may pass, by themselves or on another worker, from errors that would recur anywhere."""

import errno
import io

from batchgrowth.errors import BatchGrowthError, DataError

_LASTING_KINDS = (
    FileExistsError, FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError, io.UnsupportedOperation,
)  # fmt: skip
_LASTING = {errno.ELOOP, errno.ENAMETOOLONG, errno.EROFS}


class WorkerFault(BatchGrowthError):
    """An error that another worker may not have; its exit code counts once it recurs.

    `what` names the fault: two workers that raise the same at the same update have a common cause.
    """

    def __init__(self, text: str, what: str = "") -> None:
        super().__init__(text)
        self.what = what or text


class ReadFault(WorkerFault, DataError):
    """Data cannot be read at the moment, or on this worker."""


def may_pass(error: BaseException | None) -> bool:
    """Whether this is an OSError that a retry may not meet: not one of a missing file or a missing right."""
    return isinstance(error, OSError) and not isinstance(error, _LASTING_KINDS) and error.errno not in _LASTING
