"""Reads back the files of a run, for plots and comparisons."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batchgrowth.errors import CheckpointError, DataError

from batchgrowth_trainer.record.history import (
    EVALUATION_HEADER,
    EVALUATIONS_FILE,
    HISTORY_FILE,
    HISTORY_HEADER,
    EvaluationRow,
    GrowthRow,
    HistoryRow,
)
from batchgrowth_trainer.record.replay import measured_quantity, read_looks
from batchgrowth_trainer.record.rows import whole_lines
from batchgrowth_trainer.record.storage import storage_error

SUMMARY_FILE = "summary.json"
_COUNTS = frozenset({"update", "stage", "batchSize", "workers"})


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """A run's rows, one per update, per evaluation and per look, and its summary, None until the run is finished.

    `quantity` names what the looks measured; it is empty if the growth is declared.
    """

    directory: Path
    history: tuple[HistoryRow, ...]
    evaluations: tuple[EvaluationRow, ...]
    summary: Mapping[str, Any] | None
    looks: tuple[GrowthRow, ...] = ()
    quantity: str = ""


def read_run(directory: Path) -> RecordedRun:
    """The run in `directory`, without torn last lines.

    Raises DataError if there is no history, CheckpointError if summary.json is damaged.
    """
    path = directory / HISTORY_FILE
    if not path.is_file():
        raise DataError(f"{directory}: there is no {HISTORY_FILE} here; name the --output-dir of a run")
    history = _read_history(path)
    if not history:
        raise DataError(f"{path}: no update is recorded yet; wait for the run's first updates")
    evaluations, summary = _read_evaluations(directory / EVALUATIONS_FILE), read_summary(directory)
    return RecordedRun(directory, history, evaluations, summary, read_looks(directory), measured_quantity(directory))


def _read_history(path: Path) -> tuple[HistoryRow, ...]:
    header, *lines = whole_lines(path) or [""]
    if lines and tuple(header.rstrip("\n").split(",")) != HISTORY_HEADER:
        raise DataError(f"{path}: columns are {header.strip()!r}; expected {','.join(HISTORY_HEADER)}")
    readers = [int if name in _COUNTS else float for name in HISTORY_HEADER]
    return tuple(
        HistoryRow(*(read(cell) for read, cell in zip(readers, line.split(","), strict=True)))  # type: ignore[arg-type]
        for line in lines
    )


def _read_evaluations(path: Path) -> tuple[EvaluationRow, ...]:
    if not path.exists():
        return ()
    header, *lines = whole_lines(path) or [""]
    metrics = header.rstrip("\n").split(",")[len(EVALUATION_HEADER) :]
    return tuple(_evaluation(line.split(","), metrics) for line in lines)


def _evaluation(cells: list[str], metrics: list[str]) -> EvaluationRow:
    epoch, seconds, loss, *values = map(float, cells[1:])
    return EvaluationRow(int(cells[0]), epoch, seconds, loss, dict(zip(metrics, values, strict=True)))


def read_summary(directory: Path) -> dict[str, Any] | None:
    """The content of summary.json, None if it is missing. Raises CheckpointError if it is damaged or unreadable."""
    path = directory / SUMMARY_FILE
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise storage_error(f"{path} cannot be read ({error.strerror}); try again", error) from error
    except ValueError as error:
        raise CheckpointError(f"{path}: not JSON ({error}); delete it or run the job again") from error
    if not isinstance(summary, dict):
        raise CheckpointError(f"{path}: a {type(summary).__name__}, not an object; delete it or run the job again")
    return summary


def evaluation_facts(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What a summary says of an early end and of the best evaluation, each with its name; empty if it says nothing."""
    early, best = summary.get("stoppedEarly"), summary.get("best")
    facts = [("ended early", f"after epoch {early['afterEpoch']}")] if early else []
    return facts + ([(f"best {best['metric']}", f"{best['value']:.4f} of epoch {best['epoch']}")] if best else [])
