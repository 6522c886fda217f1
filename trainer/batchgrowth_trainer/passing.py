"""Which errors of files may pass with a retry. Without torch: commands that only read a run start quickly."""

import errno
import io

_LASTING_KINDS = (
    FileExistsError, FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError, io.UnsupportedOperation,
)  # fmt: skip
_LASTING = {errno.EINVAL, errno.ELOOP, errno.ENAMETOOLONG, errno.EROFS}


def may_pass(error: BaseException | None) -> bool:
    """Return whether a retry may succeed: for an OSError other than a missing file or permission."""
    if not isinstance(error, OSError) or isinstance(error, _LASTING_KINDS):
        return False
    return error.errno not in _LASTING
