"""A CSV file of numbers, one row per update, that survives crashes: rows are appended, truncation is atomic."""

from collections.abc import Sequence
from io import FileIO
from pathlib import Path

from batchgrowth_trainer.record.files import named, replace_file
from batchgrowth_trainer.record.storage import passes

_BUFFER_BYTES = 1 << 16
_MOST_WAITING_BYTES = 1 << 24
"""The most that waits in memory for a full disk, about 100,000 rows."""


class RowFile:
    """The file; the first column of a row is its update, which grows from row to row."""

    def __init__(self, path: Path) -> None:
        """Reads the last update of an existing file and removes a torn last line. Raises OSError."""
        self._path = path
        self._file: FileIO | None = None
        self._buffer, self._write_at = bytearray(), 0  # the number of bytes in the buffer at which they are written
        self._header: tuple[str, ...] = ()
        self.last = 0
        if path.exists():
            lines = whole_lines(path)
            if "".join(lines).encode() != path.read_bytes():
                replace_file(path, "".join(lines).encode())
            self._resume_after(lines)

    def _resume_after(self, lines: Sequence[str]) -> None:
        self._header = tuple(lines[0].rstrip("\n").split(",")) if lines else ()
        self.last = _update(lines[-1]) if len(lines) > 1 else 0

    def append(self, header: tuple[str, ...], update: int, cells: Sequence[int | float]) -> None:
        """Appends a row to the buffer. Raises ValueError if the file has other columns, and OSError naming the file."""
        if not self._header:
            self._header = header
            self._buffer += f"{','.join(header)}\n".encode()
        if header != self._header:
            raise ValueError(f"{self._path} has columns {','.join(self._header)}, not {','.join(header)}")
        self._buffer += f"{','.join(map(str, cells))}\n".encode()
        self.last = update
        if len(self._buffer) >= self._write_at:
            self._write_if_possible()

    def _write_if_possible(self) -> None:
        """Writes the buffer, or leaves in it what a disk does not take that may have room later."""
        try:
            self.flush()
        except OSError as error:
            if not passes(error) or len(self._buffer) > _MOST_WAITING_BYTES:
                raise
            self._write_at = len(self._buffer) + _BUFFER_BYTES

    def truncate(self, update: int) -> None:
        """Drops the rows after `update` by replacing the file as a whole. Raises OSError."""
        self.close()
        if not self._path.exists():
            return
        header, *rows = whole_lines(self._path) or [""]
        kept = [row for row in rows if _update(row) <= update]
        if len(kept) < len(rows):
            replace_file(self._path, (header + "".join(kept)).encode())
        self._resume_after([header, *kept] if header else [])

    def flush(self) -> None:
        """Writes the buffer; what was not written stays in it. Raises OSError naming the file."""
        with named(self._path):
            while self._buffer:
                self._file = self._file or self._path.open("ab", buffering=0)
                del self._buffer[: self._file.write(self._buffer)]
        self._write_at = _BUFFER_BYTES

    def close(self) -> None:
        """Writes the buffer and closes the file. Raises OSError naming the file."""
        try:
            self.flush()
        finally:
            file, self._file = self._file, None
            self._buffer.clear()
            self._write_at = 0
            if file is not None:
                with named(self._path):
                    file.close()


def whole_lines(path: Path) -> list[str]:
    """The file's lines before the first torn one (no newline, or another number of cells). Raises OSError."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
    cells = lines[0].count(",") if lines else 0
    for number, line in enumerate(lines):
        if not line.endswith("\n") or line.count(",") != cells or (number and not line.partition(",")[0].isdecimal()):
            return lines[:number]
    return lines


def _update(line: str) -> int:
    return int(line.partition(",")[0])
