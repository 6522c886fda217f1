"""How a job ended: by its trainer's own end, or at one of the limits of its restarts, its retries and its time.

A trainer that fails is restarted, and counts towards spec.restarts.limit; Kubernetes bounds that by the backoffLimit of
its Job, whose podFailurePolicy says which ends count (`trainer_job` in children/trainer.py). `restarts_of` reads the
count, without pods that a node refused. One that ends with exit code 75, because its cluster failed it, is retried and
does not count there; `job_outcome` bounds the retries that get no further.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from batchgrowth import names
from batchgrowth.contract.status import MOST_LINGERED, JobStatus, RetriesStatus
from batchgrowth.errors import CheckpointError, ClusterError, DataError, SpecError, WorkloadError
from batchgrowth.plan import Plan
from batchgrowth.spec import JobSpec

from batchgrowth_operator.seen.clock import Clock
from batchgrowth_operator.seen.observed import (
    TRAINER,
    Object,
    Observed,
    annotations_of,
    condition,
    endings_of,
    is_terminating,
    truncated,
)
from batchgrowth_operator.seen.problems import remedy_of_image
from batchgrowth_operator.seen.trainer_pods import (
    FAILED,
    has_failed_by_nodes_alone,
    last_removal,
    lingering_pods,
    num_refused,
    pods_of_job,
    was_removed,
)

MOST_FRUITLESS_RETRIES = 10
"""Restarts after exit code 75 without a further update, after which the job has failed."""
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
_LONGEST_COUNT = 9
"""Digits of a number in an annotation that may be believed."""
_EXIT_CODE = re.compile(r"exit code (\d+)")


class Outcome(NamedTuple):
    """The end of a job: status, reason and message of its condition Succeeded."""

    succeeded: bool
    reason: str
    message: str


FINISHED = Outcome(True, "Finished", "Every update of the plan is done.")


def job_outcome(
    seen: Observed, spec: JobSpec, plan: Plan, previous: JobStatus, retries: RetriesStatus, clock: Clock
) -> Outcome | None:
    """Return how the job ended; None if it goes on. The order of the cases is deliberate."""
    # What the status says stands for ever, whatever becomes of the trainer: a job that is over never begins again.
    succeeded = condition(previous, "Succeeded")
    if succeeded is not None and succeeded.status != "Unknown":
        return Outcome(succeeded.status == "True", succeeded.reason, succeeded.message)

    # What the trainer says of its own end counts more than a limit that it reached in the same moment.
    outcome = _outcome_beside_others(seen, clock) or trainer_outcome(seen)
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

    # Until the deadline has passed, the clock notes when it will have, and that wakes the job. It is asked last, since
    # a job that is over needs no such pass, and of a suspended job no time counts.
    limit = spec.active_deadline_seconds
    if limit is not None and not spec.suspend and clock.reached(seen.active_seconds, limit):
        return Outcome(False, "DeadlineExceeded", f"The job was active for {limit} s.")
    return None


def trainer_outcome(seen: Observed) -> Outcome | None:
    """Return how the trainer's Job ended; None if it has not.

    The failure of a Job that is being deleted is none: Kubernetes deletes its pods first, and without them nobody knows
    whether nodes alone have failed it.
    """
    conditions = ((seen.trainer or {}).get("status") or {}).get("conditions") or ()
    holding = {c.get("type"): c for c in reversed(conditions) if c.get("status") == "True"}
    if "Complete" in holding:
        return FINISHED
    if "Failed" not in holding or is_terminating(seen.trainer) or has_failed_by_nodes_alone(seen):
        return None
    failure = holding["Failed"].get("message", "")
    code, message, _ = _last_termination(seen)
    if code is None:  # its pods are gone, but the Job may name the exit code
        found = _EXIT_CODE.search(failure)
        code = int(found[1]) if found else -1
    return Outcome(False, REASONS.get(code, "RestartsExceeded"), truncated(message or failure))


def _outcome_beside_others(seen: Observed, clock: Clock) -> Outcome | None:
    """Return how the trainer ended if its Job cannot say so, because of other containers in its pod; None otherwise.

    Either they run on, or one of them has failed, and with it the pod. A failure that a restart may mend is none: the
    Job counts it once its pod has ended.
    """
    lingered = [ending for pod in lingering_pods(seen, clock) for ending in endings_of(pod)]
    failed = [pod for pod in pods_of_job(seen) if (pod.get("status") or {}).get("phase") == FAILED]
    endings = [*lingered, *(ending for pod in failed for ending in endings_of(pod))]
    if any(ending["exitCode"] == 0 for ending in endings):
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

    The pod template says so, which nobody can edit.
    """
    return _number_in((job["spec"]["template"].get("metadata") or {}).get("annotations") or {}, names.EPOCHS)


def restarts_of(seen: Observed) -> int:
    """Return the number of the trainer's failures that count, including failures before its Job was recreated.

    A pod that its node refused is none, as long as Kubernetes keeps the pod; so of a Job that is being deleted, only
    the failures before it count. The status has the others.
    """
    if seen.trainer is None:
        return 0
    if is_terminating(seen.trainer):
        return restarts_before(seen.trainer)
    failed = int((seen.trainer.get("status") or {}).get("failed", 0))
    return restarts_before(seen.trainer) + max(0, failed - num_refused(seen))


def restarts_before(job: Object) -> int:
    """Return the number of the trainer's restarts before this Job was made."""
    return _number_in(annotations_of(job), names.RESTARTS_BEFORE) or 0


def _number_in(annotations: Mapping[str, str], name: str) -> int | None:
    """Return the whole number in an annotation; None if there is none, or others have written something else."""
    text = annotations.get(name, "")
    if not text.isdecimal() or len(text) > _LONGEST_COUNT:
        return None
    return int(text)


def num_retries(seen: Observed, known: RetriesStatus) -> int:
    """Return the number of trainer pods that ended with exit code 75; evicted pods do not count.

    Kubernetes keeps them, but for those that `known` names: another container outlived them, or their Job is made again
    because nodes alone have failed it.
    """
    pods = seen.pods_of(TRAINER)
    kept = {pod["metadata"]["name"] for pod in pods}
    return sum(map(_is_retried, pods)) + sum(name not in kept for name in known.lingered)


def next_retries(seen: Observed, known: RetriesStatus | None, update: int, clock: Clock) -> RetriesStatus:
    """Return the point from which retries count, after `update` updates; a repeated update is not progress.

    A training that ended with exit code 75 may be retried any number of times if it gets further, else
    MOST_FRUITLESS_RETRIES times. The number of ended pods is the count, so it survives the operator and needs no clock.
    """
    previous = known or RetriesStatus()
    deleted = list(pods_of_job(seen)) if has_failed_by_nodes_alone(seen) else lingering_pods(seen, clock)
    lingering = [pod["metadata"]["name"] for pod in deleted if _is_retried(pod)]
    if update > previous.update:
        current = RetriesStatus(update=update, lingered=tuple(lingering[-MOST_LINGERED:]))
        return current.model_copy(update={"before": num_retries(seen, current)})
    lingered = tuple(dict.fromkeys([*previous.lingered, *lingering]))[-MOST_LINGERED:]
    current = previous.model_copy(update={"lingered": lingered})
    ended = num_retries(seen, current)  # a deleted Job's pods are gone
    return current.model_copy(update={"before": min(previous.before, ended)})


def _is_retried(pod: Object) -> bool:
    """Return whether the trainer in the pod ended with exit code 75, and not because the pod was evicted."""
    return not was_removed(pod) and any(ending["exitCode"] == ClusterError.exit_code for ending in endings_of(pod))


def last_exit(seen: Observed) -> str:
    """Return why the trainer pod that ended last did; empty if no such pod is left.

    That is what refused or removed it, or else its exit code and last output.
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
    after a kill, which output does not explain, it ends with the likely cause. A pod that Kubernetes removed is not
    asked.
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
