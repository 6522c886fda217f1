"""A job's growth as part of a replica's state; batchgrowth/growth_decisions.py decides whether the batch grows.

It hands each update's measurements to growth_decisions.py, which asks the job's rule in choices/growth_measured.py.
`Replica.advance` then lets a grown batch come into force. A stopwatch serves the rule that looks at a clock.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import replace

import torch
from batchgrowth.choices.growth_measured import CustomRule
from batchgrowth.growth_decisions import Course, Measured
from batchgrowth.looks import NOT_TIMED, Timing
from batchgrowth.plan import BatchDecision, Step
from batchgrowth.shards import busiest
from batchgrowth.spec import JobSpec
from torch import Tensor

from batchgrowth_trainer.record.decided import COURSE, COURSE_BEGINS, decisions_in, write_decisions
from batchgrowth_trainer.replica.flat import LOSS, SHARD_SQUARES, Sums, largest_shard
from batchgrowth_trainer.user_errors import reported_as_workload_error


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
    asked for, since a tensor's numbers cost more to read and write at each update than the sums themselves. For the
    same reason updates wait in a list until the next look, or until there are many, and are then taken into account one
    after another.
    """

    def __init__(self, spec: JobSpec, device: torch.device) -> None:
        self.course = Course(spec)
        self._measures = self.course.measures
        length = COURSE_BEGINS + self.course.memory if self.course.measures else 0
        self._vector = torch.zeros(length, dtype=torch.float64, device=device)
        self._memory = [0.0] * self.course.memory
        self._is_written = True
        self._waiting: list[tuple[Step, Sums, float]] = []
        self._recorded: dict[int, BatchDecision] = {}  # by update
        self._recorded_until = 0
        self._asks_user = False
        if self.course.is_measured:
            rule = self.course.rule  # a rule that cannot be loaded is a fault of the job before its first update
            self._asks_user = isinstance(rule, CustomRule) or type(rule).__module__.partition(".")[0] != "batchgrowth"

    def learning_rate(self, step: Step) -> float:
        """Return the learning rate of that update."""
        if not self._measures:
            return step.learning_rate
        return self.course.learning_rate(step, self._memory)

    def try_out(self) -> None:
        """Ask a rule of the user's once, about made-up measurements at its first look, and drop the answer.

        Raises WorkloadError if it raises an error, or answers what `after` cannot use.
        """
        plan = self.course.plan
        first = self.course.next_look(0)
        if not self._asks_user or first >= plan.updates:
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
        """Decide until the update `until` as these decisions do, which the run has recorded.

        After a recovery these updates are made again. A rule that looks at a clock could decide otherwise, and the
        driver, whose plan follows what it has recorded, would end the training elsewhere.
        """
        self._recorded = {one.update: one for one in decisions}
        self._recorded_until = until

    def asks_user(self, step: Step) -> bool:
        """Return whether a look after this update may ask a function of the user's."""
        return self._asks_user and self.course.is_due(step.after)

    def after(self, step: Step, sums: Sums, norm: float) -> BatchDecision | None:
        """Take an update into account, and return the outcome of a look; None if no look was due.

        `norm` is the norm of the mean gradient.
        """
        if not self._measures:
            return None
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
        return {COURSE: self._vector} if self.course.measures else {}

    def synchronize(self) -> None:
        """Read the course and its memory again, after the vector was written."""
        decisions = decisions_in(self.tensors())
        self._memory = self._vector[COURSE_BEGINS:].tolist()
        if decisions != self.course.decisions:
            self.course = Course(self.course.spec, decisions)
