"""The sink that writes the history; the first of all, so that the others receive only recorded rows."""

from batchgrowth_trainer.record.history import EvaluationRow, History, HistoryRow
from batchgrowth_trainer.record.storage import reported_as_checkpoint_error
from batchgrowth_trainer.sinks.events import Event, Looked


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
