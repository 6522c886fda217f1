"""The wording of a run's numbers and events, the same on a terminal and in a log."""

from batchgrowth_trainer.record.history import EvaluationRow, ResizeRow
from batchgrowth_trainer.sinks.events import (
    ArithmeticDiffers,
    CheckpointFailed,
    EndedEarly,
    Event,
    Looked,
    Note,
    Recovered,
    Waiting,
)


def shown_metrics(row: EvaluationRow) -> str:
    """Each metric after a comma: `, accuracy 0.9917`."""
    return "".join(f", {name} {value:.4f}" for name, value in row.metrics.items())


def note_of(event: Event) -> str | None:
    """The event as one line for the user; None for an event without one."""
    text = _text_of(event)
    return None if text is None else " ".join(text.split())


def _text_of(event: Event) -> str | None:
    match event:
        case Note(text):
            return text
        case ResizeRow(update, before, after, pause):
            return f"update {update:,}: workers {before} → {after}, a pause of {pause * 1000:.0f} ms"
        case Looked(row, quantity, before) if row.batch_size != before:
            return f"update {row.update:,}: batch {before} → {row.batch_size}, {quantity} {row.value:.4g}"
        case EndedEarly():
            return _early_end(event)
        case Recovered(update, cause):
            return f"update {update:,}: {cause}; going on from the last committed update"
        case CheckpointFailed(reason):
            return f"checkpoint failed: {reason}"
        case Waiting(cause):
            return f"waiting for {cause}"
        case ArithmeticDiffers(line=line) if line:
            return line
    return None


def _early_end(event: EndedEarly) -> str:
    judged, stop = event.judged, event.spec.evaluation.stop_early
    assert stop is not None
    best = f"better than {judged.value:.6g} of epoch {judged.epoch}" if judged.update else "finite"
    num = f"{judged.misses} evaluation{'s' if judged.misses > 1 else ''}"
    return (
        f"ending early, after epoch {judged.evaluated} of {event.spec.epochs}: in {num}, {stop.metric} was not {best}"
    )
