"""Interprets the observed state: the spec and its plan, the position, and whether the job is over (seen/outcome.py)."""

from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from batchgrowth.contract.progress import Progress
from batchgrowth.contract.status import JobStatus, RetriesStatus
from batchgrowth.manifest.reading import StoredJob
from batchgrowth.plan import BatchDecision, Plan, Stage
from batchgrowth.spec import JobSpec

from batchgrowth_operator.seen.clock import Clock, seconds_since
from batchgrowth_operator.seen.observed import Observed, condition, stored_status
from batchgrowth_operator.seen.outcome import (
    Outcome,
    job_outcome,
    next_retries,
)
from batchgrowth_operator.seen.problems import Problem, cluster_problem
from batchgrowth_operator.seen.progress import job_text, stored, training_state, undecided
from batchgrowth_operator.seen.storage import Storage, storage_of
from batchgrowth_operator.seen.trainer_pods import is_running
from batchgrowth_operator.settings import Defaults

MOST_TURNS = 5
"""Turns of a condition that are shown at once; the last of them, and those after it, count as flapping."""


class Mode(Enum):
    """Whether a job trains, is suspended or is over."""

    ACTIVE = "active"
    SUSPENDED = "suspended"
    OVER = "over"


class ClusterPolicy(Enum):
    """What to do with the DaskCluster and the workers: apply them, leave them unchanged, or delete them."""

    APPLY = "apply"
    KEEP = "keep"
    DELETE = "delete"


@dataclass(frozen=True, kw_only=True)
class Situation:
    """A job whose spec has a plan. Facts that follow from it are computed once, when first used."""

    seen: Observed
    defaults: Defaults
    clock: Clock
    stored: StoredJob
    """The job as the API server has it."""
    spec: JobSpec
    undecided: Plan
    """The plan that follows from the spec alone."""
    plan: Plan
    """The plan that follows from the decisions of a measured growth as well."""
    expected: Plan
    """That plan with the stage that the trainer forecasts, if it forecasts one."""
    decisions: tuple[BatchDecision, ...]
    forgotten: int
    """The number of stages before the first of the decisions."""
    previous: JobStatus
    """The stored status."""
    report: Progress | None
    """The trainer's progress unless it is older than that status."""
    misfit: str
    """Why a report that exists is not used; empty otherwise."""
    update: int
    """The number of updates done."""
    retries: RetriesStatus
    """What fruitless retries of the trainer are counted from."""
    outcome: Outcome | None
    """How the job ended; None if it has not."""

    @cached_property
    def mode(self) -> Mode:
        """Return whether the job trains, is suspended or is over; a suspended job that ended is over."""
        if self.outcome is not None:
            return Mode.OVER
        if self.spec.suspend:
            return Mode.SUSPENDED
        return Mode.ACTIVE

    @cached_property
    def quantity(self) -> str:
        """Return the quantity that the growth rule measures; empty if the plan follows from the spec alone."""
        quantity: str = self.spec.batch.growth.entry.quantity
        return quantity

    @cached_property
    def stage(self) -> Stage:
        """Return the stage of the next update; the last stage at the end."""
        return self.plan.stage_at(self.update)

    @cached_property
    def storage(self) -> Storage:
        """Return where the job's checkpoints are kept."""
        return storage_of(self.spec, self.seen, self.defaults, self.clock)

    @cached_property
    def is_trainer_running(self) -> bool:
        """Return whether a trainer pod may still be working."""
        return is_running(self.seen, self.storage.is_kept, self.clock)

    @cached_property
    def cluster_policy(self) -> ClusterPolicy:
        """Return what to do with the cluster, which is never deleted while a trainer may write its last checkpoint."""
        if self.mode is Mode.ACTIVE:
            return ClusterPolicy.APPLY
        if self.is_trainer_running:
            return ClusterPolicy.KEEP
        retention = self.spec.cluster_retention
        if self.outcome is not None and retention == "Retain":
            return ClusterPolicy.KEEP
        if self.outcome is not None and retention == "RetainOnFailure" and not self.outcome.succeeded:
            return ClusterPolicy.KEEP
        return ClusterPolicy.DELETE

    @cached_property
    def cluster_problem(self) -> Problem | None:
        """Return the first problem that keeps the scheduler or the workers from running; None if there is none."""
        return cluster_problem(self.seen, self.clock)  # notes in the clock when the answer changes

    @cached_property
    def joined(self) -> int:
        """Return the number of workers that can train: the smaller of the trainer's count and the number of ready pods.

        A pod is ready before its worker has registered and loaded the data, and the trainer notices the loss of a pod
        late. Without a running trainer the pods count.
        """
        pods = int(((self.seen.workers or {}).get("status") or {}).get("readyReplicas", 0))
        if self.report is None or self.report.ready is None or not self.is_trainer_running:
            return pods
        return min(pods, self.report.ready)

    @cached_property
    def report_age_seconds(self) -> float:
        """Return the seconds since the report was first seen; 0 if this pass is the first to see it.

        An operator before this one may have seen it first: the status says when. The status is written less often than
        reports come, and this process saw each report that is newer.
        """
        known = self.previous.trainer_status
        if self.report is None or known is None:
            return self.seen.report_age_seconds
        if (known.start, known.update) != (self.report.start, self.report.update):
            return self.seen.report_age_seconds
        return max(self.seen.report_age_seconds, seconds_since(known.last_updated_time, self.seen.now))


def situate(seen: Observed, defaults: Defaults, clock: Clock) -> Situation:
    """Return the situation of the job. Raises SpecError if its spec is refused, PlanError if it has no plan."""
    text = job_text(seen)
    job = stored(text)
    previous = stored_status(seen)
    training = training_state(text, seen, previous)
    retries = next_retries(seen, previous.retries, training.update)
    return Situation(
        seen=seen,
        defaults=defaults,
        clock=clock,
        stored=job,
        spec=job.job.spec,
        undecided=undecided(text),
        plan=training.plan,
        expected=training.expected,
        decisions=training.decisions,
        forgotten=training.forgotten,
        previous=previous,
        report=training.report,
        misfit=training.misfit,
        update=training.update,
        retries=retries,
        outcome=job_outcome(seen, job.job.spec, training.plan, previous, retries, clock),
    )


def is_held(status: JobStatus, kind: str) -> bool:
    """Return whether the status keeps the condition bad because it flaps."""
    if status.flapping is None or condition(status, kind) is None:
        return False
    return any(one.type == kind and one.turns >= MOST_TURNS for one in status.flapping.conditions)
