"""The files of a run's rows, appended while it trains: `history.csv` and `evaluations.csv`."""

import math
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from io import FileIO
from operator import attrgetter
from pathlib import Path
from typing import Any, Self

from batchgrowth.errors import CheckpointError
from pydantic.alias_generators import to_camel

from batchgrowth_trainer.record.storage import named, passes

# --- A CSV file of numbers, one row per update, that survives crashes: rows are appended, or cut off at the end ---
# A file of ten million updates has more than a gigabyte, so what continues it reads its end alone.

_BUFFER_BYTES = 1 << 16
_BLOCK_BYTES = 1 << 20
"""What is read of a file at once, from its end towards its beginning; longer than any row."""
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
        self._cut()

    def _cut(self, most: float = math.inf) -> None:
        """Cuts off a torn end, and the rows after update `most`. Raises OSError."""
        if not self._path.exists():
            return
        with named(self._path):
            self._header, whole, self.last = _end(self._path, most)
            if whole < self._path.stat().st_size:
                os.truncate(self._path, whole)

    def append(self, header: tuple[str, ...], update: int, cells: Sequence[int | float]) -> None:
        """Appends a row to the buffer.

        Raises CheckpointError if the file has other columns, as one that is continued may, and OSError naming the file.
        """
        if not self._header:
            self._header = header
            self._buffer += f"{','.join(header)}\n".encode()
        if header != self._header:
            raise CheckpointError(
                f"{self._path} has the columns {', '.join(self._header)}, but now they would be {', '.join(header)}; "
                "undo the change, such as one of the workload's metrics, or start over in another --output-dir"
            )
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
        """Drops the rows after `update`, all or none of them. Raises OSError."""
        self.close()
        self._cut(update)

    def flush(self) -> None:
        """Writes the buffer; what was not written stays in it. Raises OSError naming the file."""
        with named(self._path):
            while self._buffer:
                self._file = self._file or self._path.open("ab", buffering=0)
                del self._buffer[: self._file.write(self._buffer)]
        self._write_at = _BUFFER_BYTES

    def discard(self) -> None:
        """Closes the file without what is in the buffer. Raises OSError naming the file."""
        self._buffer.clear()
        self.close()

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
    with path.open("rb") as file:
        header, rows = file.readline(), file.read()
    if not header.endswith(b"\n"):
        return []
    whole, _ = _whole_rows(rows, header.count(b","), math.inf)
    return (header + rows[:whole]).decode(errors="replace").splitlines(keepends=True)


def _end(path: Path, most: float) -> tuple[tuple[str, ...], int, int]:
    """The header, the bytes up to the last whole row of at most update `most`, and the update of that row, or 0."""
    with path.open("rb") as file:
        header = file.readline()
        if not header.endswith(b"\n"):
            return (), 0, 0
        names, end = tuple(header.decode(errors="replace").rstrip("\n").split(",")), file.seek(0, os.SEEK_END)
        while end > len(header):
            begin = max(len(header), end - _BLOCK_BYTES)
            file.seek(begin - 1)  # the byte before may end a row
            rest = file.read(end - begin + 1)
            begins = rest.find(b"\n") + 1
            first = begin - 1 + begins  # where the first row of this block begins
            kept, last = _whole_rows(rest[begins:], len(names) - 1, most) if begins else (0, 0)
            if kept:
                return names, first + kept, last
            end = first if begin < first < end else begin
        return names, len(header), 0


def _whole_rows(block: bytes, commas: int, most: float) -> tuple[int, int]:
    """The bytes of the rows before the first that is torn or after update `most`, and the last of their updates."""
    kept = last = 0
    for row in block.splitlines(keepends=True):
        update = row.partition(b",")[0]
        if not row.endswith(b"\n") or row.count(b",") != commas or not update.isdigit() or int(update) > most:
            break
        kept, last = kept + len(row), int(update)
    return kept, last


# The files of a run's rows, written while it trains: `history.csv` has a row per update, `evaluations.csv` one per.
# evaluation, `growth.csv` one per look at a measured quantity.
# Rows are only appended. Readers drop a last line that a crash tore; a resume truncates the files to its checkpoint;
# an update repeated after a recovery is ignored, since its row is already written.
# An OSError, such as a full disk, is raised to the caller, who decides whether training continues without a history.

HISTORY_FILE = "history.csv"
EVALUATIONS_FILE = "evaluations.csv"
GROWTH_FILE = "growth.csv"
EVALUATION_HEADER = ("update", "epoch", "seconds", "loss")


@dataclass(frozen=True, slots=True)
class HistoryRow:
    """One update: `update` and `epoch` count the updates and, as a fraction, the epochs done including this one.

    `loss` is the mean per example in this update's batch. Times are in seconds; `seconds` is the time since the run
    began, including the time before a resume.
    """

    update: int
    epoch: float
    stage: int
    batch_size: int
    learning_rate: float
    loss: float
    workers: int
    compute_seconds: float
    exchange_seconds: float
    wait_seconds: float
    seconds: float


@dataclass(frozen=True, slots=True)
class EvaluationRow:
    """The mean loss and metrics over the test set, in eval mode, after `update` updates."""

    update: int
    epoch: float
    seconds: float
    loss: float
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class GrowthRow:
    """A look at the measured quantity after `update` updates: its value, the batch size wanted and that used from then
    on.
    """

    update: int
    epoch: float
    value: float
    wanted: int
    batch_size: int


@dataclass(frozen=True, slots=True)
class ResizeRow:
    """A change of the number of workers after `update` updates, and how long training paused for it."""

    update: int
    from_workers: int
    to_workers: int
    pause_seconds: float

    def to_json(self) -> dict[str, int | float]:
        """The row as it appears in summary.json."""
        workers = {"from": self.from_workers, "to": self.to_workers}
        return {"update": self.update, **workers, "pauseSeconds": self.pause_seconds}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        """The row that `to_json` returned. Raises KeyError or ValueError for any other record."""
        return cls(int(record["update"]), int(record["from"]), int(record["to"]), float(record["pauseSeconds"]))


HISTORY_HEADER = tuple(to_camel(name) for name in HistoryRow.__slots__)
GROWTH_HEADER = tuple(to_camel(name) for name in GrowthRow.__slots__)
_cells, _growth_cells = attrgetter(*HistoryRow.__slots__), attrgetter(*GrowthRow.__slots__)


class History:
    """Appends a run's rows to the files in `directory`, created if missing; rows are buffered until `flush`."""

    def __init__(self, directory: Path) -> None:
        """Continues the files that exist. Raises OSError."""
        directory.mkdir(parents=True, exist_ok=True)
        self._updates = RowFile(directory / HISTORY_FILE)
        self._evaluations = RowFile(directory / EVALUATIONS_FILE)
        self._growth = RowFile(directory / GROWTH_FILE)

    @property
    def last_update(self) -> int:
        """The last update that has a row, 0 at first."""
        return self._updates.last

    def append(self, row: HistoryRow) -> bool:
        """Appends the row and returns True, or returns False if its update already has a row."""
        if row.update <= self._updates.last:
            return False
        self._updates.append(HISTORY_HEADER, row.update, _cells(row))
        return True

    def append_evaluation(self, row: EvaluationRow) -> bool:
        """Appends the row and returns True, or returns False if its update was evaluated before."""
        if row.update <= self._evaluations.last:
            return False
        cells = (row.update, row.epoch, row.seconds, row.loss, *row.metrics.values())
        self._evaluations.append((*EVALUATION_HEADER, *row.metrics), row.update, cells)
        return True

    def append_growth(self, row: GrowthRow) -> None:
        """Appends the row, unless its update already has one."""
        if row.update > self._growth.last:
            self._growth.append(GROWTH_HEADER, row.update, _growth_cells(row))

    def truncate(self, update: int) -> None:
        """Drops the rows after `update`, at which a resume continues; each file changes whole or not at all."""
        for file in self._files:
            file.truncate(update)

    def flush(self) -> None:
        """Writes buffered rows to the operating system. Raises OSError naming the file."""
        for file in self._files:
            file.flush()

    def close(self) -> None:
        """Flushes and closes the files; a second call does nothing. Raises OSError naming a file, with all closed."""
        with ExitStack() as stack:
            for file in self._files:
                stack.callback(file.close)

    def discard(self) -> None:
        """Closes the files without the buffered rows. Raises OSError naming a file, with all closed."""
        with ExitStack() as stack:
            for file in self._files:
                stack.callback(file.discard)

    @property
    def _files(self) -> tuple[RowFile, RowFile, RowFile]:
        return self._updates, self._evaluations, self._growth
