"""One run of one job: where it stands, what it has told so far, and everything that is written down about it.

The drivers of the exchanges decide who computes; whatever happens they tell this object, which keeps the history,
the display, the metrics and the checkpoints, in one place.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from batchgrowth.errors import CheckpointError, ClusterError
from batchgrowth.evaluation import evaluation_due
from batchgrowth.plan import Plan, Position
from batchgrowth.spec import JobSpec

from batchgrowth_trainer.record.checkpoint import CheckpointStore, Saved
from batchgrowth_trainer.record.history import EvaluationRow, History, HistoryRow, ResizeRow
from batchgrowth_trainer.record.output import reported_as_checkpoint_error
from batchgrowth_trainer.record.snapshot import Snapshot
from batchgrowth_trainer.telling.display import Display
from batchgrowth_trainer.telling.telemetry import Telemetry

_MOST_FRUITLESS_RECOVERIES = 20


@dataclass(slots=True)
class Story:
    """What a run has to tell beyond its rows; goes into checkpoints and the summary."""

    resizes: list[ResizeRow] = field(default_factory=list)
    recoveries: int = 0
    evaluated: int = 0
    accuracy: float | None = None


class Run:
    """The state of a run. `wanted` says how many workers a position should have."""

    def __init__(
        self,
        spec: JobSpec,
        plan: Plan,
        *,
        history: History,
        checkpoints: CheckpointStore,
        display: Display,
        telemetry: Telemetry,
        wanted: Callable[[Position], int],
        stop_requested: Callable[[], bool],
        saved: Saved | None = None,
    ) -> None:
        self.spec, self.plan, self.wanted, self.stop_requested = spec, plan, wanted, stop_requested
        self.story = _story_of(saved)
        self.position = saved.snapshot.position if saved else Position()
        self._history, self._checkpoints, self._display, self._telemetry = history, checkpoints, display, telemetry
        self._before = float(saved.story["seconds"]) if saved else 0.0  # trained before a resume
        self._began: float | None = None  # by the wall clock, when the first update of this leg began
        self._saved_at, self._save_failed = time.monotonic(), ""
        self.saved_update = self.position.update
        self._seconds = 0.0
        self._recovered_at, self._fruitless = -1, 0
        self._waiting_for = ""

    # --- what the drivers tell --------------------------------------------------------------------------------

    def note_sent(self, count: int) -> None:
        """Members have sent so many bytes to each other, or to the server and back."""
        self._telemetry.sent(count)

    def note_rows(self, rows: Sequence[Sequence[float]]) -> None:
        """Updates were committed; each row ends with the wall-clock time of its commit. Known ones are ignored."""
        for values in rows:
            update, epoch, stage, batch_size, rate, loss, workers, compute, exchange, wait, at = values
            if self._began is None:
                self._began = at - compute - exchange - wait
            row = HistoryRow(int(update), epoch, int(stage), int(batch_size), rate, loss, int(workers),
                             compute, exchange, wait, self._since_began(at))  # fmt: skip
            with reported_as_checkpoint_error():
                new = self._history.append(row)
            if new:
                self._display.row(row)
                self._telemetry.row(row)
        self._waiting_for = ""
        if rows and int(rows[-1][0]) > self.position.update:
            self.reach(int(rows[-1][0]))

    def reach(self, update: int) -> None:
        """So many updates are committed; fewer than before where they have to be done again."""
        self.position = self.plan.position_at(update)

    def flush(self) -> None:
        """Have the history on the disk. Raises CheckpointError."""
        with reported_as_checkpoint_error():
            self._history.flush()

    @property
    def reported(self) -> int:
        """Updates whose rows are in the history."""
        return self._history.last_update

    def note_evaluation(self, position: Position, values: Mapping[str, float], at: float) -> None:
        """The model was evaluated at the end of an epoch; no values where the workload has no test set."""
        self.story.evaluated = max(self.story.evaluated, position.epoch)
        if not values:
            return
        metrics = {name: value for name, value in values.items() if name != "loss"}
        row = EvaluationRow(position.update, float(position.epoch), self._since_began(at), values["loss"], metrics)
        self.story.accuracy = metrics.get("accuracy", self.story.accuracy)
        with reported_as_checkpoint_error():
            new = self._history.append_evaluation(row)
        if new:
            self._display.evaluation(row)
            self._telemetry.evaluation(row)

    def evaluation_due(self, position: Position) -> bool:
        """Whether an epoch ends here whose evaluation is due and not done."""
        return evaluation_due(self.spec, self.plan, position, self.story.evaluated)

    def note_resize(self, update: int, before: int, after: int, pause_seconds: float) -> None:
        """The members changed at this update boundary."""
        row = ResizeRow(update, before, after, round(pause_seconds, 6))
        self.story.resizes.append(row)
        self._telemetry.resize(before, after, pause_seconds)
        self._display.resize(row)

    def note_recovery(self, what: str) -> None:
        """A member was lost and training goes on. Raises ClusterError when that has happened too often in one place."""
        self.story.recoveries += 1
        self._telemetry.recovery()
        self._display.note(f"update {self.position.update:,}: {what}; going on from the last committed update")
        self._fruitless = self._fruitless + 1 if self._recovered_at == self.position.update else 1
        self._recovered_at = self.position.update
        if self._fruitless > _MOST_FRUITLESS_RECOVERIES:
            raise ClusterError(
                f"workers were lost {self._fruitless} times at update {self.position.update} without an update "
                f"in between, last: {what}. Look at the workers' memory and logs; --resume goes on from the checkpoint."
            )

    def note_trained(self, sha256: str) -> None:
        """Every update is done; these are the weights."""
        self._display.trained(sha256)

    def note(self, text: str) -> None:
        """Something a person should see."""
        self._display.note(text)

    def note_ready(self, workers: int) -> None:
        """So many workers could train now."""
        self._display.ready(workers)

    def wait_for(self, what: str) -> None:
        """Training stands still until this is there; told once, until updates are done again."""
        if what != self._waiting_for:
            self._waiting_for = what
            self._display.wait_for(what)

    # --- checkpoints ------------------------------------------------------------------------------------------

    def checkpoint_due(self) -> bool:
        """Whether the time between two checkpoints is over."""
        return time.monotonic() - self._saved_at >= self.spec.checkpoint.every_seconds

    def save(self, snapshot: Snapshot) -> None:
        """Write a checkpoint. A failure is told, and training goes on: the next one may succeed."""
        self._saved_at = time.monotonic()
        began = time.perf_counter()
        try:
            self.flush()
            size = self._checkpoints.save(snapshot, self.story_json())
        except (CheckpointError, OSError) as error:
            self._save_failed = str(error)
            self._telemetry.checkpoint_failed()
            self._display.note(f"checkpoint failed: {error}")
            return
        self._save_failed, self.saved_update = "", snapshot.position.update
        self._display.checkpoint(self.saved_update)
        self._telemetry.checkpoint(time.perf_counter() - began, size)

    def check_saved(self) -> None:
        """Raise CheckpointError if the newest state could not be saved."""
        if self._save_failed:
            raise CheckpointError(self._save_failed)

    def checkpoint_after(self, update: int) -> Saved | None:
        """The newest whole checkpoint, if it is further than `update`: where to begin again when states are lost."""
        if self.saved_update <= update:
            return None
        saved = self._checkpoints.load_latest(self._display.note)
        return saved if saved is not None and saved.snapshot.position.update > update else None

    def story_json(self) -> dict[str, Any]:
        """What a checkpoint remembers of the story."""
        return {
            "seconds": self.seconds,
            "resizes": [row.to_json() for row in self.story.resizes],
            "recoveries": self.story.recoveries,
            "evaluated": self.story.evaluated,
            "accuracy": self.story.accuracy,
        }

    @property
    def seconds(self) -> float:
        """Seconds since the first update began, those before a resume included, the time between not."""
        return self._before + (0.0 if self._began is None else time.time() - self._began)

    def _since_began(self, at: float) -> float:
        began = at if self._began is None else self._began
        self._seconds = max(self._seconds, self._before + at - began)  # clocks of several machines: never backwards
        return round(self._seconds, 6)


def _story_of(saved: Saved | None) -> Story:
    if saved is None:
        return Story()
    told = saved.story
    resizes = [ResizeRow.from_json(record) for record in told["resizes"]]
    return Story(resizes, int(told["recoveries"]), int(told["evaluated"]), told["accuracy"])
