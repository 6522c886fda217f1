"""The events of a run, their wording, and the sinks that receive them in the order in which they happen.

Two sinks write them as lines, each with its update: the log of the process, and the journal of the run.
"""

import json
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path
from typing import Any, Protocol, Self

from batchgrowth.contract.metrics import ExchangeFigures
from batchgrowth.errors import counted, duration
from batchgrowth.evaluations import BestEvaluation
from batchgrowth.expected_batch import ExpectedBatch
from batchgrowth.plan import BatchDecision, Plan
from batchgrowth.position import Position
from batchgrowth.spec import JobSpec

from batchgrowth_trainer.record.history import EvaluationRow, GrowthRow, HistoryRow, ResizeRow
from batchgrowth_trainer.record.output import JOURNAL_FILE
from batchgrowth_trainer.record.storage import APPEND, open_own
from batchgrowth_trainer.record.summary import significant
from batchgrowth_trainer.user_errors import FAULTS, reason

log = logging.getLogger(__name__)

# The rows of the history are events too: HistoryRow (an update was committed), EvaluationRow and ResizeRow. If a
# recovery repeats an update, its rows are not published again; after Undone they are. ExchangeFigures are events as
# well: what the exchange did since the figures before.


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
    forecast: ExpectedBatch | None = None


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
class Undone:
    """A check found that `workers` computed wrongly, as `cause` says: `updates` updates are undone.

    Training goes on from `position`, a checkpoint that a check covers; `plan` holds there, after these `decisions`.
    """

    cause: str
    updates: int
    position: Position
    plan: Plan
    decisions: tuple[BatchDecision, ...] = ()
    workers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CheckpointSaved:
    """The state after `update` is stored: `size` bytes, written in `seconds`."""

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
class FoundFinished:
    """An earlier run has done every update, as its `summary` says, so nothing is trained: the job is at `position`, the
    end of `plan`, which follows from `decisions`.
    """

    plan: Plan
    position: Position
    decisions: tuple[BatchDecision, ...]
    summary: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Stopped:
    """The run is over, however it ended; a second Stopped changes nothing. `error` is the error that ended the run, if
    any.
    """

    error: BaseException | None = field(default=None, compare=False)


Event = (
    HistoryRow | EvaluationRow | ResizeRow | Started | Looked | EndedEarly | Recovered | Undone | CheckpointSaved
    | CheckpointFailed | ExchangeFigures | WorkersReady | Waiting | ArithmeticDiffers | Note | Finished | FoundFinished
    | Stopped
)  # fmt: skip


class Sink(Protocol):
    """Receives every event of a run."""

    def handle(self, event: Event) -> None:
        """Act on the event, or ignore it; must be quick, since an update may take a millisecond."""


class Sinks:
    """Hands each event to every sink in turn; it is a sink itself.

    No sink ends the training: a sink that raises is dropped, and the others get a note. An event that comes while
    another is handed out waits for its turn, since it may come from a signal handler, or from a sink.
    """

    def __init__(self, sinks: Iterable[Sink], tell: Callable[[Event], None] | None = None) -> None:
        """Keep the sinks; `tell` gets the note about one that is dropped, by default to hand it to the others."""
        self._sinks = list(sinks)
        self._tell = tell or self.add_to_next
        self._waiting: deque[Event] = deque()
        self._is_busy = False

    @property
    def left(self) -> Sequence[Sink]:
        """Return the sinks that were not dropped."""
        return tuple(self._sinks)

    @classmethod
    def of(cls, sinks: "Iterable[Sink] | Sinks") -> "Sinks":
        """Return these sinks as Sinks; the same object if they are already, so that a dropped sink stays dropped."""
        return sinks if isinstance(sinks, Sinks) else cls(sinks)

    def put_first(self, sinks: Iterable[Sink]) -> Self:
        """Let these sinks receive every event before the others, and return this object."""
        self._sinks[:0] = sinks
        return self

    def replace(self, sink: Sink, sinks: Sequence[Sink]) -> None:
        """Let these sinks receive every event from now on in the place of that sink."""
        place = self._sinks.index(sink)
        self._sinks[place : place + 1] = sinks

    def add_to_next(self, event: Event) -> None:
        """Hand the event out before the next one; for a caller that a sink may be calling now."""
        self._waiting.append(event)

    def handle(self, event: Event) -> None:
        """Hand the event to each sink, unless an event is being handed out: then it waits."""
        self._waiting.append(event)
        if self._is_busy:
            return
        self._is_busy = True
        try:
            while self._waiting:
                event = self._waiting.popleft()
                for sink in list(self._sinks):
                    try:
                        sink.handle(event)
                    except FAULTS as error:
                        self._drop(sink, error)
        finally:
            self._is_busy = False

    def _drop(self, sink: Sink, error: BaseException) -> None:
        """Drop the sink that raised the error, and tell the others."""
        self._sinks.remove(sink)
        log.debug("the sink %s raised an error", type(sink).__name__, exc_info=error)
        self._tell(
            Note(
                f"{type(sink).__name__} is left out from now on, since it raised {reason(error)}; training goes on "
                "without it"
            )
        )


class Held:
    """Keeps the events for sinks that write into the output folder, until the run takes that over."""

    def __init__(self, make: Callable[[], Sequence[Sink]], audience: Sinks) -> None:
        """Keep `make` for `release`, since sinks read the folder when they are made; `audience` then gets them in the
        place of this one.
        """
        self._make = make
        self._audience = audience
        self._waiting: list[Event] = []

    def handle(self, event: Event) -> None:
        """Keep the event for the sinks that `release` makes."""
        self._waiting.append(event)

    def release(self) -> None:
        """Make the sinks, and hand them the events so far; a sink that raises then is dropped."""
        late = Sinks(self._make(), self._audience.add_to_next)
        for event in self._waiting:
            late.handle(event)
        self._waiting.clear()
        self._audience.replace(self, late.left)


# --- The wording of a run's numbers and events, the same on a terminal and in a log ---


def shown_metrics(row: EvaluationRow) -> str:
    """Return each metric after a comma: `, accuracy 0.9917`."""
    return "".join(f", {name} {significant(value)}" for name, value in row.metrics.items())


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
        case Undone(cause, updates, position):
            where = f"update {position.update:,}, which a check covers"
            return f"{cause}; {updates:,} updates are undone, back to {where if position.update else 'the beginning'}"
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


# --- The log of the process, and the journal of the run ---


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
"""Size at which journal.jsonl becomes older-journal.jsonl, in place of the one before it; some 30,000 events."""
_MOST_WAITING = 1000
_RETRY_SECONDS = 5.0


class Journal:
    """Appends to journal.jsonl the start, the end and all that `note_of` words, as JSON with time and update.

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
