"""The state of one run of one job: its position, its history, its checkpoints, and the events that it publishes."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from batchgrowth.errors import CheckpointError, ClusterError
from batchgrowth.evaluations import BestEvaluation, evaluation_due
from batchgrowth.forecast import expected_plan, forecast_of
from batchgrowth.growth import Course
from batchgrowth.plan import BatchDecision, Plan
from batchgrowth.position import Position

from batchgrowth_trainer.record import storage
from batchgrowth_trainer.record.checkpoint import Checkpoints, Saved
from batchgrowth_trainer.record.history import EvaluationRow, GrowthRow, History, HistoryRow, ResizeRow
from batchgrowth_trainer.record.snapshot import Snapshot
from batchgrowth_trainer.record.storage import not_written, reported_as_checkpoint_error
from batchgrowth_trainer.sinks import events
from batchgrowth_trainer.workers.arithmetics import Arithmetics

FAILING_SECONDS = 1800.0
"""The longest that training goes on while no checkpoint can be written."""
RETRY_SECONDS = 60.0
"""The longest time from a failed checkpoint to the next."""
LEAST_FAILURES = 3
"""The fewest failures in a row that end a run, if its updates are longer than RETRY_SECONDS."""
_MOST_FRUITLESS_RECOVERIES = 20  # in a row, without an update in between


@dataclass(slots=True)
class RunTotals:
    """Totals of a run, kept in checkpoints and the summary; `evaluated` is the last evaluated epoch."""

    resizes: list[ResizeRow] = field(default_factory=list)
    recoveries: int = 0
    evaluated: int = 0
    accuracy: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the totals as checkpoints store them."""
        return {
            "resizes": [row.to_json() for row in self.resizes],
            "recoveries": self.recoveries,
            "evaluated": self.evaluated,
            "accuracy": self.accuracy,
        }

    @classmethod
    def restored(cls, saved: Saved | None) -> Self:
        """Return the totals in a checkpoint, from which the run goes on; without a checkpoint, new totals.

        A member trains on before its state is saved, so the totals may be ahead of the checkpoint: the run then
        evaluates the later epochs again, since their rows are cut off.
        """
        if saved is None:
            return cls()
        resizes = [ResizeRow.from_json(record) for record in saved.story["resizes"]]
        evaluated = min(int(saved.story["evaluated"]), saved.snapshot.position.epoch)
        return cls(resizes, int(saved.story["recoveries"]), evaluated, saved.story["accuracy"])


class RunState:
    """The state of one run of the job `name`: drivers decide which workers compute, and record here what happens.

    `desired_workers` gives the number of workers at a position of a plan, `sinks` receive the run's events.
    """

    def __init__(
        self,
        course: Course,
        *,
        history: History,
        checkpoints: Checkpoints,
        sinks: Sequence[events.Sink],
        desired_workers: Callable[[Plan, Position], int],
        stop_requested: Callable[[], bool],
        saved: Saved | None = None,
        name: str = "a run",
        check_held: Callable[[], None] = lambda: None,
    ) -> None:
        """Begin the run, or continue from `saved`; `check_held` raises Superseded if another run has the folder."""
        self.name = name
        self.spec = course.spec
        self.stop_requested = stop_requested
        self._course = course
        self._desired_workers = desired_workers
        self._check_held = check_held
        self._history = history
        self._checkpoints = checkpoints
        self._sinks = sinks
        self.expected = course.plan  # the plan with the stage that the next look will probably begin, if it begins one
        self._looks: tuple[BatchDecision, ...] = ()  # the last two outcomes
        self.totals = RunTotals.restored(saved)
        self.update = 0  # of the newest committed state; a recovery sets it back to repeat updates
        self._before = 0.0  # seconds of training before a resume
        known = None
        if saved is not None:
            self.update = saved.snapshot.position.update
            self._before = float(saved.story["seconds"])
            known = saved.story.get("arithmetic")
        self.arithmetics = Arithmetics(
            required=self.spec.workers.same_arithmetic == "Required",
            publish=lambda workers, line: self.publish(events.ArithmeticDiffers(workers, line)),
            known=known,
        )
        self.saved_update = self.update  # of the newest whole checkpoint
        self._save_tried_at = time.monotonic()
        self._saves_failing_since = self._save_tried_at
        self._failed_saves = 0  # in a row
        self._save_error: CheckpointError | None = None
        self._began: float | None = None  # wall-clock time at which the first update since then began
        self._seconds = 0.0
        self._recovered_at = -1
        self._fruitless = 0
        self._waiting_for = ""

    @property
    def where(self) -> str:
        """Return the job and the update as the beginning of a log line."""
        return f"{self.name}, update {self.update:,}"

    @property
    def plan(self) -> Plan:
        """Return the plan as decided so far."""
        return self._course.plan

    @property
    def position(self) -> Position:
        """Return the position after `update` updates of the plan as decided so far."""
        return self.plan.position_at(self.update)

    def desired_workers(self, position: Position, plan: Plan | None = None) -> int:
        """Return the number of workers at that position of `plan`, by default the plan as decided so far."""
        return self._desired_workers(plan or self.plan, position)

    def publish(self, event: events.Event) -> None:
        """Hand the event to every sink."""
        for sink in self._sinks:
            sink.handle(event)

    def record_rows(self, rows: Sequence[HistoryRow]) -> None:
        """Record committed updates, ignoring updates that the history has already. Raises CheckpointError."""
        for sent in rows:
            # Only the run knows when it began, so it sets the seconds of a row that a member has sent.
            if self._began is None:
                self._began = sent.committed_at - sent.compute_seconds - sent.exchange_seconds - sent.wait_seconds
            row = replace(sent, seconds=self._seconds_at(sent.committed_at))
            try:
                is_new = self._history.append(row)
            except OSError as error:
                raise not_written(error) from error
            if not is_new:
                continue  # another member has sent it, or a recovery repeated the update
            # After the history: a sink receives only what a reader of the files finds there too.
            self.publish(row)
            if row.decision is not None:
                self._take_decision(row, row.decision)
        self._waiting_for = ""
        if rows:
            # Also for rows that are in the history: after a recovery, the run repeats updates that were recorded.
            self.update = max(self.update, rows[-1].update)

    def _take_decision(self, row: HistoryRow, decision: BatchDecision) -> None:
        self._course = self._course.joined_by(decision)
        self._looks = (*self._looks[-1:], decision)
        self.expected = expected_plan(self._course, self._looks)
        used = self.plan.stage_at(row.update).batch_size
        looked = GrowthRow(row.update, row.epoch, decision.value, decision.wanted, used)
        quantity = self.spec.batch.growth.entry.quantity
        with reported_as_checkpoint_error():
            self._history.append_growth(looked)
        ahead = forecast_of(self.plan, self.expected)
        self.publish(events.Looked(looked, quantity, row.batch_size, self.plan, self._course.decisions, ahead))

    def flush(self) -> None:
        """Write the buffered history to disk. Raises CheckpointError and Superseded."""
        # First: a run that has taken over the folder cuts the history at its checkpoint, and rows after that would mix.
        self._check_held()
        with reported_as_checkpoint_error():
            self._history.flush()

    @property
    def reported(self) -> int:
        """Return the number of updates whose rows are in the history."""
        return self._history.last_update

    def record_evaluation(
        self, position: Position, values: Mapping[str, float], at: float, end: BestEvaluation | None = None
    ) -> None:
        """Record an evaluation at wall-clock time `at`, unless it is a repetition; without a test set, `values` is
        empty.

        `end` says what ends the training early with it, if anything does. Raises CheckpointError.
        """
        if position.epoch > self.totals.evaluated:
            self.totals.evaluated = position.epoch
            if values:
                metrics = {name: value for name, value in values.items() if name != "loss"}
                self.totals.accuracy = metrics.get("accuracy", self.totals.accuracy)
                seconds = self._seconds_at(at)
                row = EvaluationRow(position.update, float(position.epoch), seconds, values["loss"], metrics)
                with reported_as_checkpoint_error():
                    self._history.append_evaluation(row)
                self.publish(row)
        if end is not None and not self.plan.ended_early:
            self._course = self._course.ended(end.evaluated)
            self.expected = self.plan
            self.publish(events.EndedEarly(self.plan, self.spec, end))

    def evaluation_due(self, position: Position, judged: int | None = None) -> bool:
        """Return whether an evaluation at the end of an epoch is due at `position` and not yet done or judged.

        `judged` is the last epoch whose evaluation is judged, if known.
        """
        done = self.totals.evaluated
        if judged is not None:
            done = min(judged, done)
        return evaluation_due(self.spec, self.plan, position, done)

    def record_resize(self, update: int, before: int, after: int, pause_seconds: float) -> None:
        """Record that the number of members changed at this update boundary."""
        row = ResizeRow(update, before, after, round(pause_seconds, 6))
        self.totals.resizes.append(row)
        self.publish(row)

    def record_recovery(self, cause: str) -> None:
        """Record that a worker was lost and training goes on.

        Raises ClusterError after too many recoveries without an update in between.
        """
        self.totals.recoveries += 1
        self.publish(events.Recovered(self.update, cause))
        if self._recovered_at != self.update:
            self._fruitless = 0
        self._fruitless += 1
        self._recovered_at = self.update
        if self._fruitless > _MOST_FRUITLESS_RECOVERIES:
            raise ClusterError(
                f"workers were lost {self._fruitless} times at update {self.update} without an update "
                f"in between, last: {cause}. Check the workers' memory and logs; --resume goes on from the checkpoint."
            )

    def note(self, text: str) -> None:
        """Publish a line for the user."""
        self.publish(events.Note(text))

    def wait_for(self, cause: str) -> None:
        """Publish that training waits for `cause`, once until the next update."""
        if cause != self._waiting_for:
            self._waiting_for = cause
            self.publish(events.Waiting(cause))

    def checkpoint_due(self) -> bool:
        """Return whether a checkpoint is due: checkpoint.everySeconds have passed, or RETRY_SECONDS after a failure."""
        pause: float = self.spec.checkpoint.every_seconds
        if self._failed_saves:
            pause = min(pause, RETRY_SECONDS)
        return time.monotonic() - self._save_tried_at >= pause

    def save(self, snapshot: Snapshot) -> None:
        """Write a checkpoint. If it fails, publish that and go on, because the next checkpoint may succeed.

        Raises CheckpointError, or StorageError if the cause may pass, after FAILING_SECONDS of failures alone.
        """
        began = time.monotonic()
        self._save_tried_at = began
        try:
            self.flush()  # first: a resume cuts the history at its checkpoint, so no row before that may be missing
            size = self._checkpoints.save(snapshot, self.totals_json())
        except CheckpointError as error:
            now = time.monotonic()
            if not self._failed_saves:
                self._saves_failing_since = now
            self._failed_saves += 1
            self._save_error = error
            self.publish(events.CheckpointFailed(str(error)))
            failing_seconds = now - self._saves_failing_since
            if self._failed_saves >= LEAST_FAILURES and failing_seconds >= FAILING_SECONDS:
                raise type(error)(
                    f"no checkpoint could be written for {failing_seconds:.0f} s, in {self._failed_saves} tries; "
                    f"the newest is of update {self.saved_update:,}. The last error: {error}"
                ) from error
            return
        self._failed_saves = 0
        self._save_error = None
        self.saved_update = snapshot.position.update
        self.publish(events.CheckpointSaved(self.saved_update, time.monotonic() - began, size))

    def save_last(self, snapshot: Snapshot) -> None:
        """Write a checkpoint, retrying for LAST_SECONDS. Raises CheckpointError if every attempt fails."""

        def write() -> None:
            self.save(snapshot)
            self.check_saved()

        storage.retried(write, storage.LAST_SECONDS)

    def check_saved(self) -> None:
        """Raise the error of the last checkpoint if it failed."""
        if self._save_error is not None:
            raise self._save_error

    def checkpoint_after(self, update: int) -> Saved | None:
        """Return the newest whole checkpoint if it is ahead of `update`, else None."""
        if self.saved_update <= update:
            return None
        saved = self._checkpoints.load_latest(self.note)
        if saved is None or saved.snapshot.position.update <= update:
            return None
        return saved

    def totals_json(self) -> dict[str, Any]:
        """Return the totals, the seconds of training and the arithmetic in the form that checkpoints store."""
        return {"seconds": self.seconds, **self.totals.to_json(), "arithmetic": self.arithmetics.to_json()}

    @property
    def seconds(self) -> float:
        """Return the seconds of training since the first update began, including the time before a resume."""
        if self._began is None:
            return self._before
        return self._before + time.time() - self._began

    def _seconds_at(self, at: float) -> float:
        """Return the seconds of training at a wall-clock time, never decreasing although members' clocks differ."""
        since = 0.0
        if self._began is not None:
            since = at - self._began
        self._seconds = max(self._seconds, self._before + since)
        return round(self._seconds, 6)
