"""The sink that writes what happens to a run into the process's log: one line an event, with the job and the update."""

import logging

from batchgrowth.errors import duration

from batchgrowth_trainer.record.history import EvaluationRow, HistoryRow
from batchgrowth_trainer.sinks.events import CheckpointSaved, Event, Finished, Looked, Started, Stopped, note_of

log = logging.getLogger(__name__)


class LogLines:
    """Logs at info what someone on call wants to know, and at debug evaluations and looks that change no batch."""

    def __init__(self) -> None:
        self._name = ""
        self._update = 0

    def handle(self, event: Event) -> None:
        """See Sink."""
        level = logging.INFO
        match event:
            case HistoryRow():
                self._update = event.update
                return
            case Started(name, plan, position):
                self._name = name
                self._update = position.update
                begins = "resumes" if position.update else "starts"
                text: str | None = f"{begins} a plan of {plan.updates:,} updates in {len(plan.stages)} stages"
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
