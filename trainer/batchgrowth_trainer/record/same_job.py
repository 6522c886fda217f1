"""Whether a job can go on from a checkpoint: its position, and the settings that led there.

`foreign_refused` in checkpoint.py asks this, and refuses the checkpoint of another job.
"""

from collections.abc import Mapping
from typing import Any

from batchgrowth.plan import Plan, make_plan
from batchgrowth.same_updates import what_differs
from batchgrowth.spec import JobSpec, mathematics

from batchgrowth_trainer.record.decided import course_of, decisions_in
from batchgrowth_trainer.record.snapshot import Snapshot


class ThisJob:
    """What a job says of a checkpoint that it finds."""

    def __init__(self, spec: JobSpec, plan: Plan | None = None) -> None:
        self._spec = spec
        self._plan = plan or make_plan(spec)
        self.mathematics = mathematics(spec)

    def what_differs(self, there: Mapping[str, Any], snapshot: Snapshot) -> str:
        """Return what of the updates done would be different in this job; "" if nothing. `there` is the mathematics
        that led to the snapshot.
        """
        return what_differs(there, self._spec, snapshot.position, decisions_in(snapshot.tensors))

    def is_on_plan(self, snapshot: Snapshot) -> bool:
        """Return whether the plan is at the snapshot's position after so many updates."""
        position = snapshot.position
        course = course_of(self._spec, snapshot.tensors, self._plan)
        return course.plan.position_at(position.update) == position
