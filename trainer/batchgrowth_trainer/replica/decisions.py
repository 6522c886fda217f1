"""What is decided while a replica trains, as part of its state: a larger batch, an early end, and the best weights.

Growth: each update's measurements go to batchgrowth/growth_decisions.py, which asks the job's rule in
choices/growth_measured.py. `Replica.advance` then lets a grown batch come into force. A stopwatch serves the rule that
looks at a clock.

Evaluations: `BestEvaluation.after` in batchgrowth/evaluations.py decides which one is the best; `Judgement.take` keeps
its weights. All this moves to other members and into checkpoints with the weights, so it does not depend on which
member evaluated.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import astuple, replace

import torch
from batchgrowth.choices.growth_measured import CustomRule
from batchgrowth.errors import WorkloadError
from batchgrowth.evaluations import BestEvaluation, early_end
from batchgrowth.growth_decisions import Course, Measured
from batchgrowth.looks import NOT_TIMED, Timing
from batchgrowth.plan import BatchDecision, Plan, Step
from batchgrowth.position import Position
from batchgrowth.shards import busiest
from batchgrowth.spec import JobSpec, WatchedMetric
from torch import Tensor

from batchgrowth_trainer.record.decided import (
    COURSE,
    COURSE_BEGINS,
    RECORD,
    STOP,
    decisions_in,
    judged_in,
    mark_of,
    write_decisions,
)
from batchgrowth_trainer.record.snapshot import BEST
from batchgrowth_trainer.replica.flat import LOSS, SHARD_SQUARES, Sums, largest_shard
from batchgrowth_trainer.user_errors import reported_as_workload_error
from batchgrowth_trainer.workload import Workload

# --- Growth ---


class Stopwatch:
    """Holds the timing of the last update until the row of the next update carries it.

    The first update of a generation is not timed, because it also allocates buffers and fills caches.
    """

    def __init__(self) -> None:
        self.timing = NOT_TIMED
        self._warm = False

    def lap(self, step: Step, workers: int, seconds: float) -> None:
        """Keep the `seconds` of an update that `workers` workers computed."""
        if self._warm:
            self.timing = Timing(seconds, busiest(step.examples, step.shards, workers))
        self._warm = True


_MOST_WAITING = 256


class GrowthState:
    """The job's course, with its memory if the growth is measured.

    `tensors()` has both in a vector, shape (length,), float64. The memory is written there only when the vector is
    asked for, since reading and writing a tensor's numbers at each update takes longer than the sums. For the
    same reason updates wait in a list until the next look, or until there are many, and are then taken into account one
    after another.
    """

    def __init__(self, spec: JobSpec, device: torch.device) -> None:
        self.course = Course(spec)
        self.measures = self.course.measures
        """Whether updates are measured; if not, the growth need not be asked about them."""
        length = COURSE_BEGINS + self.course.memory if self.measures else 0
        self._vector = torch.zeros(length, dtype=torch.float64, device=device)
        self._memory = [0.0] * self.course.memory
        self._is_written = True
        self._waiting: list[tuple[Step, Sums, float]] = []
        self._recorded: dict[int, BatchDecision] = {}  # by update
        self._recorded_until = 0
        self.is_users = False
        """Whether a look may ask a function of the user's."""
        if self.course.is_measured:
            rule = self.course.rule  # a rule that cannot be loaded is a fault of the job before its first update
            self.is_users = isinstance(rule, CustomRule) or type(rule).__module__.partition(".")[0] != "batchgrowth"

    def learning_rate(self, step: Step) -> float:
        """Return the update's learning rate: the step's, or AdaScale's."""
        return self.course.learning_rate(step, self._memory)

    def try_out(self) -> None:
        """Ask a rule of the user's once, about made-up measurements at its first look, and drop the answer.

        Raises WorkloadError if the rule raises an error, or gives an answer that `after` cannot use.
        """
        plan = self.course.plan
        first = self.course.next_look(0)
        if not self.is_users or first >= plan.updates:
            return
        step = plan.step_at(plan.position_at(first - 1))
        examples = float(step.examples)
        # A gradient of norm 1 with noise of trace 1, and a mean loss of 1.
        measured = Measured(
            examples=step.examples, shards=step.shards, loss=examples, shard_squares=examples + step.shards,
            square=examples**2, timing=Timing(1.0, step.examples),
        )  # fmt: skip
        with self._reported("on made-up measurements, before the first update,"):
            self.course.after(step, measured, [0.0] * self.course.memory)

    def _reported(self, when: str) -> AbstractContextManager[None]:
        return reported_as_workload_error(
            f"growth {self.course.spec.batch.growth.type} {when}",
            "call the function with a batchgrowth.extend.Look in Python to see the whole traceback",
        )

    def repeat(self, decisions: Iterable[BatchDecision], until: int) -> None:
        """Use these decisions, which the run has recorded, in place of the rule's until the update `until`.

        After a recovery these updates are made again. A rule that looks at a clock could decide otherwise, and the
        driver, whose plan follows the recorded decisions, would end the training at another update.
        """
        self._recorded = {one.update: one for one in decisions}
        self._recorded_until = until

    def after(self, step: Step, sums: Sums, norm: float) -> BatchDecision | None:
        """Take an update into account, and return the outcome of a look; None if no look was due.

        `norm` is the norm of the mean gradient. Raises WorkloadError if the rule raises an error.
        """
        self._waiting.append((step, sums, norm))
        if self.course.is_due(step.after) or len(self._waiting) == _MOST_WAITING:
            return self._catch_up()
        return None

    def _catch_up(self) -> BatchDecision | None:
        """Take the waiting updates into account, and return the outcome of the last; earlier ones have no look due."""
        waiting = self._waiting
        self._waiting = []
        decision = None
        self._is_written = self._is_written and not waiting
        for step, sums, norm in waiting:
            measured = Measured(
                examples=step.examples, shards=step.shards, loss=sums.by_name[LOSS.name],
                shard_squares=sums.by_name.get(SHARD_SQUARES.name, 0.0) / largest_shard(step),
                square=(norm * step.examples) ** 2, timing=sums.timing,
            )  # fmt: skip
            with self._reported(f"after update {step.after.update}"):
                course, decision, self._memory = self.course.after(step, measured, self._memory)
            if decision is not None and decision.update <= self._recorded_until:
                unchanged = replace(decision, wanted=self.course.plan.stage_at(step.position.update).wanted)
                decision = self._recorded.get(decision.update, unchanged)
                course = self.course.joined_by(decision)
            if course is not self.course:  # a look has changed the batch
                self.course = course
                write_decisions(self._vector, course.decisions)
        return decision

    def tensors(self) -> dict[str, Tensor]:
        """Return the live vector by its name; empty if nothing is measured."""
        self._catch_up()
        if not self._is_written:
            self._vector[COURSE_BEGINS:] = torch.tensor(self._memory, dtype=torch.float64)
            self._is_written = True
        return {COURSE: self._vector} if self.measures else {}

    def synchronize(self) -> None:
        """Read the course and its memory again, after the vector was written."""
        decisions = decisions_in(self.tensors())
        self._memory = self._vector[COURSE_BEGINS:].tolist()
        if decisions != self.course.decisions:
            self.course = Course(self.course.spec, decisions)


# --- Evaluations ---


class Judgement:
    """The decisions from a job's evaluations; `best.NAME` keeps copies of the live vectors `weights`.

    `tensors()` has a float64 vector for keepBest and one for stopEarly: a number for the metric, then the numbers of
    BestEvaluation.
    """

    def __init__(self, spec: JobSpec, weights: Mapping[str, Tensor], device: torch.device) -> None:
        self._spec = spec
        evaluation = spec.evaluation
        named = ((STOP, evaluation.stop_early), (RECORD, evaluation.keep_best))
        self._watched: dict[str, WatchedMetric] = {name: watched for name, watched in named if watched is not None}
        self._records = {name: torch.zeros(1 + len(astuple(BestEvaluation())), dtype=torch.float64, device=device)
                         for name in self._watched}  # fmt: skip
        self._best = {f"{BEST}{name}": torch.zeros_like(vector) for name, vector in weights.items()}
        if evaluation.keep_best is None:
            self._best = {}
        self._judged = dict.fromkeys(self._watched, BestEvaluation())
        self._end: int | None = None
        self._write()

    def take(self, position: Position, values: Mapping[str, float], weights: Mapping[str, Tensor]) -> None:
        """Take an evaluation of these weights into account; a known evaluation changes nothing."""
        for name, watched in self._watched.items():
            before = self._judged[name]
            now = self._judged[name] = before.after(position, values[watched.metric], watched)
            if name == RECORD and now.update != before.update:
                for each, vector in weights.items():
                    self._best[f"{BEST}{each}"].copy_(vector)
        self._write()

    def shortened(self, plan: Plan) -> Plan:
        """Return the plan, cut after the epoch in which stopEarly ended the training, if it did."""
        return plan if self._end is None else plan.until(self._end)

    def known(self, epoch: int) -> int:
        """Return the last epoch, up to `epoch`, whose evaluation was judged; `epoch` itself if the job judges no
        evaluation.
        """
        return min([epoch, *(judged.evaluated for judged in self._judged.values())])

    @property
    def is_asked(self) -> bool:
        """Return whether the job asks for the best weights or an early end."""
        return bool(self._watched)

    @property
    def end(self) -> BestEvaluation | None:
        """Return stopEarly's best evaluation if it has ended the training early; None if it has not."""
        return None if self._end is None else self._judged[STOP]

    def tensors(self) -> dict[str, Tensor]:
        """Return the live vectors by name; empty if nothing is judged."""
        return self._records | self._best

    def synchronize(self) -> None:
        """Read the vectors after something wrote them; drop a best value that is for another metric or mode."""
        for name, watched in self._watched.items():
            self._judged[name] = judged_in(self._records, name, watched) or BestEvaluation()
        self._write()

    def best_state_dict(
        self, exported: Callable[[], dict[str, Tensor]], weights: Mapping[str, Tensor]
    ) -> dict[str, Tensor] | None:
        """Return `exported()` while the model has the weights of the best evaluation; None if there is none."""
        if RECORD not in self._judged or not self._judged[RECORD].update:
            return None
        # `exported` reads the model, so the model has the best weights during the call.
        kept = {name: vector.clone() for name, vector in weights.items()}
        for name, vector in weights.items():
            vector.copy_(self._best[f"{BEST}{name}"])
        try:
            return exported()
        finally:
            for name, vector in weights.items():
                vector.copy_(kept[name])

    def _write(self) -> None:
        for name, watched in self._watched.items():
            numbers = (mark_of(watched), *astuple(self._judged[name]))
            self._records[name].copy_(torch.tensor(numbers, dtype=torch.float64))
        if STOP in self._judged:
            self._end = early_end(self._spec, self._judged[STOP])


def check_metrics(spec: JobSpec, workload: Workload) -> None:
    """Raise WorkloadError if the workload lacks a metric that the job watches."""
    names = metric_names(workload)
    for field, watched in (("keepBest", spec.evaluation.keep_best), ("stopEarly", spec.evaluation.stop_early)):
        if watched is not None and watched.metric not in names:
            remedy = f"give one of {', '.join(names)}" if names else "give the workload a test set"
            raise WorkloadError(f"spec.evaluation.{field}.metric: the evaluations have no {watched.metric!r}; {remedy}")


def metric_names(workload: Workload) -> list[str]:
    """Return the names of the values of an evaluation, in order; empty without a test set."""
    own = ("loss", *workload.metrics, *workload.whole_set_metrics)
    return [name if index == 0 else f"{test}.{name}" for index, test in enumerate(workload.test_sets) for name in own]
