"""What a run writes while it trains: `history.csv` (a row per update) and `evaluations.csv` (a row per evaluation).

Rows are only ever appended. A crash may tear the last line, which the next reader drops; a resume cuts back to
its checkpoint; an update that is done again after a recovery is already there and is ignored.
An OSError (a full disk, say) is let through: whether training goes on without its history is the caller's choice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from batchgrowth_trainer.record.rows import RowFile

HISTORY_FILE = "history.csv"
EVALUATIONS_FILE = "evaluations.csv"
EVALUATION_HEADER = ("update", "epoch", "seconds", "loss")


@dataclass(frozen=True, slots=True)
class HistoryRow:
    """One update. `update` counts updates done after it (from 1), `epoch` the epochs done, as a fraction.

    `loss` is the mean per example in this update's batch; the times are in seconds, `seconds` since the run began,
    time before a resume included.
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
class ResizeRow:
    """Workers that joined or left at the boundary after `update` updates, and how long nothing was computed."""

    update: int
    from_workers: int
    to_workers: int
    pause_seconds: float

    def to_json(self) -> dict[str, int | float]:
        """The row as summary.json spells it."""
        return {
            "update": self.update,
            "from": self.from_workers,
            "to": self.to_workers,
            "pauseSeconds": self.pause_seconds,
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> ResizeRow:
        """The row that `to_json` wrote. Raises KeyError or ValueError for anything else."""
        return cls(int(record["update"]), int(record["from"]), int(record["to"]), float(record["pauseSeconds"]))


def camel(name: str) -> str:
    """`batch_size` as `batchSize`."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


HISTORY_HEADER = tuple(camel(name) for name in HistoryRow.__slots__)


class History:
    """Appends a run's rows in `directory`, which is made if it is not there. Buffered: `flush` writes to disk."""

    def __init__(self, directory: Path) -> None:
        """Opens what is there and continues it. Raises OSError."""
        directory.mkdir(parents=True, exist_ok=True)
        self._updates = RowFile(directory / HISTORY_FILE)
        self._evaluations = RowFile(directory / EVALUATIONS_FILE)

    @property
    def last_update(self) -> int:
        """The number of updates whose rows are here, 0 at first."""
        return self._updates.last

    def append(self, row: HistoryRow) -> bool:
        """True if the row is new; a row of an update that is already here is ignored."""
        if row.update <= self._updates.last:
            return False
        self._updates.append(HISTORY_HEADER, row.update, _history_cells(row))
        return True

    def append_evaluation(self, row: EvaluationRow) -> bool:
        """True if the row is new; a second evaluation after the same update is ignored."""
        if row.update <= self._evaluations.last:
            return False
        cells = (row.update, row.epoch, row.seconds, row.loss, *row.metrics.values())
        self._evaluations.append((*EVALUATION_HEADER, *row.metrics), row.update, cells)
        return True

    def truncate(self, update: int) -> None:
        """Drops the rows after `update`, each file at once or not at all: a resume goes back to its checkpoint."""
        self._updates.truncate(update)
        self._evaluations.truncate(update)

    def flush(self) -> None:
        """Hands what was appended to the operating system. Raises OSError naming the file."""
        self._updates.flush()
        self._evaluations.flush()

    def close(self) -> None:
        """Flushes and closes both files; closing twice is closing once."""
        self._updates.close()
        self._evaluations.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _history_cells(row: HistoryRow) -> tuple[int | float, ...]:
    return (
        row.update,
        row.epoch,
        row.stage,
        row.batch_size,
        row.learning_rate,
        row.loss,
        row.workers,
        row.compute_seconds,
        row.exchange_seconds,
        row.wait_seconds,
        row.seconds,
    )
