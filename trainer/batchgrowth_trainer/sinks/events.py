"""The events of a run, their wording, and the sinks that receive them in the order in which they happen."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from batchgrowth.contract.figures import ExchangeFigures
from batchgrowth.evaluations import BestEvaluation
from batchgrowth.forecast import Forecast
from batchgrowth.plan import BatchDecision, Plan
from batchgrowth.position import Position
from batchgrowth.spec import JobSpec

from batchgrowth_trainer.record.history import EvaluationRow, GrowthRow, HistoryRow, ResizeRow

# The rows of the history are events as they are: HistoryRow (an update was committed), EvaluationRow and ResizeRow;
# each is published once, even if a recovery repeats the update. So are the figures of an exchange, ExchangeFigures:
# what it did since the event before.


@dataclass(frozen=True, slots=True)
class Started:
    """The job begins, or goes on from `position`; its plan follows from `decisions` if its growth is measured."""

    name: str
    plan: Plan
    position: Position
    decisions: tuple[BatchDecision, ...] = ()


@dataclass(frozen=True, slots=True)
class Looked:
    """A look at the measured `quantity`. The batch size was `before`; from now on `plan` holds, which follows from
    `decisions`.

    `forecast` is what the next look will probably decide, if that is another batch.
    """

    row: GrowthRow
    quantity: str
    before: int
    plan: Plan
    decisions: tuple[BatchDecision, ...]
    forecast: Forecast | None = None


@dataclass(frozen=True, slots=True)
class EndedEarly:
    """stopEarly ends training after the last evaluation in `judged`, and `plan` ends there."""

    plan: Plan
    spec: JobSpec
    judged: BestEvaluation


@dataclass(frozen=True, slots=True)
class Recovered:
    """A worker was lost, and training goes on from `update`."""

    update: int
    cause: str


@dataclass(frozen=True, slots=True)
class CheckpointSaved:
    """The state after `update` is on disk: `size` bytes, written in `seconds`."""

    update: int
    seconds: float
    size: int


@dataclass(frozen=True, slots=True)
class CheckpointFailed:
    """A checkpoint could not be written; training goes on."""

    reason: str


@dataclass(frozen=True, slots=True)
class WorkersReady:
    """This many workers could train now."""

    count: int


@dataclass(frozen=True, slots=True)
class Waiting:
    """Training stands still until `cause` is available; the next committed update ends the wait."""

    cause: str


@dataclass(frozen=True, slots=True)
class ArithmeticDiffers:
    """The workers whose arithmetic now differs from the job's, by name, with the reason.

    `line` is about a new one; empty if one has left.
    """

    workers: Mapping[str, str]
    line: str


@dataclass(frozen=True, slots=True)
class Note:
    """A line for the user."""

    text: str


@dataclass(frozen=True, slots=True)
class Finished:
    """Every update is done, and the weights are written."""

    weights_sha256: str


@dataclass(frozen=True, slots=True)
class Stopped:
    """The run is over, however it ended; a second Stopped changes nothing. `error` is the error that ended the run, if
    any.
    """

    error: BaseException | None = field(default=None, compare=False)


Event = (
    HistoryRow | EvaluationRow | ResizeRow | Started | Looked | EndedEarly | Recovered | CheckpointSaved
    | CheckpointFailed | ExchangeFigures | WorkersReady | Waiting | ArithmeticDiffers | Note | Finished | Stopped
)  # fmt: skip


class Sink(Protocol):
    """Receives every event of a run."""

    def handle(self, event: Event) -> None:
        """Act on the event, or ignore it; must be quick, since an update may take a millisecond."""


def publish(sinks: Iterable[Sink], event: Event) -> None:
    """Hand the event to each sink in turn."""
    for sink in sinks:
        sink.handle(event)


# --- The wording of a run's numbers and events, the same on a terminal and in a log ---


def shown_metrics(row: EvaluationRow) -> str:
    """Return each metric after a comma: `, accuracy 0.9917`."""
    return "".join(f", {name} {value:.4f}" for name, value in row.metrics.items())


def note_of(event: Event) -> str | None:
    """Return the event as one line for the user; None if it has no line."""
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
    judged = event.judged
    stop = event.spec.evaluation.stop_early
    assert stop is not None
    best = f"better than {judged.value:.6g} of epoch {judged.epoch}" if judged.update else "finite"
    num = f"{judged.misses} evaluation{'s' if judged.misses > 1 else ''}"
    return (
        f"ending early, after epoch {judged.evaluated} of {event.spec.epochs}: in {num}, {stop.metric} was not {best}"
    )
