"""The log of the process and the journal of the run: the same events as lines, each with its update."""

import json
import logging
import time
from collections import deque
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path

from batchgrowth.errors import counted, duration

from batchgrowth_trainer.record.history import EvaluationRow, HistoryRow
from batchgrowth_trainer.record.output import JOURNAL_FILE
from batchgrowth_trainer.record.storage import APPEND, open_own
from batchgrowth_trainer.sinks.events import CheckpointSaved, Event, Finished, Looked, Started, Stopped, note_of

log = logging.getLogger(__name__)


class LogLines:
    """Logs events for someone on call at info, and evaluations and looks that change no batch at debug."""

    def __init__(self) -> None:
        self._name = ""
        self._update = 0

    def handle(self, event: Event) -> None:
        level = logging.INFO
        match event:
            case HistoryRow():
                self._update = event.update
                return
            case Started(name, plan, position):
                self._name = name
                self._update = position.update
                begins = "resumes" if position.update else "starts"
                text: str | None = (
                    f"{begins} a plan of {counted(plan.updates, 'update')} in {counted(len(plan.stages), 'stage')}"
                )
            case EvaluationRow():
                level = logging.DEBUG
                text = f"evaluated after epoch {event.epoch:g}: loss {event.loss:.6g}"
            case CheckpointSaved(update, seconds, size):
                text = f"checkpoint of update {update:,} written: {size:,} bytes in {duration(seconds)}"
            case Looked(row, quantity, before) if row.batch_size == before:
                level = logging.DEBUG
                text = f"batch {before} stays, {quantity} {row.value:.4g}"
            case Finished(sha256):
                text = f"finished; weights SHA-256 {sha256}"
            case Stopped(error):
                text = "ended" if error is None else f"ended by {type(error).__name__}: {error}"
            case _:
                text = note_of(event)
        if text is not None:
            where = f"update {self._update:,}: "
            log.log(level, "%s, %s%s", self._name, where, text.removeprefix(where))


LONGEST_BYTES = 4 << 20
"""Size at which the file becomes the older one, in place of the one before it; some 30,000 events."""
_MOST_WAITING = 1000
_RETRY_SECONDS = 5.0


class Journal:
    """Appends each event that is no row of the history to journal.jsonl, as JSON with its time and its update.

    A resumed run keeps the file, even if it resumes from an earlier checkpoint: the journal says what happened, and the
    history what counts. While the disk is full, the newest lines wait in memory.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / JOURNAL_FILE
        self._update = 0
        self._waiting: deque[str] = deque(maxlen=_MOST_WAITING)
        self._not_before = 0.0

    def handle(self, event: Event) -> None:
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
            self._append("".join(self._waiting).encode())
        except OSError:  # ends no training: the journal is for people, and the history has the numbers
            self._not_before = time.monotonic() + _RETRY_SECONDS
        else:
            self._waiting.clear()

    def _append(self, data: bytes) -> None:
        """Append all the data or none, since what is not written is tried again. Raises OSError."""
        with FileIO(open_own(self._path, APPEND), "ab") as file:
            whole = file.tell()
            try:
                while data:
                    data = data[file.write(data) :]
            except OSError:
                file.truncate(whole)
                raise


def _message(event: Event) -> str | None:
    match event:
        case Started(position=position):
            return f"resumed after update {position.update:,}" if position.update else "started"
        case Finished(sha256):
            return f"finished; weights SHA-256 {sha256}"
        case Stopped():
            return "the trainer ended"
    return note_of(event)
