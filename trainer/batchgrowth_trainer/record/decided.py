"""The decisions made while a run trained, as its state holds them: batch sizes, the best evaluation, an early end.

A checkpoint has the state, so it says what was decided until then. Whether a job can go on from a checkpoint
depends on that too: `foreign_refused` in checkpoint.py asks `ThisJob`, and refuses the checkpoint of another job.
"""

from collections.abc import Iterable, Mapping
from typing import Any
from zlib import crc32

import torch
from batchgrowth.evaluations import BestEvaluation, early_end
from batchgrowth.growth_decisions import Course
from batchgrowth.plan import MOST_DECISIONS, BatchDecision, Plan, make_plan
from batchgrowth.same_updates import what_differs
from batchgrowth.spec import JobSpec, WatchedMetric, mathematics
from torch import Tensor

from batchgrowth_trainer.record.snapshot import BEST, Snapshot

# --- The decisions of a measured growth: their number, and three numbers for each, before the memory of the course ---

COURSE = "growth.course"
"""Name of the vector with the decisions and the memory of the growth."""
_COUNT = 0
_FIRST = 1
_WIDTH = 3
COURSE_BEGINS = _FIRST + _WIDTH * MOST_DECISIONS
"""Index in the vector at which the memory of the course begins."""


def decisions_in(tensors: Mapping[str, Tensor]) -> tuple[BatchDecision, ...]:
    """Return the decisions in the tensors of a replica or a checkpoint."""
    if COURSE not in tensors:
        return ()
    numbers = tensors[COURSE].tolist()
    count = int(numbers[_COUNT])
    rows = (numbers[_FIRST + _WIDTH * index :][:_WIDTH] for index in range(count))
    return tuple(BatchDecision(int(update), int(wanted), value) for update, wanted, value in rows)


def write_decisions(vector: Tensor, decisions: Iterable[BatchDecision]) -> None:
    """Write the decisions into the vector, shape (length,)."""
    numbers = [number for one in decisions for number in (one.update, one.wanted, one.value)]
    vector[_COUNT] = len(numbers) // _WIDTH
    vector[_FIRST : _FIRST + len(numbers)] = torch.tensor(numbers, dtype=torch.float64)


# --- What evaluations decided: a number for the metric, then the numbers of BestEvaluation ---

STOP = "evaluation.stopEarly"
RECORD = f"{BEST}record"


def judged_in(tensors: Mapping[str, Tensor], name: str, watched: WatchedMetric | None) -> BestEvaluation | None:
    """Return the record of that name from the tensors of a replica or a checkpoint.

    None if there is no such record, or it is for another metric or mode.
    """
    if watched is None or name not in tensors:
        return None
    mark, evaluated, value, update, epoch, misses = tensors[name].tolist()
    if mark != mark_of(watched):
        return None
    return BestEvaluation(int(evaluated), value, int(update), int(epoch), int(misses))


# --- The course that follows from a state ---


def course_of(spec: JobSpec, tensors: Mapping[str, Tensor], plan: Plan) -> Course:
    """Return the course of the training that has the state `tensors`; without tensors, a new course.

    `plan` is the plan of the spec alone.
    """
    return Course(spec, decisions_in(tensors), early_end_in(spec, tensors), plan)


def early_end_in(spec: JobSpec, tensors: Mapping[str, Tensor]) -> int | None:
    """Return the epoch after which stopEarly ended the training that has the state `tensors`; None if it has not."""
    judged = judged_in(tensors, STOP, spec.evaluation.stop_early)
    return None if judged is None else early_end(spec, judged)


def mark_of(watched: WatchedMetric) -> int:
    """Return a number that identifies the metric and the mode."""
    return crc32(f"{watched.mode} {watched.metric}".encode())


# --- Whether a job can go on from a checkpoint ---


class ThisJob:
    """Judges whether a job can go on from a checkpoint that it finds."""

    def __init__(self, spec: JobSpec, plan: Plan | None = None) -> None:
        self._spec = spec
        self._plan = plan or make_plan(spec)
        self.mathematics = mathematics(spec)

    def what_differs(self, there: Mapping[str, Any], snapshot: Snapshot) -> str:
        """Return how the updates done would have differed in this job; "" if they would not. `there` is the mathematics
        that led to the snapshot.
        """
        return what_differs(there, self._spec, snapshot.position, decisions_in(snapshot.tensors))

    def is_on_plan(self, snapshot: Snapshot) -> bool:
        """Return whether this job's plan is at the snapshot's position after as many updates."""
        position = snapshot.position
        course = course_of(self._spec, snapshot.tensors, self._plan)
        return course.plan.position_at(position.update) == position
