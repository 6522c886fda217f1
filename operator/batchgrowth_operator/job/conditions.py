"""One small rule per condition, which derives its status, reason and message from the situation.

What keeps pods from running, such as a pod that is refused, is found in seen/problems.py.
"""

from collections.abc import Callable
from typing import NamedTuple

from batchgrowth.contract.progress import Progress

from batchgrowth_operator.children.drift import is_smaller
from batchgrowth_operator.job.contention import Contention
from batchgrowth_operator.job.workforce import Workforce
from batchgrowth_operator.seen.observed import CLAIM, Object, condition, is_owned_by
from batchgrowth_operator.seen.outcome import last_exit, num_retries, truncated
from batchgrowth_operator.seen.problems import trainer_problem
from batchgrowth_operator.seen.situation import Mode, Situation
from batchgrowth_operator.seen.storage import class_of, size_of
from batchgrowth_operator.seen.trainer_pods import is_between_pods, is_replaceable, unreachable_pods

DEGRADED_AFTER_SECONDS = 10
"""Least time that workers are missing before a job counts as degraded."""
STALLED_AFTER_SECONDS = 120
STALLED_AFTER_UPDATES = 20
"""Time in updates after which a job counts as stalled, but at least STALLED_AFTER_SECONDS."""
CLUSTER_KINDS = ("DaskCluster", "Deployment")
"""Kinds of children that a suspended job does not have."""
PODS_NOT_ALLOWED = "PodsNotAllowed"
"""Reason of the condition Accepted."""

NOT_KEPT = (
    "Nothing keeps the job's checkpoints: a suspended job and a lost trainer start over. "
    "Before a job begins, spec.checkpoint gives them a place: volume, such as {size: 10Gi}, or uri."
)
AWAITED = (
    "The trainer that runs began without a place for checkpoints, and would lose its training by moving to that of "
    "spec.checkpoint: the next trainer has it."
)
STARTS_OVER = "The trainer starts over, since nothing keeps its checkpoints"
REMEDIES = {
    ("Deployment", "spec.replicas"): "Remove the HorizontalPodAutoscaler from the Deployment; an autoscaler of the job "
    "itself sets spec.workers.maximum."
}
"""What would end a fight over that field of that kind."""


class Verdict(NamedTuple):
    """Status, reason and message of a condition."""

    status: str
    reason: str
    message: str


Rule = Callable[[Situation, Workforce], Verdict]


def counted(number: int, noun: str) -> str:
    """Return the number with its noun: 1 worker, 2 workers."""
    if number == 1:
        return f"1 {noun}"
    return f"{number:,} {noun}s"


def accepted(s: Situation, w: Workforce) -> Verdict:
    """Say whether the job is accepted: a job with a plan is, unless its pods exceed the limits."""
    if w.refused is not None:
        return Verdict("False", PODS_NOT_ALLOWED, truncated(str(w.refused)))
    remarks = _storage_remark(s)
    if s.stored.unknown:
        unknown = ", ".join(s.stored.unknown)
        remarks = f"{remarks} This version of the operator ignores what it does not know: {unknown}."[:768]
    if s.quantity:
        batch = f"The batch follows the {s.quantity}, from {s.spec.batch.initial:,} to {s.spec.batch.maximum:,}"
        return Verdict("True", "PlanMade", f"{batch}; at most {counted(s.undecided.updates, 'update')}.{remarks}")
    plan = f"The plan has {counted(len(s.undecided.stages), 'stage')} and {counted(s.undecided.updates, 'update')}."
    return Verdict("True", "PlanMade", f"{plan}{remarks}")


def _storage_remark(s: Situation) -> str:
    """Return sentences, each after a space, about storage that differs from the spec or that the spec does not name."""
    storage = s.storage
    if storage.is_awaited:
        return f" {AWAITED}"
    if not storage.is_kept:
        return f" {NOT_KEPT}"
    if storage.is_default:
        claim = f"the claim {storage.claim} of {storage.size}, which is deleted with the job"
        return f" spec.checkpoint names no place for checkpoints, so they are kept in {claim}."
    found = s.seen.child(CLAIM, storage.claim)
    text = ""
    if storage.size and is_smaller(storage.size, size_of(found)):
        text += f" The claim {storage.claim} keeps its {size_of(found)}, since claims do not shrink."
    if found is not None and storage.storage_class and storage.storage_class != class_of(found):
        text += f" The claim {storage.claim} keeps its class, {class_of(found) or 'which has no name'}."
    return text


def cluster_ready(s: Situation, w: Workforce) -> Verdict:
    """Say whether the scheduler is ready and the stage's workers have joined, or the problem that prevents it."""
    if s.mode is not Mode.ACTIVE and not s.seen.failures:
        return Verdict("False", "Released", f"The job is {s.mode.value}.")
    if w.ready >= w.desired and s.seen.is_scheduler_ready and not s.seen.failures:
        return Verdict("True", "AllWorkersJoined", f"The scheduler is ready and {counted(w.desired, 'worker')} joined.")
    if s.cluster_problem is not None:
        return Verdict("False", *s.cluster_problem)
    if not s.seen.is_scheduler_ready:
        return Verdict("False", "WaitingForScheduler", "The scheduler is starting.")
    return Verdict("False", "WaitingForWorkers", _joined(w))


def training(s: Situation, w: Workforce) -> Verdict:  # noqa: ARG001
    """Say whether the trainer commits updates, or the problem that prevents it."""
    if s.mode is Mode.OVER:
        return Verdict("False", "Ended", "The trainer has ended.")
    if s.mode is Mode.SUSPENDED:
        return Verdict("False", "Paused", "The job is suspended.")
    status = (s.seen.trainer or {}).get("status") or {}
    if not status.get("ready", 0):
        problem = trainer_problem(s.seen, s.clock)
        if problem is not None:
            return Verdict("False", *problem)
        unreachable = unreachable_pods(s.seen, s.clock)
        if unreachable:
            return _unreachable(s, unreachable)
        # A Job counts failures alone.
        if status.get("failed", 0) or num_retries(s.seen) or is_between_pods(s.seen):
            restart = STARTS_OVER
            if s.storage.is_kept:
                restart = "The trainer restarts from its last checkpoint"
            cause = last_exit(s.seen)
            restart += f": {cause}" if cause else "."
            return Verdict("False", "TrainerRestarting", truncated(restart))
    if s.update:
        return Verdict("True", "UpdatesCommitted", "The trainer commits updates.")
    cause = last_exit(s.seen)
    before = f"; the last one ended with {cause}" if cause else "."
    return Verdict("False", "NotStarted", truncated(f"The trainer has not committed an update yet{before}"))


def _unreachable(s: Situation, pods: list[Object]) -> Verdict:
    """Say what happens to a trainer on a lost node: the operator waits for the node or replaces the trainer."""
    own: list[Object] = []
    if s.seen.trainer is not None:
        uid = s.seen.trainer["metadata"].get("uid", "")
        own = [pod for pod in pods if is_owned_by(pod, uid)]
    pod = (own or pods)[0]
    lost = f"The node of pod {pod['metadata']['name']} does not answer"
    if not own:
        return Verdict("False", "TrainerReplaced", f"{lost}; another trainer takes its place.")
    if is_replaceable(pod, s.storage.is_kept):
        return Verdict("False", "TrainerUnreachable", f"{lost}; after a minute another trainer takes its place.")
    why = "Without spec.checkpoint.volume or uri the training would be lost with it, so"
    return Verdict("False", "TrainerUnreachable", f"{lost}. {why} it is replaced when Kubernetes deletes the pod.")


def resizing(s: Situation, w: Workforce) -> Verdict:
    """Say whether workers are being added or removed."""
    if s.mode is not Mode.ACTIVE:
        return Verdict("False", "AtTarget", "No workers are being added or removed.")
    if w.ready < w.requested:
        return Verdict("True", "ScalingUp", f"Requested {counted(w.requested, 'worker')}; {w.ready} joined so far.")
    if w.ready > w.requested:
        return Verdict("True", "ScalingDown", f"Removing {w.ready - w.requested} of {counted(w.ready, 'worker')}.")
    if w.ready == 1:
        return Verdict("False", "AtTarget", "The requested worker has joined.")
    return Verdict("False", "AtTarget", f"All {w.ready} requested workers have joined.")


def degraded(s: Situation, w: Workforce) -> Verdict:
    """Say whether workers of the stage have been missing for a while, or a worker's arithmetic differs."""
    if s.mode is Mode.ACTIVE and s.report is not None and s.report.differing:
        return Verdict("True", "ArithmeticDiffers", truncated(f"{_differing(s, s.report)} {_joined(w)}"))
    limit = max(s.spec.workers.wait_seconds, DEGRADED_AFTER_SECONDS)
    if s.mode is Mode.ACTIVE and s.update and w.ready < w.desired:
        ready = condition(s.previous, "ClusterReady")
        since = None
        if ready is not None and ready.status == "False":
            since = ready.last_transition_time
        if s.clock.passed(since, limit):
            why = f" {s.cluster_problem.message}" if s.cluster_problem else ""
            return Verdict("True", "TooFewWorkers", f"{_joined(w)}{why}"[:1024])
    return Verdict("False", "FullStrength", f"No worker has been missing for {limit} s.")


def _differing(s: Situation, report: Progress) -> str:
    """Return two sentences: which workers' arithmetic differs, and what follows from that."""
    nodes = {pod["metadata"]["name"]: (pod.get("spec") or {}).get("nodeName") for pod in s.seen.pods}
    each = []
    for name, why in sorted(report.differing.items()):
        place = f" on node {nodes[name]}" if nodes.get(name) else ""
        each.append(f"{name}{place} ({why})")
    who = f"Adding differently than the job: {', '.join(each)}."
    if s.spec.workers.same_arithmetic == "Required":
        return f"{who} spec.workers.sameArithmetic: Required refuses it."
    return f"{who} The weights may end with other last bits."


def _joined(w: Workforce) -> str:
    return f"{w.ready} of {counted(w.desired, 'worker')} joined."


def stalled(s: Situation, w: Workforce) -> Verdict:  # noqa: ARG001
    """Say whether the trainer has stopped reporting progress; unknown if the report cannot come from this job."""
    if s.misfit and s.mode is Mode.ACTIVE:
        return Verdict("Unknown", "ReportRefused", f"The trainer's report is not used: {s.misfit}."[:1024])
    if s.mode is Mode.ACTIVE and s.report is not None and s.report.seconds_per_update is not None:
        limit = max(STALLED_AFTER_SECONDS, STALLED_AFTER_UPDATES * s.report.seconds_per_update)
        if s.clock.reached(s.report_age_seconds, limit):
            cause = f" The trainer waits for {s.report.waiting_for}." if s.report.waiting_for else ""
            return Verdict("True", "NoProgress", f"No update was committed for {limit:.0f} s.{cause}"[:1024])
    return Verdict("False", "ProgressSeen", "No update is overdue.")


def suspended(s: Situation, w: Workforce) -> Verdict:  # noqa: ARG001
    """Say whether suspension has released the workers, and which progress was lost if checkpoints are not kept."""
    if s.mode is not Mode.SUSPENDED:
        return Verdict("False", "NotSuspended", "The job is not suspended.")
    lost = 0 if s.storage.is_kept else s.update
    if s.is_trainer_running and lost:
        return Verdict("Unknown", "Discarding", f"The trainer stops, and update {lost:,} is lost. {NOT_KEPT}")
    if s.is_trainer_running:
        return Verdict("Unknown", "Checkpointing", "The trainer writes a checkpoint before it stops.")
    if any(failure.ref in s.seen.children for failure in s.seen.failures if failure.ref.kind in CLUSTER_KINDS):
        return Verdict("Unknown", "Releasing", "The job's workers are not released yet.")
    if lost:
        over = f"Update {lost:,} is lost: the training starts over when the job is resumed."
        return Verdict("True", "StateLost", f"The job is suspended and holds no workers. {over} {NOT_KEPT}")
    return Verdict("True", "BySpec", "The job is suspended and holds no workers.")


def succeeded(s: Situation, w: Workforce) -> Verdict:  # noqa: ARG001
    """Say whether the job succeeded or failed; unknown before its end."""
    if s.outcome is None:
        return Verdict("Unknown", "InProgress", "The job is not over.")
    return Verdict(str(s.outcome.succeeded), s.outcome.reason, s.outcome.message)


RULES: dict[str, Rule] = {
    "Accepted": accepted,
    "ClusterReady": cluster_ready,
    "Training": training,
    "Resizing": resizing,
    "Degraded": degraded,
    "Stalled": stalled,
    "Suspended": suspended,
    "Succeeded": succeeded,
}


def contested(contention: Contention) -> Verdict:
    """Say whether another process keeps changing a field of a child."""
    fights = contention.fights
    if not fights:
        return Verdict("False", "ChildrenKept", "No field is changed again and again.")
    (kind, name), put_back = next(iter(fights.items()))
    field = max(put_back.rounds, key=lambda field: put_back.rounds[field])
    by = f"{put_back.manager} changes" if put_back.manager else "A webhook or another controller changes"
    others = f" So it is with {counted(len(fights) - 1, 'other object')}." if len(fights) > 1 else ""
    remedy = REMEDIES.get(
        (kind, field), "Remove what changes it, or exempt objects with the label batchgrowth.dev/job."
    )
    text = f"{by} {field} of the {kind} {name} again and again; the operator puts it back ever less often. {remedy}"
    return Verdict("True", "ChildRewritten", truncated(f"{text}{others}"))
