"""From the observed state to its meaning: the spec and its plan, the position, and whether the job is over."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any, TypeVar

from batchgrowth import names
from batchgrowth.contract.progress import Progress
from batchgrowth.contract.status import Condition, FlappingCondition, JobStatus, RetriesStatus
from batchgrowth.manifest.reading import StoredJob
from batchgrowth.schedule.plan import BatchDecision
from batchgrowth.schedule.stages import Plan, Stage
from batchgrowth.spec import JobSpec
from pydantic import ValidationError

from batchgrowth_operator.seen.clock import seconds_since
from batchgrowth_operator.seen.observed import Observed
from batchgrowth_operator.seen.outcome import (
    Outcome,
    is_between_pods,
    is_running,
    last_exit,
    num_retries,
    outcome_of,
    truncated,
)
from batchgrowth_operator.seen.problems import Problem, cluster_problem, trainer_problem
from batchgrowth_operator.seen.progress import job_text, standing, stored, undecided
from batchgrowth_operator.seen.storage import Storage, storage_of
from batchgrowth_operator.settings import Defaults

# --- The status that is stored, and what it remembers of its conditions ---

MOST_TURNS = 5
"""Turns of a condition that are shown at once; the last of them, and those after it, count as flapping."""


def stored_status(seen: Observed) -> JobStatus:
    """The job's stored status, without fields that this version does not know or cannot read."""
    readable = {}
    for key, value in (seen.job.get("status") or {}).items():
        try:
            JobStatus.model_validate({key: value})
        except ValidationError:
            continue
        readable[key] = value
    return JobStatus.model_validate(readable)


def condition(status: JobStatus, kind: str) -> Condition | None:
    """The condition of that type, or None if it was never set."""
    return next((c for c in status.conditions if c.type == kind), None)


def turns_of(status: JobStatus, kind: str) -> FlappingCondition | None:
    """What the status remembers of the turns of a condition; None if it has not turned lately."""
    return next((c for c in (status.flapping.conditions if status.flapping else ()) if c.type == kind), None)


def is_held(status: JobStatus, kind: str) -> bool:
    """Whether the status keeps the condition bad because it flaps."""
    turns = turns_of(status, kind)
    return turns is not None and turns.turns >= MOST_TURNS and condition(status, kind) is not None


# --- Restarts of the trainer: bounds those that Kubernetes does not count, and shortens those that it delays ---
# A training that ended with exit code 75 may be restarted any number of times if it gets further, else
# MOST_FRUITLESS_RETRIES times. The ended pods are the count, so it survives the operator; no clock is compared with
# another. Kubernetes waits before it makes a Job's next pod: 10 s, then twice as long each time, up to ten minutes,
# also for pods that were evicted and with months between them. A Job that is made again starts at once.

MOST_FRUITLESS_RETRIES = 10
SHORTEST_LIFE_SECONDS = 30.0
"""Age from which a trainer's Job that waits is made again, so that a trainer that always fails does so slowly."""


def next_retries(seen: Observed, known: RetriesStatus | None, update: int) -> RetriesStatus:
    """What retries are counted from, now that `update` updates are done; an update that is repeated is no progress."""
    previous, ended = known or RetriesStatus(), num_retries(seen)
    if update > previous.update:
        return RetriesStatus(update=update, before=ended)
    return RetriesStatus(update=previous.update, before=min(previous.before, ended))  # a deleted Job's pods are gone


def fruitless(seen: Observed, since: RetriesStatus) -> Outcome | None:
    """The failure of a job whose trainer was retried too often since then; None if it may go on."""
    retries = _more_than(seen, since)
    if retries < MOST_FRUITLESS_RETRIES:
        return None
    text = f"The trainer ended {retries} times without getting past update {since.update:,}; last: {last_exit(seen)}"
    return Outcome(False, "RetriesFruitless", truncated(text))


def seconds_until_renewal(seen: Observed, since: RetriesStatus) -> float | None:
    """Seconds until the trainer's Job, which waits to make its next pod, should be made again; None if never.

    Its pods go with it, so not while they count retries since then, nor while the API server refuses new ones.
    """
    job = seen.trainer
    if job is None or _more_than(seen, since) or not is_between_pods(seen) or trainer_problem(seen) is not None:
        return None
    return max(0.0, SHORTEST_LIFE_SECONDS - seconds_since(job["metadata"].get("creationTimestamp"), seen.now))


def _more_than(seen: Observed, since: RetriesStatus) -> int:
    """The retries after those that a status counted."""
    return num_retries(seen) - since.before


# --- From the observed state to its meaning: the spec and its plan, the position, and whether the job is over ---

T = TypeVar("T")


class Mode(Enum):
    """Whether a job trains, is suspended or is over."""

    ACTIVE = "active"
    SUSPENDED = "suspended"
    OVER = "over"


class ClusterPolicy(Enum):
    """What happens to the DaskCluster and the workers: apply them, leave them as they are, or delete them."""

    APPLY = "apply"
    KEEP = "keep"
    DELETE = "delete"


@dataclass(frozen=True, kw_only=True)
class Situation:
    """A job whose spec has a plan. What follows from it is computed once, at its first use.

    `stored` is the job as the API server has it.

    `undecided` is the plan that follows from the spec alone, `plan` the one that follows from the `decisions` of a
    measured growth as well, and `expected` the one with the stage that the trainer forecasts, if it forecasts one;
    `forgotten` is the number of stages before the first of the decisions. `previous` is the stored status, `report`
    the trainer's progress unless it is older than that status, `misfit` why a report that exists is not used or empty,
    `update` the number of updates done, `outcome` how the job ended or None, and `retries` what fruitless retries
    are counted from.
    """

    seen: Observed
    defaults: Defaults
    stored: StoredJob
    undecided: Plan
    plan: Plan
    expected: Plan
    decisions: tuple[BatchDecision, ...]
    forgotten: int
    previous: JobStatus
    report: Progress | None
    misfit: str
    update: int
    outcome: Outcome | None
    retries: RetriesStatus
    _derived: dict[Callable[..., Any], Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def once(self, derive: Callable[["Situation"], T]) -> T:
        """What `derive` makes of this situation, computed at its first use; the caller does not change it.

        For modules that know the situation; what follows from it alone is a property.
        """
        if derive not in self._derived:
            self._derived[derive] = derive(self)
        result: T = self._derived[derive]
        return result

    @property
    def spec(self) -> JobSpec:
        """The job's spec."""
        return self.stored.job.spec

    @cached_property
    def mode(self) -> Mode:
        """Whether the job trains, is suspended or is over; a suspended job that ended is over."""
        if self.outcome is not None:
            return Mode.OVER
        return Mode.SUSPENDED if self.spec.suspend else Mode.ACTIVE

    @property
    def quantity(self) -> str:
        """What the growth rule measures; empty if the plan follows from the spec alone."""
        quantity: str = self.spec.batch.growth.entry.quantity
        return quantity

    @cached_property
    def stage(self) -> Stage:
        """The stage of the next update; the last stage at the end."""
        return self.plan.stage_at(self.update)

    @cached_property
    def storage(self) -> Storage:
        """Where the job's checkpoints are kept."""
        return storage_of(self.spec, self.seen, self.defaults)

    @cached_property
    def is_trainer_running(self) -> bool:
        """Whether a trainer pod may still be working."""
        return is_running(self.seen, self.storage.is_kept)

    @cached_property
    def cluster_policy(self) -> ClusterPolicy:
        """The policy for the cluster, which is never deleted while a trainer may be writing its last checkpoint."""
        if self.mode is Mode.ACTIVE:
            return ClusterPolicy.APPLY
        if self.is_trainer_running:
            return ClusterPolicy.KEEP
        if self.outcome is None:
            return ClusterPolicy.DELETE
        retention, failed = self.spec.cluster_retention, not self.outcome.succeeded
        is_retained = retention == "Retain" or (retention == "RetainOnFailure" and failed)
        return ClusterPolicy.KEEP if is_retained else ClusterPolicy.DELETE

    @cached_property
    def cluster_problem(self) -> Problem | None:
        """The first problem that keeps the scheduler or the workers from running; None if there is none."""
        return cluster_problem(self.seen)

    @cached_property
    def joined(self) -> int:
        """Workers that can train: the smaller of the trainer's count and the number of ready pods.

        A pod is ready before its worker has registered and loaded the data, and the trainer notices the loss of a pod
        late. Without a running trainer the pods count.
        """
        deployment = self.seen.child("Deployment", names.workers(self.seen.name))
        pods = int(((deployment or {}).get("status") or {}).get("readyReplicas", 0))
        reported = self.report.ready if self.report is not None and self.is_trainer_running else None
        return pods if reported is None else min(pods, reported)

    @cached_property
    def report_age_seconds(self) -> float:
        """Seconds since the report was first seen; 0 if this pass is the first to see it.

        The status knows when an operator before this one saw it, and this one when it saw a report that is not in the
        status yet, which is written less often.
        """
        known = self.previous.trainer_status
        if (
            self.report is None
            or known is None
            or (known.start, known.update) != (self.report.start, self.report.update)
        ):
            return self.seen.report_age_seconds
        return max(self.seen.report_age_seconds, seconds_since(known.last_updated_time, self.seen.now))


def situate(seen: Observed, defaults: Defaults) -> Situation:
    """The situation of the job. Raises SpecError if its spec is refused, PlanError if it has no plan."""
    text, previous = job_text(seen), stored_status(seen)
    job, now = stored(text), standing(text, seen, previous)
    retries = next_retries(seen, previous.retries, now.update)
    return Situation(
        seen=seen,
        defaults=defaults,
        stored=job,
        undecided=undecided(text),
        plan=now.plan,
        expected=now.expected,
        decisions=now.decisions,
        forgotten=now.forgotten,
        previous=previous,
        report=now.report,
        misfit=now.misfit,
        update=now.update,
        outcome=_stored_outcome(previous)
        or _ended(seen, now.plan, job.job.spec)
        or fruitless(seen, retries)
        or _overdue(seen, job.job.spec),
        retries=retries,
    )


def _stored_outcome(previous: JobStatus) -> Outcome | None:
    succeeded = condition(previous, "Succeeded")
    if succeeded is None or succeeded.status == "Unknown":
        return None
    return Outcome(succeeded.status == "True", succeeded.reason, succeeded.message)


def _ended(seen: Observed, plan: Plan, spec: JobSpec) -> Outcome | None:
    """How the trainer ended, and why before the last epoch of the spec if it did; None if it has not."""
    outcome, stop = outcome_of(seen), spec.evaluation.stop_early
    if outcome is None or stop is None or not (outcome.succeeded and plan.ended_early):
        return outcome
    why = f"{stop.metric} got no better, and stopEarly.patience is {stop.patience:,}"
    return Outcome(True, "StoppedEarly", f"Training ended after epoch {plan.epochs:,} of {spec.epochs:,}: {why}.")


def _overdue(seen: Observed, spec: JobSpec) -> Outcome | None:
    left = seconds_to_deadline(seen, spec)
    if left is None or left > 0:
        return None
    return Outcome(False, "DeadlineExceeded", f"The job was active for {spec.active_deadline_seconds} s.")


def seconds_to_deadline(seen: Observed, spec: JobSpec) -> float | None:
    """Seconds that the job may still be active; None without a deadline or while it is suspended."""
    if spec.active_deadline_seconds is None or spec.suspend:
        return None
    return spec.active_deadline_seconds - seen.active_seconds
