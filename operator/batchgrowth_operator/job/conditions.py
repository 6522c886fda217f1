"""One small rule per condition, which derives its status, reason and message from the situation.

seen/problems.py finds what keeps pods from running, such as a quota.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from batchgrowth.contract.progress import Progress

from batchgrowth_operator.children.drift import DELETED, SUSPENDED, Contention, is_smaller, suspender
from batchgrowth_operator.job.worker_count import Workforce
from batchgrowth_operator.seen.observed import (
    CLAIM,
    LONGEST_MESSAGE,
    TRAINER,
    Object,
    Ref,
    condition,
    condition_of,
    is_owned_by,
    timestamp,
    truncated,
)
from batchgrowth_operator.seen.problems import held_back, trainer_problem, unanswering
from batchgrowth_operator.seen.progress import SILENT_AFTER_SECONDS, findings, is_silent, late_after_seconds, waits_long
from batchgrowth_operator.seen.situation import Mode, Situation, class_of, last_exit, size_of
from batchgrowth_operator.seen.trainer_pods import (
    is_between_pods,
    is_cut_off,
    is_replaceable,
    num_retries,
    unreachable_pods,
)

DEGRADED_AFTER_SECONDS = 10
"""Least time that workers are missing before a job counts as degraded."""
STALLED_AFTER_SECONDS = 120
"""Least time without an update after which a job counts as stalled."""
FIRST_UPDATE_SECONDS = 600
"""Time after which a ready trainer without an update counts as stalled; loading a workload may take minutes."""
CLUSTER_KINDS = ("DaskCluster", "Deployment")
"""Kinds of children that a suspended job does not have."""
PODS_NOT_ALLOWED = "PodsNotAllowed"
"""Reason of the condition Accepted if the job's pods exceed the limits."""

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
    "itself sets spec.workers.maximum.",
    (
        "Job",
        SUSPENDED,
    ): "Admit the Job there, or exempt objects with the label batchgrowth.dev/job; to pause a job, set "
    "spec.suspend of the BatchGrowthJob.",
}
"""The remedy for a fight, by the child's kind and the field that another process changes."""

OF_PODS = "spec.template.spec."
"""Prefix of the fields of a child's pod template, whose values follow from the job."""


class Verdict(NamedTuple):
    """Status, reason and message of a condition."""

    status: str
    reason: str
    message: str


SETTLED = Verdict("False", "Settled", "The operator waits for nothing.")

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
    remarks = ""
    if s.remarks:  # the first one only: `batchgrowth check` tells all of them
        also = ""
        if len(s.remarks) > 1:
            also = f" `batchgrowth check` has {counted(len(s.remarks) - 1, 'more note')}."
        remarks = f" Note: {s.remarks[0]}.{also}"
    remarks += _storage_remark(s)
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
    found = s.seen.children.get(Ref(CLAIM, storage.claim))
    text = ""
    if storage.size and is_smaller(storage.size, size_of(found)):
        text += f" The claim {storage.claim} keeps its {size_of(found)}, since claims do not shrink."
    if found is not None and storage.storage_class and storage.storage_class != class_of(found):
        text += f" The claim {storage.claim} keeps its class, {class_of(found) or 'which has no name'}."
    return text


def cluster_ready(s: Situation, w: Workforce) -> Verdict:
    """Say whether the scheduler is ready and the stage's workers have joined, or the problem that prevents it."""
    held = next(held_back(s.seen, s.clock), None)  # it counts although workers train: what the job asks for is not done
    if held is not None:
        return Verdict("False", *held)
    if s.mode is not Mode.ACTIVE:
        return Verdict("False", "Released", f"The job is {s.mode.value}.")
    if w.ready >= w.desired and s.seen.is_scheduler_ready:
        return Verdict("True", "AllWorkersJoined", f"The scheduler is ready and {counted(w.desired, 'worker')} joined.")
    if s.cluster_problem is not None:
        return Verdict("False", *s.cluster_problem)
    if not s.seen.is_scheduler_ready and s.is_reporting:
        return Verdict("False", "WaitingForScheduler", "The scheduler is not ready, though updates go on.")
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
        holder = suspender(s.seen)
        if holder:
            return Verdict("False", "TrainerSuspended", holder)
        problem = trainer_problem(s.seen, s.clock)
        if problem is not None:
            return Verdict("False", *problem)
        unreachable = unreachable_pods(s.seen, s.clock)
        if unreachable and s.is_reporting:  # it trains, whatever Kubernetes knows of its node
            return Verdict("True", "UpdatesCommitted", "The trainer commits updates.")
        if unreachable:
            return _unreachable(s, unreachable)
        # A Job's count of failures leaves out the ends that its podFailurePolicy ignores.
        if status.get("failed", 0) or num_retries(s.seen, s.retries) or is_between_pods(s.seen):
            restart = STARTS_OVER
            if s.storage.is_kept:
                restart = "The trainer restarts from its last checkpoint"
            cause = last_exit(s.seen)
            restart += f": {cause}" if cause else "."
            return Verdict("False", "TrainerRestarting", truncated(restart))
    if s.update and not s.is_report_awaited:
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
        so_far = f"Requested {counted(w.requested, 'worker')}; {w.ready} joined so far."
        # The workers of the next stage are requested while ClusterReady tells that the current stage has its own.
        if s.workers_problem is not None and w.ready >= w.desired:
            reason, why = s.workers_problem
            return Verdict("True", reason, truncated(f"{so_far} {why}"))
        return Verdict("True", "ScalingUp", so_far)
    if w.ready > w.requested:
        return Verdict("True", "ScalingDown", f"Removing {w.ready - w.requested} of {counted(w.ready, 'worker')}.")
    if w.ready == 1:
        return Verdict("False", "AtTarget", "The requested worker has joined.")
    return Verdict("False", "AtTarget", f"All {w.ready} requested workers have joined.")


def degraded(s: Situation, w: Workforce) -> Verdict:
    """Say whether the stage has lacked workers for a while, a worker adds differently, or a pod's node is cut off."""
    if s.mode is Mode.ACTIVE and s.report is not None and s.report.differing:
        return Verdict("True", "ArithmeticDiffers", truncated(f"{_differing(s, s.report)} {_joined(w)}"))
    cut_off = [pod for pod in s.seen.pods if is_cut_off(pod)]
    if s.mode is Mode.ACTIVE and s.is_reporting and cut_off:
        return Verdict("True", "NodeUnreachable", truncated(f"Updates go on. {unanswering(cut_off)}"))
    limit = max(s.spec.workers.wait_seconds, DEGRADED_AFTER_SECONDS)
    if s.mode is Mode.ACTIVE and s.update and w.ready < w.desired:
        ready = condition(s.previous, "ClusterReady")
        since = None
        if ready is not None and ready.status == "False":
            since = ready.last_transition_time
        before = condition(s.previous, "Degraded")
        # Workers that were requested a moment ago are not missing yet.
        is_due = (before is not None and before.status == "True") or s.clock.passed(w.requested_time, limit)
        if is_due and s.clock.passed(since, limit):
            why = f" {s.cluster_problem.message}" if s.cluster_problem else ""
            return Verdict("True", "TooFewWorkers", f"{_joined(w)}{why}"[:LONGEST_MESSAGE])
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
    """Say whether the trainer has stopped reporting progress, or the job failed; unknown if the report cannot come from
    this job.
    """
    if s.outcome is not None and not s.outcome.succeeded:
        return Verdict("True", "JobFailed", s.outcome.message)
    if s.misfit and s.mode is Mode.ACTIVE:
        return Verdict("Unknown", "ReportRefused", f"The trainer's report is not used: {s.misfit}."[:LONGEST_MESSAGE])
    if s.mode is not Mode.ACTIVE:
        return Verdict("False", "ProgressSeen", "No update is overdue.")
    if is_silent(s.seen, s.clock):
        since = f"The trainer has reported nothing since {timestamp(s.seen.last_report or s.seen.now)}."
        return Verdict("True", "ReportsStopped", f"{since} {findings(s.seen)}"[:LONGEST_MESSAGE])
    pace = None if s.report is None else s.report.seconds_per_update
    if waits_long(s.seen, s.report, s.clock) and s.report is not None and pace is not None:
        limit = late_after_seconds(pace, SILENT_AFTER_SECONDS)
        since = f"No update was committed for {limit:.0f} s. The trainer waits for"
        return Verdict("True", "NoProgress", f"{since} {s.report.waiting_for}. {findings(s.seen)}"[:LONGEST_MESSAGE])
    if pace is not None and not s.is_report_awaited:
        limit = late_after_seconds(pace, STALLED_AFTER_SECONDS)
        if s.clock.reached(s.report_age_seconds, limit):
            return Verdict("True", "NoProgress", f"No update was committed for {limit:.0f} s.")
    else:  # before its first update a trainer may take longer, counted from when it is ready
        ready_since = None
        for pod in s.seen.pods_of(TRAINER):
            ready_since = (condition_of(pod, "Ready", "True") or {}).get("lastTransitionTime", ready_since)
        if s.clock.passed(ready_since, FIRST_UPDATE_SECONDS):
            minutes = FIRST_UPDATE_SECONDS // 60
            return Verdict("True", "NoProgress", f"The trainer has run for {minutes} minutes without an update.")
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


def restated(s: Situation, verdicts: Mapping[str, Verdict]) -> dict[str, Verdict]:
    """Return the conditions that tools of others read, derived from the verdicts that the status shows."""
    over = ("InProgress", "The job is not over.")
    succeeded = verdicts["Succeeded"]
    if succeeded.status != "Unknown":
        over = ("TrainingDone" if succeeded.status == "True" else "JobFailed", succeeded.message)
    reconciling = SETTLED
    if s.mode is Mode.ACTIVE and verdicts["Training"].status != "True":
        reconciling = Verdict(
            "True", "TrainingAwaited", "No update was committed yet; the condition Training says why."
        )
    elif verdicts["Suspended"].status == "Unknown":
        reconciling = Verdict("True", "SuspensionAwaited", "The condition Suspended says what is yet to go.")
    return {
        "Complete": Verdict(str(over[0] == "TrainingDone"), *over),
        "Failed": Verdict(str(over[0] == "JobFailed"), *over),
        "Reconciling": reconciling,
    }


def contested(contention: Contention) -> Verdict:
    """Say whether another process keeps changing a field of a child."""
    fights = contention.fights
    if not fights:
        return Verdict("False", "ChildrenKept", "No field is changed again and again.")
    (kind, name), put_back = next(iter(fights.items()))
    field = max(put_back.rounds, key=lambda field: put_back.rounds[field])
    others = f" So it is with {counted(len(fights) - 1, 'other object')}." if len(fights) > 1 else ""
    if field == DELETED:
        text = (
            f"Another process deletes the {kind} {name} again and again; the operator makes it again ever less often. "
            "The API server's audit log names the process. Stop it, or exempt objects with the label "
            "batchgrowth.dev/job."
        )
        return Verdict("True", "ChildDeleted", truncated(f"{text}{others}"))
    by = f"{put_back.manager} changes" if put_back.manager else "A webhook or another controller changes"
    remedy = REMEDIES.get(
        (kind, field), "Remove what changes it, or exempt objects with the label batchgrowth.dev/job."
    )
    if field.startswith(OF_PODS):  # some platforms, such as GKE Autopilot, set these and exempt nobody
        remedy += " Or give the job the value that is written there."
    text = f"{by} {field} of the {kind} {name} again and again; the operator puts it back ever less often. {remedy}"
    return Verdict("True", "ChildRewritten", truncated(f"{text}{others}"))
