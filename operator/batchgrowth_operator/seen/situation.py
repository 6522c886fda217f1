"""Interprets the observed state: the spec and its plan, the position, and whether the job is over (seen/outcome.py).

`Situation.cluster_policy` decides whether the job's cluster is kept or released.
"""

from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from batchgrowth.contract.progress import LARGEST_START, LONGEST_PERIOD_SECONDS, Progress
from batchgrowth.contract.status import JobStatus, RetriesStatus
from batchgrowth.errors import Fault, SpecError
from batchgrowth.manifest.reading import StoredJob
from batchgrowth.plan import BatchDecision, Plan, Stage, make_plan
from batchgrowth.same_updates import what_differs
from batchgrowth.spec import JobSpec, mathematics

from batchgrowth_operator.seen.clock import Clock, seconds_since
from batchgrowth_operator.seen.observed import WORKER, Observed, condition, stored_status
from batchgrowth_operator.seen.outcome import Outcome, epochs_of, job_outcome, next_retries
from batchgrowth_operator.seen.problems import cluster_problem, held_back, workers_problem
from batchgrowth_operator.seen.progress import (
    TrainingState,
    is_awaited,
    job_text,
    remarks_of,
    stored,
    training_state,
    undecided,
)
from batchgrowth_operator.seen.refused_objects import Problem
from batchgrowth_operator.seen.storage import Storage, storage_of
from batchgrowth_operator.seen.trainer_pods import is_cut_off, is_running, is_stopped
from batchgrowth_operator.settings import Defaults

MOST_TURNS = 5
"""Turns of a condition from which it counts as flapping; the turns before are shown at once."""

FRESH_SECONDS = 2 * LONGEST_PERIOD_SECONDS
FRESH_UPDATES = 3
"""Age of the newest report, in seconds and in updates, up to which the trainer counts as committing updates."""


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
    remarks: tuple[Fault, ...]
    """What in the spec can never act in that plan, or wastes workers."""
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
    reported_epochs: int | None
    """The smaller number of epochs of which the report is; None if it is of the spec's."""
    retries: RetriesStatus
    """What fruitless retries of the trainer are counted from."""
    outcome: Outcome | None
    """How the job ended; None if it has not."""
    awaited_start: int | None = None
    """The number of the trainer's next start, if an earlier one has stopped and no trainer runs; None otherwise."""

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

    @property
    def is_report_awaited(self) -> bool:
        """Return whether the trainer has stopped and been started again, and has not reported since."""
        return self.awaited_start is not None or (self.report is None and is_awaited(self.previous.trainer_status))

    @property
    def is_state_lost(self) -> bool:
        """Return whether the trainer's next start begins at the first update, because nothing kept the last state."""
        return self.awaited_start is not None and not self.storage.is_kept

    @property
    def is_reporting(self) -> bool:
        """Return whether updates are reported as fast as the pace lets expect."""
        if self.report is None or self.is_report_awaited or not self.update:
            return False
        # No wake for this: the condition Stalled looks when reports have stopped.
        return self.report_age_seconds < max(FRESH_SECONDS, FRESH_UPDATES * (self.report.seconds_per_update or 0.0))

    @cached_property
    def trained_epochs(self) -> int:
        """Return the number of epochs to which the trainer trains: spec.epochs, unless that has grown since."""
        trained = None if self.seen.trainer is None else epochs_of(self.seen.trainer)
        if trained is None:  # an earlier operator made the trainer's Job, or nobody has yet
            trained = self.reported_epochs
        return self.spec.epochs if trained is None else trained

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
    def held_back(self) -> Problem | None:
        """Return the first object that cannot be written or deleted, or that is in the way; None if there is none."""
        return held_back(self.seen, self.clock)

    @cached_property
    def workers_problem(self) -> Problem | None:
        """Return the first problem that keeps workers from running; None if there is none."""
        return workers_problem(self.seen, self.clock)

    @cached_property
    def joined(self) -> int:
        """Return the number of workers that can train: the smaller of the trainer's count and the number of ready pods.

        A pod is ready before its worker has registered and loaded the data, and the trainer notices the loss of a pod
        late. Without a running trainer the pods count.
        """
        pods = int(((self.seen.workers or {}).get("status") or {}).get("readyReplicas", 0))
        if self.report is None or self.report.ready is None or not self.is_trainer_running:
            return pods
        if self.is_reporting:  # a worker whose node no longer answers Kubernetes may train on
            pods += sum(is_cut_off(pod) for pod in self.seen.pods_of(WORKER))
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
    retries = next_retries(seen, previous.retries, training.update, clock)
    outcome = job_outcome(seen, job.job.spec, training.plan, previous, retries, clock)
    awaited = None
    if outcome is None and not job.job.spec.suspend:
        is_kept = storage_of(job.job.spec, seen, defaults, clock).is_kept
        awaited = _awaited_start(seen, is_kept, training, previous, clock)
        if awaited is not None and not is_kept:
            training = TrainingState(
                plan=undecided(text), expected=undecided(text), decisions=(), report=None, update=0
            )
    s = Situation(
        seen=seen,
        defaults=defaults,
        clock=clock,
        stored=job,
        spec=job.job.spec,
        undecided=undecided(text),
        remarks=remarks_of(text),
        plan=training.plan,
        expected=training.expected,
        decisions=training.decisions,
        forgotten=training.forgotten,
        previous=previous,
        report=training.report,
        misfit=training.misfit,
        update=training.update,
        reported_epochs=training.reported_epochs,
        retries=retries,
        outcome=outcome,
        awaited_start=awaited,
    )
    _check_longer(s)
    return s


def _awaited_start(
    seen: Observed, is_kept: bool, training: TrainingState, previous: JobStatus, clock: Clock
) -> int | None:
    """Return the number of the trainer's next start if an earlier one has reported and no trainer runs."""
    known = previous.trainer_status
    if training.report is None and known is None:
        return None
    if not is_stopped(seen, is_kept, clock):
        return None
    if training.report is not None:
        return training.report.start + 1
    if known is None or known.start is None:
        return 1
    return known.start if is_awaited(known) else min(known.start + 1, LARGEST_START)


def _check_longer(s: Situation) -> None:
    """Raise SpecError if the trainer cannot go on with the spec's epochs, because it has begun to train for others."""
    before = s.trained_epochs
    if s.mode is Mode.OVER or before == s.spec.epochs or not s.update:
        return
    earlier = s.spec.model_copy(update={"epochs": before})
    position = make_plan(earlier, s.decisions).position_at(s.update)
    why = "the epochs of a job that has started may only grow"
    if before < s.spec.epochs:
        why = what_differs(mathematics(earlier), s.spec, position, s.decisions)
    if not why and s.mode is Mode.ACTIVE and not s.storage.is_kept:
        why = "it must start again to train for more, and its checkpoints are not kept, so training would begin again"
    if why:
        given = f"{s.spec.epochs:,}, and the trainer has trained as for {before:,}: {why}"
        raise SpecError([Fault("spec.epochs", given, f"write {before}, or make a new job")])


def is_held(status: JobStatus, kind: str) -> bool:
    """Return whether the status keeps the condition bad because it flaps."""
    if status.flapping is None or condition(status, kind) is None:
        return False
    return any(one.type == kind and one.turns >= MOST_TURNS for one in status.flapping.conditions)
