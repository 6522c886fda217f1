"""The sinks that write the history and the journal of a run."""

import json
import time
from collections import deque
from datetime import UTC, datetime
from pathlib import Path

from batchgrowth_trainer.record.history import EvaluationRow, History, HistoryRow
from batchgrowth_trainer.record.output import JOURNAL_FILE
from batchgrowth_trainer.record.storage import reported_as_checkpoint_error
from batchgrowth_trainer.sinks.events import Event, Finished, Looked, Started, Stopped, note_of

# --- The sink that writes the history; the first of all, so that the others receive only recorded rows ---


class Recorder:
    """Appends updates, evaluations and looks to the history."""

    def __init__(self, history: History) -> None:
        self._history = history

    def handle(self, event: Event) -> None:
        """See Sink. Raises CheckpointError if a file cannot be written, or has other columns than its row."""
        with reported_as_checkpoint_error():
            if isinstance(event, HistoryRow):
                self._history.append(event)
            elif isinstance(event, EvaluationRow):
                self._history.append_evaluation(event)
            elif isinstance(event, Looked):
                self._history.append_growth(event.row)


# --- The journal of a run: each event that is no row of the history as a line of JSON, with its time and its update ---
# It is kept when the run is resumed, from an earlier checkpoint too: it says what happened, not what counts.

LONGEST_BYTES = 4 << 20
"""Size at which the file becomes the older one, in place of the one before it; some 30,000 events."""
_MOST_WAITING = 1000
_RETRY_SECONDS = 5.0


class Journal:
    """Appends to journal.jsonl in the folder; the newest lines that a disk does not take now wait in memory."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / JOURNAL_FILE
        self._update = 0
        self._waiting: deque[str] = deque(maxlen=_MOST_WAITING)
        self._not_before = 0.0

    def handle(self, event: Event) -> None:
        """See Sink."""
        if isinstance(event, HistoryRow):
            self._update = event.update
            return
        if isinstance(event, Started):
            self._update = event.position.update
        message = _message(event)
        if message is not None:
            at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
            line = {"time": at, "update": self._update, "event": type(event).__name__, "message": message}
            self._waiting.append(json.dumps(line, ensure_ascii=False) + "\n")
            self._write()

    def _write(self) -> None:
        if time.monotonic() < self._not_before:
            return
        try:
            if self._path.exists() and self._path.stat().st_size >= LONGEST_BYTES:
                self._path.replace(self._path.with_name(f"older-{JOURNAL_FILE}"))
            with self._path.open("a", encoding="utf-8") as file:
                file.write("".join(self._waiting))
        except OSError:
            self._not_before = time.monotonic() + _RETRY_SECONDS
        else:
            self._waiting.clear()


def _message(event: Event) -> str | None:
    match event:
        case Started(position=position):
            return f"resumed after update {position.update:,}" if position.update else "started"
        case Finished(sha256):
            return f"finished; weights SHA-256 {sha256}"
        case Stopped():
            return "the trainer ended"
    return note_of(event)
