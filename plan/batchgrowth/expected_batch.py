"""What the next look at a measured quantity will probably decide, so that workers can be requested ahead of it.

growth_decisions.py decides at that look; a wrong guess here costs a worker that idles for a while.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field

from batchgrowth.growth_decisions import Course
from batchgrowth.looks import LARGEST_BATCH
from batchgrowth.plan import BatchDecision, Plan
from batchgrowth.spec.workers import MOST_WORKERS

LONGEST_SECONDS = 2.0**53
"""The longest time until a look that a forecast may give, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedBatch:
    """The batch size that the look at update `update` will probably decide, and the workers of such a batch.

    `due_seconds` is the time until that look at the current pace; None if no pace is known.
    """

    __pydantic_config__: ClassVar = ConfigDict(strict=True, allow_inf_nan=False)

    update: int
    batch_size: Annotated[int, Field(ge=1, le=LARGEST_BATCH)]
    workers: Annotated[int, Field(ge=1, le=MOST_WORKERS)]
    due_seconds: Annotated[float, Field(ge=0, le=LONGEST_SECONDS)] | None = None


def expected_plan(course: Course, looks: Sequence[BatchDecision]) -> Plan:
    """Return the plan after the next look if the rule then asks for the same factor as between its last two looks.

    `looks` are the last two outcomes, or the only one, which counts as no change. Returns the course's own plan if the
    batch would stay as it is, if training ends before that look, or if a look asked for no positive, finite size.
    """
    # `asked` is NaN in a stored decision, and infinite if the quantity was too large to be measured.
    if not all(0 < look.asked < math.inf for look in looks):
        return course.plan
    before = looks[0]
    last = looks[-1]
    stage = course.plan.stages[-1]
    wanted = course.bounded(last.asked * (last.asked / before.asked), stage.wanted)
    plan = course.joined_by(BatchDecision(course.next_look(last.update), wanted, math.nan)).plan
    if plan.stages[-1].batch_size == stage.batch_size:
        return course.plan
    return plan


def expected_batch_of(plan: Plan, expected: Plan) -> ExpectedBatch | None:
    """Return the last stage of the expected plan as a forecast; None if `expected` is `plan` itself."""
    if expected is plan:
        return None
    stage = expected.stages[-1]
    return ExpectedBatch(update=stage.first_update, batch_size=stage.batch_size, workers=stage.workers)
