"""A CSV file of numbers, one row per update, that survives crashes: rows are appended, truncation is atomic."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO

from batchgrowth_trainer.record.files import replace_file

_BUFFER_BYTES = 1 << 16


class RowFile:
    """The file; the first column of a row is its update, which grows from row to row."""

    def __init__(self, path: Path) -> None:
        """Reads the last update of an existing file and removes a torn last line. Raises OSError."""
        self._path = path
        self._file: TextIO | None = None
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
        """Appends a row to the buffer. Raises ValueError if the file has other columns."""
        file = self._file or self._open(header)
        if header != self._header:
            raise ValueError(f"{self._path} has columns {','.join(self._header)}, not {','.join(header)}")
        self._named(lambda: file.write(",".join(map(str, cells)) + "\n"))
        self.last = update

    def _open(self, header: tuple[str, ...]) -> TextIO:
        self._file = self._path.open("a", buffering=_BUFFER_BYTES, encoding="utf-8", newline="")
        if not self._header:
            self._file.write(",".join(header) + "\n")
            self._header = header
        return self._file

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
        """Writes the buffer. Raises OSError naming the file."""
        if self._file is not None:
            self._named(self._file.flush)

    def close(self) -> None:
        """Writes the buffer and closes the file. Raises OSError naming the file."""
        if self._file is not None:
            file, self._file = self._file, None
            self._named(file.close)

    def _named(self, act: Callable[[], object]) -> None:
        try:
            act()
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._path)) from error


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
