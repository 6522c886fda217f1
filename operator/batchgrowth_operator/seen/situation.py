"""Interprets the observed state: the spec and its plan, the position, where checkpoints are, and how the job ended.

A job ends by its trainer's own end, or at one of the limits of its restarts, its retries (trainer_pods.py counts both)
and its time.

The API server refuses a change of a started job's spec that would change its mathematics (the rules in
batchgrowth/manifest/crd.py). spec.epochs may grow, and only the plan says for which jobs: `_check_longer`.

`Situation.cluster_policy` decides whether the job's cluster is kept or released.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any, NamedTuple

from batchgrowth import names
from batchgrowth.contract.progress import LARGEST_START, LONGEST_PERIOD_SECONDS, Progress
from batchgrowth.contract.status import JobStatus, RetriesStatus
from batchgrowth.errors import CheckpointError, DataError, Fault, SpecError, WorkloadError
from batchgrowth.manifest.reading import StoredJob
from batchgrowth.plan import BatchDecision, Plan, Stage, make_plan
from batchgrowth.same_updates import what_differs
from batchgrowth.spec import JobSpec, mathematics

from batchgrowth_operator.seen.observed import (
    CLAIM,
    TRAINER,
    WORKER,
    Clock,
    Object,
    Observed,
    Ref,
    annotations_of,
    condition,
    condition_of,
    endings_of,
    is_terminating,
    number_in,
    seconds_since,
    stored_status,
    truncated,
)
from batchgrowth_operator.seen.problems import cluster_problem, remedy_of_image, workers_problem
from batchgrowth_operator.seen.progress import (
    TrainingState,
    is_awaited,
    job_text,
    quantity_of,
    remarks_of,
    stored,
    training_state,
    undecided,
)
from batchgrowth_operator.seen.refused_objects import Problem
from batchgrowth_operator.seen.trainer_pods import (
    FAILED,
    MOST_FRUITLESS_RETRIES,
    has_failed_by_nodes_alone,
    is_cut_off,
    is_running,
    is_stopped,
    last_removal,
    lingering_pods,
    next_retries,
    num_retries,
    was_removed,
)
from batchgrowth_operator.settings import Defaults

# --- How a job ended ---

REASONS = {
    SpecError.exit_code: "ManifestRefused",
    WorkloadError.exit_code: "WorkloadFailed",
    DataError.exit_code: "DataFailed",
    CheckpointError.exit_code: "CheckpointFailed",
}
"""Exit codes that a restart would only repeat, and their reasons."""
KILLED = 137
"""The exit code of a container that SIGKILL ended."""
_KILLED_OTHERWISE = "killed, as a hung container is by its liveness probe: the pod's events say why"
_EXIT_CODE = re.compile(r"exit code (\d+)")


class Outcome(NamedTuple):
    """The end of a job: status, reason and message of its condition Succeeded."""

    succeeded: bool
    reason: str
    message: str


FINISHED = Outcome(True, "Finished", "Every update of the plan is done.")


def job_outcome(
    seen: Observed,
    spec: JobSpec,
    plan: Plan,
    previous: JobStatus,
    retries: RetriesStatus,
    lingering: Sequence[Object],
    clock: Clock,
) -> Outcome | None:
    """Return how the job ended; None if it goes on. The order of the cases is deliberate."""
    # What the status says stands for ever, whatever becomes of the trainer: a job that is over never begins again.
    succeeded = condition(previous, "Succeeded")
    if succeeded is not None and succeeded.status != "Unknown":
        return Outcome(succeeded.status == "True", succeeded.reason, succeeded.message)

    # What the trainer says of its own end counts more than a limit that it reached in the same moment.
    outcome = _outcome_beside_others(seen, lingering) or trainer_outcome(seen)
    if outcome is not None and outcome.succeeded and trains_other_epochs(seen, spec):
        return None  # the number grew while the last updates were made
    if outcome is not None:
        stop = spec.evaluation.stop_early
        if stop is None or not outcome.succeeded or not plan.ended_early:
            return outcome
        why = f"{stop.metric} got no better, and stopEarly.patience is {stop.patience:,}"
        return Outcome(True, "StoppedEarly", f"Training ended after epoch {plan.epochs:,} of {spec.epochs:,}: {why}.")

    fruitless = num_retries(seen, retries) - retries.before
    if fruitless >= MOST_FRUITLESS_RETRIES:
        without = f"The trainer ended {fruitless} times without getting past update {retries.update:,}"
        return Outcome(False, "RetriesFruitless", truncated(f"{without}; last: {last_exit(seen)}"))

    # Until the deadline has passed, the clock notes when it will have, and that wakes the job. So the clock is asked
    # last, since a job that is over needs no such pass. While a job is suspended, no time counts.
    limit = spec.active_deadline_seconds
    if limit is not None and not spec.suspend and clock.reached(seen.active_seconds, limit):
        return Outcome(False, "DeadlineExceeded", f"The job was active for {limit} s.")
    return None


def trainer_outcome(seen: Observed) -> Outcome | None:
    """Return how the trainer's Job ended; None if it has not.

    The failure of a Job that is being deleted does not count: Kubernetes deletes its pods first, and without them
    nobody knows whether nodes alone have failed the Job.
    """
    if condition_of(seen.trainer, "Complete", "True") is not None:
        return FINISHED
    failed = condition_of(seen.trainer, FAILED, "True")
    if failed is None or is_terminating(seen.trainer) or has_failed_by_nodes_alone(seen):
        return None
    failure = failed.get("message", "")
    code, message, _ = _last_termination(seen)
    if code is None:  # its pods are gone, but the Job may name the exit code
        found = _EXIT_CODE.search(failure)
        code = int(found[1]) if found else -1
    return Outcome(False, REASONS.get(code, "RestartsExceeded"), truncated(message or failure))


def _outcome_beside_others(seen: Observed, lingering: Sequence[Object]) -> Outcome | None:
    """Return how the trainer ended if its Job cannot say so, because of other containers in its pod; None otherwise.

    Either they run on, or one of them has failed, and with it the pod. A failure that a restart may mend does not
    count here: the Job counts it once its pod has ended.
    """
    lingered: list[dict[str, Any]] = []
    for pod in lingering:
        lingered += endings_of(pod)
    endings = list(lingered)
    for pod in seen.pods_of_job:
        if (pod.get("status") or {}).get("phase") == FAILED:
            endings += endings_of(pod)
    for ending in endings:
        if ending["exitCode"] == 0:
            return FINISHED
    for ending in lingered:
        if ending["exitCode"] in REASONS:
            return Outcome(False, REASONS[ending["exitCode"]], truncated(str(ending.get("message") or "").strip()))
    return None


def trains_other_epochs(seen: Observed, spec: JobSpec) -> bool:
    """Return whether the trainer's Job was made for another number of epochs than the spec's."""
    trained = None if seen.trainer is None else epochs_of(seen.trainer)
    return trained is not None and trained != spec.epochs


def epochs_of(job: Object) -> int | None:
    """Return the number of epochs for which a trainer's Job was made; None if an earlier operator made it.

    The number is in the pod template, which nobody can edit.
    """
    return number_in((job["spec"]["template"].get("metadata") or {}).get("annotations") or {}, names.EPOCHS)


def last_exit(seen: Observed) -> str:
    """Return the end of the trainer pod that ended last: what refused or removed it, or its exit code and last output.

    The text is empty if no such pod is left.
    """
    removed_at, removal = last_removal(seen)
    code, message, ended_at = _last_termination(seen)
    if removal and removed_at >= ended_at:
        return truncated(removal)
    if code is None:
        return ""
    if not message:
        return f"exit code {code}"
    return truncated(f"exit code {code}: {message}")


def _last_termination(seen: Observed) -> tuple[int | None, str, str]:
    """Return exit code and message of the trainer container that failed last, and when; None and "" if no such pod is
    left.

    The message is the container's last output, with a remedy if it tells that the image is the wrong one;
    after a kill, which output does not explain, it ends with the likely cause. Pods that Kubernetes removed are left
    out.
    """
    endings: list[dict[str, Any]] = []
    for pod in seen.pods_of(TRAINER):
        if was_removed(pod):
            continue
        endings += [ending for ending in endings_of(pod) if ending["exitCode"]]
    if not endings:
        return None, "", ""
    last = max(endings, key=lambda ending: str(ending.get("finishedAt") or ""))
    ended_at = str(last.get("finishedAt") or "")
    code = int(last["exitCode"])
    output = str(last.get("message") or "").strip()
    remedy = remedy_of_image(output)
    if remedy and code not in REASONS:
        return code, f"{output}. {remedy}", ended_at
    if code != KILLED:
        return code, output, ended_at
    why = "out of memory" if last.get("reason") == "OOMKilled" else _KILLED_OTHERWISE
    return code, f"{output} ({why})" if output else why, ended_at


# --- Where a job's checkpoints are kept ---

# At the place in its spec, or else at the operator's default. A trainer that exists keeps its storage, so a changed
# default affects only jobs that have no trainer yet.

VOLUME = "checkpoints"
"""The trainer's volume with its checkpoints."""
STORE_VARIABLE = "BATCHGROWTH_CHECKPOINT_URI"
"""The trainer's environment variable with the URI of the object store that keeps its checkpoints."""

CA_VARIABLE = "BATCHGROWTH_CHECKPOINT_CA"
"""The trainer's environment variable with the file of the CAs that it trusts for that store."""
CA_FOLDER = "/etc/batchgrowth/store-ca"
"""The folder of that file if the spec names the ConfigMap, after which the file is named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """The storage that outlives the trainer's pod."""

    claim: str = ""
    """The claim that the trainer mounts; empty if there is none."""
    size: str = ""
    """The size of the operator's own claim; empty if there is none."""
    storage_class: str = ""
    is_kept: bool = True
    is_default: bool = False
    """Whether the spec names no place."""
    is_awaited: bool = False
    """Whether the spec names a place for the next trainer: the one that runs has none, and would lose its training by
    moving there."""


NONE = Storage(is_kept=False)


def storage_of(spec: JobSpec, seen: Observed, defaults: Defaults, clock: Clock) -> Storage:
    """Return where the job's checkpoints are kept."""
    own = seen.names.checkpoints
    has_none = False
    if seen.trainer is not None:
        pod = seen.trainer["spec"]["template"]["spec"]
        mounts = any(v["name"] == VOLUME and "persistentVolumeClaim" in v for v in pod.get("volumes") or ())
        has_none = not mounts and not any(map(store_of, pod["containers"]))
    volume = spec.checkpoint.volume
    has_place = volume is not None or spec.checkpoint.uri is not None
    # Before the places in the spec: a trainer that runs without one would lose its training by moving there.
    if has_none and has_place and is_running(seen, kept=False, clock=clock):
        return Storage(is_kept=False, is_awaited=True)
    if spec.checkpoint.uri is not None:
        return Storage()
    if volume is not None and volume.claim_name is not None:
        return Storage(claim=volume.claim_name)
    if volume is not None:
        return Storage(claim=own, size=volume.size or "", storage_class=volume.storage_class_name or "")
    if has_none:
        return NONE
    size = size_of(seen.children.get(Ref(CLAIM, own))) or defaults.checkpoint_size
    if not size:
        return NONE
    return Storage(claim=own, size=size, is_default=True)


def store_of(container: Object) -> list[str | None]:
    """Return the object store that this trainer container uses, its Secret, and the ConfigMap with its CAs if the spec
    names one; empty if there is no store.
    """
    variables = {entry["name"]: entry.get("value") for entry in container.get("env") or ()}
    if STORE_VARIABLE not in variables:
        return []
    secrets = [source["secretRef"]["name"] for source in container.get("envFrom") or () if "secretRef" in source]
    store = [variables[STORE_VARIABLE], next(iter(secrets), None)]
    folder, _, file = str(variables.get(CA_VARIABLE)).rpartition("/")
    return [*store, file.removesuffix(".crt")] if folder == CA_FOLDER else store


def size_of(claim: Object | None) -> str:
    """Return the size that the claim asks for; empty without a claim."""
    requests = (((claim or {}).get("spec") or {}).get("resources") or {}).get("requests") or {}
    return str(requests.get("storage", ""))


def class_of(claim: Object | None) -> str:
    """Return the class of the claim; empty without a claim or if it has none yet."""
    return ((claim or {}).get("spec") or {}).get("storageClassName") or ""


# --- The situation ---

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
    text: str
    """The job without its status, as text: the key under which passes remember what follows from the spec alone."""
    stored: StoredJob
    """The job as the API server has it."""
    spec: JobSpec
    undecided: Plan
    """The plan that follows from the spec alone."""
    quantity: str
    """What the growth rule measures; empty if the plan follows from the spec alone."""
    remarks: tuple[Fault, ...]
    """What in the spec can never act in that plan, or wastes workers."""
    plan: Plan
    """The plan that follows from the decisions of a measured growth as well."""
    expected: Plan
    """That plan with the stage that the trainer forecasts, if it forecasts one."""
    decisions: tuple[BatchDecision, ...]
    forgotten: int
    """The number of stages that the history in the status has dropped; 0 with a report."""
    previous: JobStatus
    """The stored status."""
    report: Progress | None
    """The trainer's report; None if there is none, or it is unusable or older than that status."""
    misfit: str
    """Why a report that exists is not used; empty otherwise."""
    update: int
    """The number of updates done."""
    reported_epochs: int | None
    """The epochs that the reporting trainer trains for, if spec.epochs has grown since; None if it has not."""
    retries: RetriesStatus
    """The point from which the trainer's fruitless retries are counted."""
    outcome: Outcome | None
    """How the job ended; None if it has not."""
    lingering: Sequence[Object]
    """The pods of the trainer's Job that run although their trainer has ended."""
    storage: Storage
    """Where the job's checkpoints are kept."""
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
    def stage(self) -> Stage:
        """Return the stage of the next update; the last stage at the end."""
        return self.plan.stage_at(self.update)

    @cached_property
    def is_trainer_running(self) -> bool:
        """Return whether a trainer pod may still be working."""
        return is_running(self.seen, self.storage.is_kept, self.clock)

    @cached_property
    def is_report_awaited(self) -> bool:
        """Return whether the trainer has stopped, and its next start has not reported yet."""
        return self.awaited_start is not None or (self.report is None and is_awaited(self.previous.trainer_status))

    @property
    def is_state_lost(self) -> bool:
        """Return whether the trainer's next start begins at the first update, because nothing kept the last state."""
        return self.awaited_start is not None and not self.storage.is_kept

    @property
    def is_reporting(self) -> bool:
        """Return whether the newest reported update is recent, given the job's pace."""
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
    def default_image(self) -> str:
        """Return the image of a job without spec.image: the one with which training began, so that an upgrade of the
        operator does not change it midway.
        """
        child = self.seen.trainer or self.seen.workers
        has_begun = self.update or self.previous.history
        if not has_begun or child is None:
            return self.defaults.image
        known = annotations_of(child).get(names.DEFAULT_IMAGE)
        if known:
            return known
        found = str(child["spec"]["template"]["spec"]["containers"][0]["image"])
        # An earlier operator made the child and did not note what its image replaced.
        return self.defaults.image if found == self.spec.image else found

    @cached_property
    def image(self) -> str:
        """Return the image of the job's pods: spec.image, or else the job's default image."""
        return self.default_image if self.spec.image is None else self.spec.image

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
    lingering = lingering_pods(seen, clock)
    retries = next_retries(seen, previous.retries, training.update, lingering)
    outcome = job_outcome(seen, job.job.spec, training.plan, previous, retries, lingering, clock)
    storage = storage_of(job.job.spec, seen, defaults, clock)
    awaited = None
    if outcome is None and not job.job.spec.suspend:
        awaited = _awaited_start(seen, storage.is_kept, training, previous, clock)
        # Nothing kept the state: the next start begins at the first update, and no decision of the last one holds.
        if awaited is not None and not storage.is_kept:
            training = TrainingState(
                plan=undecided(text), expected=undecided(text), decisions=(), report=None, update=0
            )
    s = Situation(
        seen=seen,
        defaults=defaults,
        clock=clock,
        text=text,
        stored=job,
        spec=job.job.spec,
        undecided=undecided(text),
        quantity=quantity_of(text),
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
        lingering=lingering,
        storage=storage,
        awaited_start=awaited,
    )
    _check_longer(s)
    return s


def _awaited_start(
    seen: Observed, is_kept: bool, training: TrainingState, previous: JobStatus, clock: Clock
) -> int | None:
    """Return the number of the trainer's next start if an earlier one has reported and no trainer runs; else None."""
    known = previous.trainer_status
    if training.report is None and known is None:
        return None
    if not is_stopped(seen, is_kept, clock):
        return None
    if training.report is not None:
        return training.report.start + 1
    if known is None or known.start is None:
        return 1
    # A status that awaits a start has its number already.
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
