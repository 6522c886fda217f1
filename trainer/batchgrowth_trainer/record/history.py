"""The rows of a run, appended to files while it trains.

`history.csv` has a row per update, `evaluations.csv` one per evaluation, and `growth.csv` one per look at a measured
quantity. Rows are only appended: a reader drops a last line that a crash tore, a resume cuts the files at its
checkpoint before it writes, and an update that a recovery repeats keeps its first row. An OSError, such as a full disk,
goes to the caller, which decides whether training continues without a history.
"""

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from io import FileIO
from operator import attrgetter
from pathlib import Path
from typing import Any, Self

from batchgrowth.errors import CheckpointError, StorageError
from batchgrowth.forecast.course_time import Outlook
from batchgrowth.manifest.files import open_regular
from batchgrowth.plan import BatchDecision, Plan, Step
from pydantic.alias_generators import to_camel

from batchgrowth_trainer.record.storage import APPEND, flush_folder, named, open_own, passes

# --- One CSV file. Ten million updates take more than a gigabyte, so a run that continues reads only the file's end ---

_BUFFER_BYTES = 1 << 16
_BLOCK_BYTES = 1 << 20
"""Bytes per read, from the end of a file towards its beginning; longer than any row."""
_MOST_WAITING_BYTES = 1 << 24
"""Bytes that may wait in memory for a full disk, about 100,000 rows."""


class RowFile:
    """A CSV file that survives crashes; the first column is the update, which grows from row to row."""

    def __init__(
        self, path: Path, most: float = math.inf, *, new: bool = False, check_held: Callable[[], None] = lambda: None
    ) -> None:
        """Read the last update of an existing file, up to update `most`; rows after it and a torn last line do not
        count, and are cut off before anything is written. A `new` file ignores what is there, which
        is moved away before the first write.

        `check_held` raises Superseded if the file is another run's by now, and is called before each write.

        Raises OSError.
        """
        self._path = path
        self._check_held = check_held
        self._file: FileIO | None = None
        self._buffer = bytearray()
        self._write_at = 0  # bytes in the buffer that trigger a write
        self.header: tuple[str, ...] = ()
        """The file's columns; empty until it has any."""
        self._whole: int | None = None  # bytes to which the file has to be cut
        self._is_synced = True
        self.last = 0
        if not new:
            self._look(most)

    def _look(self, most: float) -> None:
        """Find the rows up to update `most` in the file, if there is one. Raises OSError."""
        if not self._path.exists():
            return
        with named(self._path):
            self.header, whole, self.last = _end(self._path, most)
            self._whole = whole if whole < self._path.stat().st_size else None

    def _cut(self) -> None:
        """Cut off what does not count. Raises OSError."""
        if self._whole is None:
            return
        opened = open_own(self._path, os.O_WRONLY)
        try:
            os.ftruncate(opened, self._whole)
        finally:
            os.close(opened)
        self._whole = None

    def append(
        self, header: tuple[str, ...], update: int, cells: Sequence[int | float | str], *, at_once: bool = False
    ) -> None:
        """Append a row to the buffer, and write the buffer if it is full, or `at_once`.

        Raises CheckpointError if the file has other columns, as the file of an earlier run may, and OSError with the
        file's name. After an error that may pass, the rows wait for the next write, up to _MOST_WAITING_BYTES.
        """
        if not self.header:  # a new file, or one whose header a crash tore
            self.header = header
            self._buffer += f"{','.join(header)}\n".encode()
        if header != self.header:
            raise CheckpointError(
                f"{self._path} has the columns {', '.join(self.header)}, but now they would be {', '.join(header)}; "
                "undo the change, such as one of the workload's metrics, or start over in another --output-dir"
            )
        self._buffer += f"{','.join(map(str, cells))}\n".encode()
        self.last = update
        if len(self._buffer) < self._write_at and not at_once:
            return
        try:
            self.flush()
        except (OSError, StorageError) as error:  # a full disk may have room later, so the rows wait in the buffer
            lasts = isinstance(error, OSError) and not passes(error)
            if lasts or len(self._buffer) > _MOST_WAITING_BYTES:
                raise
            self._write_at = len(self._buffer) + _BUFFER_BYTES

    def truncate(self, update: int) -> None:
        """Drop all rows after `update`. Raises OSError, and then the file has them all."""
        self.close()
        self._look(update)
        try:
            with named(self._path):
                self._cut()
        finally:
            self._whole = None

    def flush(self) -> None:
        """Write the buffer; bytes that the disk does not take stay in it.

        Raises OSError with the file's name, and what `check_held` raises.
        """
        if self._buffer:
            self._check_held()
        with named(self._path):
            if self._buffer:
                self._cut()
            while self._buffer:
                self._file = self._file or FileIO(open_own(self._path, APPEND), "ab")
                self._is_synced = False
                del self._buffer[: self._file.write(self._buffer)]
        self._write_at = _BUFFER_BYTES

    def sync(self) -> bool:
        """Write the buffer, and wait until the disk has it; return whether there was anything to wait for.

        Raises OSError with the file's name.
        """
        with named(self._path):
            self._cut()  # even if no row follows, since a checkpoint does
        self.flush()
        if self._is_synced or self._file is None:
            return False
        with named(self._path):
            os.fsync(self._file.fileno())
        self._is_synced = True
        return True

    def discard(self) -> None:
        """Close the file and drop the buffer. Raises OSError with the file's name."""
        self._buffer.clear()
        self.close()

    def close(self) -> None:
        """Write the buffer and close the file. Raises OSError with the file's name."""
        try:
            self.flush()
        finally:
            file = self._file
            self._file = None
            self._buffer.clear()
            self._write_at = 0
            if file is not None:
                with named(self._path):
                    file.close()


def whole_lines(path: Path) -> list[str]:
    """Return the file's lines before the first torn line (no newline, or another number of cells). Raises OSError."""
    with open_regular(path) as file:
        header = file.readline()
        rows = file.read()
    if not header.endswith(b"\n"):
        return []
    whole, _ = _whole_rows(rows, header.count(b","), math.inf)
    return (header + rows[:whole]).decode(errors="replace").splitlines(keepends=True)


def _end(path: Path, most: float) -> tuple[tuple[str, ...], int, int]:
    """Return the header, the length in bytes up to the last whole row of update `most` or less, and its update or 0."""
    with open_regular(path) as file:
        header = file.readline()
        if not header.endswith(b"\n"):
            return (), 0, 0
        names = tuple(header.decode(errors="replace").rstrip("\n").split(","))
        end = file.seek(0, os.SEEK_END)
        while end > len(header):
            begin = max(len(header), end - _BLOCK_BYTES)
            file.seek(begin - 1)  # the byte before may end a row
            rest = file.read(end - begin + 1)
            begins = rest.find(b"\n") + 1
            first = begin - 1 + begins  # where the first row of this block begins
            if begins:
                kept, last = _whole_rows(rest[begins:], len(names) - 1, most)
                if kept:
                    return names, first + kept, last
            end = first if begin < first < end else begin
        return names, len(header), 0


def _whole_rows(block: bytes, commas: int, most: float) -> tuple[int, int]:
    """Return the length in bytes of the whole rows up to update `most`, and the update of the last of them."""
    kept = 0
    last = 0
    for row in block.splitlines(keepends=True):
        update = row.partition(b",")[0]
        if not row.endswith(b"\n") or row.count(b",") != commas or not update.isdigit() or int(update) > most:
            break
        kept += len(row)
        last = int(update)
    return kept, last


# --- The rows, and the files of a run ---

HISTORY_FILE = "history.csv"
EVALUATIONS_FILE = "evaluations.csv"
GROWTH_FILE = "growth.csv"
EVALUATION_HEADER = ("update", "epoch", "seconds", "loss")


@dataclass(frozen=True, slots=True)
class Committed:
    """The result of an update: mean loss per example, its learning rate, whether a member requested a stop after it,
    and the decision of a look at the measured quantity, None if no look was due.
    """

    loss: float
    learning_rate: float
    stop: bool
    decision: BatchDecision | None = None


@dataclass(frozen=True, slots=True)
class HistoryRow:
    """One committed update. A member sends it, and the history, the metrics and the progress report use it.

    `update` and `epoch` count the updates and, as a fraction, the epochs done including this one. `loss` is the mean
    per example in this update's batch. Times are in seconds; `seconds` is the time since the run began, including the
    time before a resume. `remaining_seconds` is the time to the end of the run, by the model of the forecast; None
    until it is fitted. The other fields are no columns of the history: `examples` and `shards` are those of the update
    (0 in a row that was read from a file), `committed_at` is the wall-clock time of the commit, `decision` what a look
    at the measured quantity decided after the update, None if none was due, and `outlook` has the interval of the time
    left.
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
    remaining_seconds: float | None = None
    examples: int = 0
    shards: int = 0
    committed_at: float = 0.0
    decision: BatchDecision | None = None
    outlook: Outlook | None = None

    @property
    def update_seconds(self) -> float:
        """Return how long the update took, without what came between it and the one before."""
        return self.compute_seconds + self.exchange_seconds + self.wait_seconds

    @classmethod
    def now(
        cls, step: Step, plan: Plan, done: Committed, workers: int, seconds: tuple[float, float, float], ago: float = 0
    ) -> Self:
        """Return the row of a step committed now, or `ago` seconds ago; the run fills in the time since it began.

        `seconds` are the times of computing, of the exchange, and of waiting.
        """
        compute, exchange, wait = seconds
        return cls(
            update=step.after.update,
            epoch=step.after.epoch + step.after.offset / plan.examples_per_epoch,
            stage=step.stage,
            batch_size=step.batch_size,
            learning_rate=done.learning_rate,
            loss=done.loss,
            workers=workers,
            compute_seconds=compute,
            exchange_seconds=exchange,
            wait_seconds=wait,
            seconds=0.0,
            examples=step.examples,
            shards=step.shards,
            committed_at=time.time() - ago,
            decision=done.decision,
        )


@dataclass(frozen=True, slots=True)
class EvaluationRow:
    """The mean loss and metrics over the test set, in eval mode, after `update` updates."""

    update: int
    epoch: float
    seconds: float
    loss: float
    metrics: Mapping[str, float]

    def to_json(self) -> dict[str, float]:
        """Return the row as checkpoints keep it."""
        own = {"update": self.update, "epoch": self.epoch, "seconds": self.seconds, "loss": self.loss}
        return {**own, **self.metrics}

    @classmethod
    def from_json(cls, record: Mapping[str, float | None]) -> Self:
        """Return the row of a record that `to_json` made; null stands for a number that is not finite."""
        numbers = {name: math.nan if value is None else float(value) for name, value in record.items()}
        own = [numbers.pop(name) for name in EVALUATION_HEADER]
        return cls(int(own[0]), own[1], own[2], own[3], numbers)


@dataclass(frozen=True, slots=True)
class GrowthRow:
    """A look at the measured quantity after `update` updates.

    `value` is what was measured, `wanted` the batch size that it asks for, and `batch_size` the next one used.
    """

    update: int
    epoch: float
    value: float
    wanted: int
    batch_size: int


@dataclass(frozen=True, slots=True)
class ResizeRow:
    """A change of the number of workers after `update` updates, and the pause that it caused."""

    update: int
    from_workers: int
    to_workers: int
    pause_seconds: float

    def to_json(self) -> dict[str, int | float]:
        """Return the row as it appears in summary.json."""
        return {
            "update": self.update,
            "from": self.from_workers,
            "to": self.to_workers,
            "pauseSeconds": self.pause_seconds,
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        """Return the row of a record that `to_json` made. Raises KeyError or ValueError for any other record."""
        return cls(int(record["update"]), int(record["from"]), int(record["to"]), float(record["pauseSeconds"]))


HISTORY_COLUMNS = HistoryRow.__slots__[: HistoryRow.__slots__.index("remaining_seconds") + 1]
HISTORY_HEADER = tuple(to_camel(name) for name in HISTORY_COLUMNS)
LEAST_HEADER = HISTORY_HEADER[: HISTORY_HEADER.index("seconds") + 1]
"""The columns with which the files of every version begin. A run goes on with the columns of the version that began it:
those that this version does not know stay empty.
"""
GROWTH_HEADER = tuple(to_camel(name) for name in GrowthRow.__slots__)
_cells = attrgetter(*HISTORY_COLUMNS)
_growth_cells = attrgetter(*GrowthRow.__slots__)


class History:
    """Appends a run's rows to the files in `directory`, created if missing; `flush` writes buffered rows."""

    def __init__(
        self,
        directory: Path,
        most: float = math.inf,
        *,
        new: bool = False,
        check_held: Callable[[], None] = lambda: None,
    ) -> None:
        """Continue existing files after update `most`, or make `new` ones. Nothing is written before the first row
        that `flush` writes, and nothing if `check_held` raises. Raises OSError.
        """
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._updates = RowFile(directory / HISTORY_FILE, most, new=new, check_held=check_held)
        self._evaluations = RowFile(directory / EVALUATIONS_FILE, most, new=new, check_held=check_held)
        self._growth = RowFile(directory / GROWTH_FILE, most, new=new, check_held=check_held)

    @property
    def last_update(self) -> int:
        """Return the last update that has a row; 0 at first."""
        return self._updates.last

    @property
    def last_evaluated(self) -> int:
        """Return the update of the last evaluation that has a row; 0 at first."""
        return self._evaluations.last

    @property
    def last_look(self) -> int:
        """Return the update of the last look at the measured quantity that has a row; 0 at first."""
        return self._growth.last

    def append(self, row: HistoryRow) -> bool:
        """Append the row; return False if its update already has a row."""
        # A recovery repeats updates with the same result, and a member that became the reporter sends rows again.
        if row.update <= self._updates.last:
            return False
        header = HISTORY_HEADER
        found = self._updates.header
        cells = _cells(row)
        if found not in ((), header) and found[: len(LEAST_HEADER)] == LEAST_HEADER:
            known = dict(zip(header, cells, strict=True))
            header = found
            cells = tuple(known.get(name) for name in header)
        self._updates.append(header, row.update, ["" if cell is None else cell for cell in cells])
        return True

    def append_evaluation(self, row: EvaluationRow) -> bool:
        """Append the row; return False if its update was evaluated before."""
        if row.update <= self._evaluations.last:
            return False
        # An empty cell is a missing value for every reader of CSV; how NaN is written differs among them.
        values = ("" if math.isnan(value) else value for value in (row.loss, *row.metrics.values()))
        cells = (row.update, row.epoch, row.seconds, *values)
        self._evaluations.append((*EVALUATION_HEADER, *row.metrics), row.update, cells)
        return True

    def append_growth(self, row: GrowthRow) -> None:
        """Append and write the row unless its update already has a row."""
        if row.update > self._growth.last:
            # At once: a reader of history.csv finds the decisions that led to its batches.
            self._growth.append(GROWTH_HEADER, row.update, _growth_cells(row), at_once=True)

    def truncate(self, update: int) -> None:
        """Drop the rows after `update`, at which a resume continues; each file is cut completely or not at all."""
        for file in self._files:
            file.truncate(update)

    def flush(self) -> None:
        """Write buffered rows to the operating system. Raises OSError with the file's name."""
        for file in self._files:
            file.flush()

    def sync(self) -> None:
        """Write buffered rows, and wait until the disk has them. Raises OSError with the file's name."""
        waited = [file.sync() for file in self._files]
        if any(waited):
            flush_folder(self._directory)  # a file may be new

    def close(self) -> None:
        """Flush and close all files; a second call does nothing. Raises OSError with a file's name."""
        with ExitStack() as stack:
            for file in self._files:
                stack.callback(file.close)

    def discard(self) -> None:
        """Close all files without the buffered rows. Raises OSError with a file's name."""
        with ExitStack() as stack:
            for file in self._files:
                stack.callback(file.discard)

    @property
    def _files(self) -> tuple[RowFile, RowFile, RowFile]:
        return self._updates, self._evaluations, self._growth
