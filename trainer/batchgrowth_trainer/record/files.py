"""Files that are whole or absent: a crash at any byte leaves the old file or the new one, never half of either."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Give an OSError raised inside the block the name of the file; one of an open file has none."""
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def replace_file(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Puts `data` in place of the file, flushed to the disk unless `durable` is False. Raises OSError."""
    unfinished = path.with_name(f".unfinished-{path.name}")
    try:
        write_file(unfinished, data, durable=durable)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    if durable:
        flush_folder(path.parent)


def write_file(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Writes `data` to the file, and flushes it to the disk if `durable`. Raises OSError."""
    with named(path), path.open("wb") as file:
        file.write(data)
        file.flush()
        if durable:
            os.fsync(file.fileno())


def flush_folder(folder: Path) -> None:
    """Flushes the folder's entries, such as a rename, to the disk. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
