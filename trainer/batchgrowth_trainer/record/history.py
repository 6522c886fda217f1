"""The files of a run's rows, written while it trains: `history.csv` has a row per update, `evaluations.csv` one per
evaluation, `growth.csv` one per look at a measured quantity.

Rows are only appended. Readers drop a last line that a crash tore; a resume truncates the files to its checkpoint;
an update repeated after a recovery is ignored, since its row is already written.
An OSError, such as a full disk, is raised to the caller, who decides whether training continues without a history.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, Self

from pydantic.alias_generators import to_camel

from batchgrowth_trainer.record.rows import RowFile

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
