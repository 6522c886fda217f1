"""The temporary folder of a run's own cluster, and the removal of those that killed runs have left.

Only its user can open it. The owner locks a file in it, and the kernel releases the lock when the owner is gone,
however it ended.
"""

import fcntl
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "batchgrowth-"
OWNER_FILE = ".owner"

log = logging.getLogger(__name__)


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield a new folder in the system's folder for temporary files, and remove it at the end of the block.

    First removes the folders of this user's dead runs.
    """
    root = Path(tempfile.gettempdir())
    remove_abandoned(root)
    with tempfile.TemporaryDirectory(prefix=PREFIX, dir=root, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        # Locked before it has its name, so that another run never finds it unlocked.
        locked = os.open(folder / f"{OWNER_FILE}-new", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            with suppress(OSError):  # a file server without locks: nobody takes the folder for abandoned
                fcntl.flock(locked, fcntl.LOCK_EX)
                os.rename(folder / f"{OWNER_FILE}-new", folder / OWNER_FILE)
            yield folder
        finally:
            os.close(locked)


def remove_abandoned(root: Path) -> None:
    """Remove the folders below `root` of this user's runs whose owner is gone."""
    for folder in root.glob(f"{PREFIX}*"):
        # What cannot be opened belongs to another user, or is gone meanwhile.
        with suppress(OSError):
            if _is_abandoned(folder):
                log.info("%s is removed: its run is gone", folder)
                shutil.rmtree(folder, ignore_errors=True)


def _is_abandoned(folder: Path) -> bool:
    """Return whether the folder is this user's and its owner is gone. Raises OSError if it is no folder of a run."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(opened).st_uid != os.geteuid():
            return False
        owner = os.open(OWNER_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=opened)
        try:
            fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            os.close(owner)
        return True
    finally:
        os.close(opened)
