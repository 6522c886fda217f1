"""The state of one run of one job: its position, its history, its checkpoints, and the events that it publishes."""

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Self

from batchgrowth.contract.metrics import ExchangeFigures
from batchgrowth.errors import BatchGrowthError, CheckpointError, ClusterError, Superseded
from batchgrowth.evaluations import BestEvaluation, evaluation_due
from batchgrowth.expected_batch import expected_batch_of, expected_plan
from batchgrowth.growth_decisions import Course
from batchgrowth.plan import BatchDecision, Plan, Stage, make_plan
from batchgrowth.position import Position

from batchgrowth_trainer.forecasting.online import OnlineForecast
from batchgrowth_trainer.pool.arithmetics import Arithmetics
from batchgrowth_trainer.pool.connection import SchedulerLost
from batchgrowth_trainer.record import storage
from batchgrowth_trainer.record.checkpoint import Checkpoints, Saved
from batchgrowth_trainer.record.decided import course_of
from batchgrowth_trainer.record.history import EvaluationRow, GrowthRow, History, HistoryRow, ResizeRow
from batchgrowth_trainer.record.snapshot import Snapshot
from batchgrowth_trainer.record.storage import not_written, reported_as_checkpoint_error
from batchgrowth_trainer.sinks import events

FAILING_SECONDS = 1800.0
"""The longest that training goes on while no checkpoint can be written."""
RETRY_SECONDS = 60.0
"""The longest time from a failed checkpoint to the next try, apart from the update under way."""
LEAST_FAILURES = 3
"""The fewest failures in a row that end a run; long updates may leave time for fewer in FAILING_SECONDS."""
_MOST_UNDONE = 3  # in a row, without a check in between that covers more
_MOST_FRUITLESS_RECOVERIES = 20  # in a row, without an update in between

log = logging.getLogger(__name__)


class Undo(Exception):
    """A check has found a worker that computes wrongly: training must go back to a state that a check covers."""

    def __init__(
        self, cause: str, update: int, covered: int = 0, workers: Sequence[str] = (), *, is_of_alone: bool = False
    ) -> None:
        """Keep the arguments: the check was made after `update`, and an earlier one, after update `covered`, found
        nothing; the run may know of one in between. `workers` are the names of the workers that compute wrongly.

        If `is_of_alone`, one of them has trained alone, and only checks that compare workers count: those that it made
        alone repeated its errors.
        """
        super().__init__(cause)
        self.workers = tuple(workers)
        self.update = update
        self.covered = covered
        self.is_of_alone = is_of_alone


@dataclass(slots=True)
class RunTotals:
    """Totals of a run, kept in checkpoints and the summary.

    `evaluated` is the last evaluated epoch, and `evaluation` what that evaluation found; None without a test set.
    """

    resizes: list[ResizeRow] = field(default_factory=list)
    recoveries: int = 0
    evaluated: int = 0
    accuracy: float | None = None
    evaluation: EvaluationRow | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the totals as checkpoints store them."""
        return {
            "resizes": [row.to_json() for row in self.resizes],
            "recoveries": self.recoveries,
            "evaluated": self.evaluated,
            "accuracy": self.accuracy,
            "evaluation": None if self.evaluation is None else self.evaluation.to_json(),
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
        position = saved.snapshot.position
        evaluated = min(int(saved.story["evaluated"]), position.epoch)
        found = saved.story.get("evaluation")
        evaluation = None
        if found is not None and found["update"] <= position.update:
            evaluation = EvaluationRow.from_json(found)
        return cls(resizes, int(saved.story["recoveries"]), evaluated, saved.story.get("accuracy"), evaluation)


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
        sinks: Sequence[events.Sink] | events.Sinks,
        desired_workers: Callable[[Plan, Position], int],
        stop_requested: Callable[[], bool],
        saved: Saved | None = None,
        name: str = "a run",
        check_held: Callable[[], None] = lambda: None,
        take_over: Callable[[], str] = str,
    ) -> None:
        """Begin the run, or continue from `saved`; `check_held` raises Superseded if another run has the folder.

        `take_over` makes the output folder this run's and returns a line for the user, or "". It is called once there
        is something to write: until then the workload is tried, and a run that fails leaves the folder as it was.
        """
        self.name = name
        self.spec = course.spec
        self.stop_requested = stop_requested
        self._course = course
        self._desired_workers = desired_workers
        self._check_held = check_held
        self._take_over = take_over
        self._has_begun = False
        self._history = history
        self._checkpoints = checkpoints
        self.publish: Callable[[events.Event], None] = events.Sinks.of(sinks).handle
        """Hands an event to every sink."""
        self.expected = course.plan  # the plan with the stage that the next look will probably begin, if it begins one
        self._looks: tuple[BatchDecision, ...] = ()  # the last two outcomes
        self._forecast = OnlineForecast(self._workers_of, lone_exchange=course.spec.exchange.entry.lone_exchange)
        self.totals = RunTotals.restored(saved)
        self.update = 0  # of the newest committed state; a recovery sets it back to repeat updates
        self.covered = 0  # update after which the newest check of the workers found nothing
        self.compared = 0  # the same of the newest check that compared workers with each other
        self._undone_in_a_row = 0
        self._before = 0.0  # seconds of training before a resume
        known = None
        if saved is not None:
            self.update = saved.snapshot.position.update
            self.covered = int(saved.story.get("covered", self.update))
            self.compared = int(saved.story.get("compared", self.covered))
            self.go_on_from(self.update)
            self._before = float(saved.story["seconds"])
            known = saved.story.get("arithmetic")
        self._most_covered = self.covered  # before training went back, if it did
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
        self._began: float | None = None  # wall-clock time at which this start's first update began
        self._seconds = 0.0
        self._recovered_at = -1
        self._fruitless = 0
        self._waiting_for = ""
        self._has_tried_saving = False
        self._told_of: set[str] = set()  # metrics, and the test loss, that were not finite

    @property
    def where(self) -> str:
        """Return the job and the update as the beginning of a log line."""
        return f"{self.name}, update {self.update:,}"

    @property
    def plan(self) -> Plan:
        """Return the plan as decided so far."""
        return self._course.plan

    @property
    def decisions(self) -> tuple[BatchDecision, ...]:
        """Return the decisions of a measured growth so far."""
        return self._course.decisions

    @property
    def position(self) -> Position:
        """Return the position after `update` updates of the plan as decided so far."""
        return self.plan.position_at(self.update)

    def desired_workers(self, position: Position, plan: Plan | None = None) -> int:
        """Return the number of workers at that position of `plan`, by default the plan as decided so far."""
        return self._desired_workers(plan or self.plan, position)

    def _workers_of(self, plan: Plan, stage: Stage) -> int:
        """Return the number of workers that a stage will probably have: the plan's, or fewer if the run wants fewer."""
        if not self.spec.exchange.entry.uses_workers:
            return 1
        return min(stage.workers, self.desired_workers(plan.position_at(stage.first_update), plan))

    def begin(self) -> None:
        """Take over the output folder, unless that is done. Raises CheckpointError and Superseded."""
        if self._has_begun:
            return
        self._check_held()
        moved = self._take_over()
        self._has_begun = True
        if moved:
            self.note(moved)
        found = self.totals.evaluation
        if found is not None and self._history.last_evaluated < found.update:
            with reported_as_checkpoint_error():
                self._history.append_evaluation(found)  # a crash lost its row, and the checkpoint has it

    def record_rows(self, rows: Sequence[HistoryRow]) -> None:
        """Record committed updates, ignoring updates that the history has already. Raises CheckpointError."""
        if rows and not self._has_begun:
            self.begin()
        for sent in rows:
            # Only the run knows when it began, so it sets the seconds of a row that a member has sent.
            if self._began is None:
                self._began = sent.committed_at - sent.compute_seconds - sent.exchange_seconds - sent.wait_seconds
            row = replace(sent, seconds=self._seconds_at(sent.committed_at))
            if row.update > self._history.last_update:
                outlook = self._forecast.seen(row, self.expected, is_newest=sent is rows[-1])
                if outlook is not None:
                    row = replace(row, outlook=outlook, remaining_seconds=round(outlook.remaining.value, 3))
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
        ahead = expected_batch_of(self.plan, self.expected)
        self.publish(events.Looked(looked, quantity, row.batch_size, self.plan, self._course.decisions, ahead))

    def flush(self) -> None:
        """Write the buffered history, and wait until the disk has it. Raises CheckpointError and Superseded."""
        # First: a run that has taken over the folder cuts the history at its checkpoint, and rows after that would mix.
        self._check_held()
        with reported_as_checkpoint_error():
            self._history.sync()

    @property
    def reported(self) -> int:
        """Return the number of updates whose rows are in the history."""
        return self._history.last_update

    def record_evaluation(
        self, position: Position, values: Mapping[str, float], at: float, end: BestEvaluation | None = None
    ) -> None:
        """Record an evaluation at wall-clock time `at`, unless it is a repetition; without a test set, `values` is
        empty.

        `end` is stopEarly's record if training ends early with this evaluation, else None. Raises CheckpointError.
        """
        self.begin()
        if position.epoch > self.totals.evaluated:
            self.totals.evaluated = position.epoch
            if values:
                metrics = {name: value for name, value in values.items() if name != "loss"}
                accuracy = metrics.get("accuracy", self.totals.accuracy)
                if accuracy is not None and not math.isfinite(accuracy):
                    accuracy = None
                self.totals.accuracy = accuracy
                seconds = self._seconds_at(at)
                row = EvaluationRow(position.update, float(position.epoch), seconds, values["loss"], metrics)
                with reported_as_checkpoint_error():
                    self._history.append_evaluation(row)
                self.totals.evaluation = row
                self.publish(row)
                self._tell_of_nan(row)
        if end is not None and not self.plan.ended_early:
            self._course = self._course.ended(end.evaluated)
            self.expected = self.plan
            self.publish(events.EndedEarly(self.plan, self.spec, end))

    def _tell_of_nan(self, row: EvaluationRow) -> None:
        """Say once of the test loss and of each metric that it is not finite."""
        for name, value in {"test loss": row.loss, **row.metrics}.items():
            if not math.isfinite(value) and name not in self._told_of:
                self._told_of.add(name)
                self.note(
                    f"update {row.update:,}: {name} is {value}, which is no finite number; summary.json has null for "
                    "it, and status leaves it out"
                )

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

    def record_figures(self, figures: ExchangeFigures, *, is_of_alone: bool = False) -> None:
        """Publish what the exchange did since the figures before, and note how far checks cover the training.

        `is_of_alone` says that a worker without peers made the checks.
        """
        checked = figures.checked_update or 0
        if checked > self._most_covered:
            self._most_covered = checked
            self._undone_in_a_row = 0
        if checked > self.covered:
            self.covered = checked
            if not is_of_alone:
                self.compared = checked
        self.publish(figures)

    def go_on_from(self, update: int) -> None:
        """Note that training goes on from the state after `update`; updates that are made again are not covered."""
        self.update = update
        self.covered = min(self.covered, update)
        self.compared = min(self.compared, update)

    def undo(self, why: Undo) -> None:
        """Go back to the newest checkpoint that a check covers, or to the beginning, and delete what came after it.

        Raises CheckpointError, and afterwards ClusterError if it has gone back more than _MOST_UNDONE times in a row.
        """
        covered = max(self.compared if why.is_of_alone else self.covered, why.covered)
        reached = max(why.update, self.update, self.reported)  # the rows before the check may not have come
        self.record_figures(ExchangeFigures(checks=1, differences=1))
        self._undone_in_a_row += 1
        self._check_held()
        # Checkpoints first: after a crash in between, a resume cuts the history at the checkpoint that it finds.
        self._checkpoints.drop_after(covered)
        saved = self._checkpoints.load_latest(self.note)
        recoveries = self.totals.recoveries + 1
        self.totals = RunTotals.restored(saved)
        self.totals.recoveries = recoveries
        position = Position() if saved is None else saved.snapshot.position
        with reported_as_checkpoint_error():
            self._history.truncate(position.update)
        self.saved_update = position.update
        self.covered = self._most_covered = covered
        self.go_on_from(position.update)
        tensors = {} if saved is None else saved.snapshot.tensors
        self._course = course_of(self.spec, tensors, make_plan(self.spec))
        self._looks = ()
        self.expected = self.plan
        undone = reached - position.update
        self.publish(events.Undone(str(why), undone, position, self.plan, self._course.decisions, why.workers))
        # Not before: a resume would go on from a checkpoint that is in doubt.
        if self._undone_in_a_row > _MOST_UNDONE:
            raise ClusterError(
                f"{why}. Training has gone back {_MOST_UNDONE} times already, and each time a worker computed wrongly "
                "before the next check. Take the machine out of service, then --resume; "
                f"the newest state that a check covers is of update {self.saved_update:,}."
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

        Raises CheckpointError, or StorageError if the cause may pass, after LEAST_FAILURES failures in a row over
        FAILING_SECONDS, and Superseded.
        """
        began = time.monotonic()
        self._save_tried_at = began
        try:
            self.begin()
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

    def try_saving(self, size: int) -> None:
        """Write and read a small checkpoint if there is room for one of `size` bytes, before training is paid for.

        Raises CheckpointError, or StorageError if a retry may help.
        """
        if not self._has_tried_saving:
            self._checkpoints.try_out(size)
            self._has_tried_saving = True

    def save_last(self, snapshot: Snapshot) -> None:
        """Write a checkpoint; retry for LAST_SECONDS if that may help. Raises CheckpointError if no try succeeds."""

        def write() -> None:
            self.save(snapshot)
            self.check_saved()

        storage.retried(write, storage.LAST_SECONDS)

    @contextmanager
    def saved_before_errors(self, save_newest: Callable[[], object]) -> Iterator[None]:
        """Call `save_newest`, which saves the newest committed state, before an error ends the block.

        A second Ctrl-C waits for nothing, a later trainer that has taken over owns the folder, and a state that must be
        undone is wrong: none of them saves. An error of `save_newest` is only logged, since the error that ends the
        block says more.
        """
        try:
            yield
        except (KeyboardInterrupt, Superseded, Undo):
            raise
        except BaseException as ending:
            try:
                save_newest()
            except Exception as error:
                # Without a scheduler no worker can be asked, and Dask says that by errors of many kinds.
                is_foreseen = isinstance(error, BatchGrowthError) or isinstance(ending, SchedulerLost)
                line = "%s: the state could not be saved before the run ends: %s"
                log.warning(line, self.where, error, exc_info=not is_foreseen)
            raise

    def save_if_newer(self, update: int, take: Callable[[], Snapshot]) -> None:
        """Save the state after `update`, which `take` returns, unless a checkpoint has it or the history lacks rows."""
        if self.saved_update < update <= self.reported:
            self.save(take())

    @property
    def what_is_saved(self) -> str:
        """Return a clause about the newest checkpoint, and what --resume does with it."""
        if not self.saved_update:
            return "there is no checkpoint to resume from"
        lost = ""
        if self.saved_update < self.update:
            lost = f", {self.update - self.saved_update:,} updates before the last one"
        return (
            f"the checkpoint of update {self.saved_update:,}{lost} is in {self._checkpoints.place}, "
            "and --resume continues from it"
        )

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
        return {
            "seconds": self.seconds,
            **self.totals.to_json(),
            "arithmetic": self.arithmetics.to_json(),
            "covered": self.covered,
            "compared": self.compared,
        }

    @property
    def seconds(self) -> float:
        """Return the seconds of training since the first update began, including the time before a resume.

        They are never less than those of the last row, although the clock may have been set back.
        """
        if self._began is None:
            return self._before
        return max(self._seconds, self._before + time.time() - self._began)

    def _seconds_at(self, at: float) -> float:
        """Return the seconds of training at a wall-clock time, never decreasing although members' clocks differ."""
        since = 0.0
        if self._began is not None:
            since = at - self._began
        self._seconds = max(self._seconds, self._before + since)
        return round(self._seconds, 6)
