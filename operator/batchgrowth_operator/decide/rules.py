"""One small rule for each condition: from the situation to whether it holds, why, and a sentence for people."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from batchgrowth import names

from batchgrowth_operator.decide.scaling import Workforce
from batchgrowth_operator.decide.situation import Mode, Situation, condition
from batchgrowth_operator.seen.moments import seconds_since
from batchgrowth_operator.seen.scheduler import is_ready
from batchgrowth_operator.seen.trainer_outcome import last_ending
from batchgrowth_operator.seen.troubles import cluster_trouble, trainer_trouble

DEGRADED_AFTER_SECONDS = 10
STALLED_AFTER_SECONDS = 120
STALLED_AFTER_UPDATES = 20


class Verdict(NamedTuple):
    """Status, reason and message of a condition."""

    status: str
    reason: str
    message: str = ""


Rule = Callable[[Situation, Workforce], Verdict]


def accepted(s: Situation, w: Workforce) -> Verdict:  # noqa: ARG001
    """A situation has a plan."""
    return Verdict("True", "PlanMade", f"{len(s.plan.stages)} stages, {s.plan.updates} updates.")


def cluster_ready(s: Situation, w: Workforce) -> Verdict:
    """A scheduler, and as many workers as are wanted now; or what keeps them."""
    if s.mode is not Mode.ACTIVE:
        return Verdict("False", "Released")
    trouble = cluster_trouble(s.seen)
    if w.ready >= w.desired and is_ready(s.seen) and not s.seen.failures:
        return Verdict("True", "AllWorkersJoined", f"{w.desired} wanted.")
    if trouble is not None:
        return Verdict("False", trouble.reason, trouble.message)
    if not is_ready(s.seen):
        return Verdict("False", "WaitingForScheduler")
    return Verdict("False", "WaitingForWorkers", f"{w.ready} of {w.desired} have joined.")


def training(s: Situation, w: Workforce) -> Verdict:  # noqa: ARG001
    """Updates are being committed, or what keeps the trainer from it."""
    if s.mode is Mode.OVER:
        return Verdict("False", "Ended")
    if s.mode is Mode.SUSPENDED:
        return Verdict("False", "Paused")
    trainer = s.seen.child("Job", names.trainer(s.seen.name))
    status = (trainer or {}).get("status") or {}
    trouble = trainer_trouble(s.seen) if not status.get("ready", 0) else None
    if trouble is not None:
        return Verdict("False", trouble.reason, trouble.message)
    if status.get("failed", 0) > 0 and not status.get("ready", 0):
        return Verdict("False", "TrainerRestarting", last_ending(s.seen))
    return Verdict("True", "UpdatesCommitted") if s.update else Verdict("False", "NotStarted")


def resizing(s: Situation, w: Workforce) -> Verdict:
    """Workers are on their way in or out."""
    if s.mode is not Mode.ACTIVE or w.ready == w.requested:
        return Verdict("False", "AtTarget")
    reason = "ScalingUp" if w.ready < w.requested else "ScalingDown"
    return Verdict("True", reason, f"{w.ready} are there, {w.requested} were asked for.")


def degraded(s: Situation, w: Workforce) -> Verdict:
    """The training goes on, but workers of the present stage have been missing for a while."""
    missing = seconds_missing(s, w)
    if missing is None or missing < degraded_after(s):
        return Verdict("False", "FullStrength")
    trouble = cluster_trouble(s.seen)
    why = f" {trouble.message}" if trouble else ""
    return Verdict("True", "TooFewWorkers", f"{w.ready} of {w.desired} workers are there.{why}"[:1024])


def stalled(s: Situation, w: Workforce) -> Verdict:  # noqa: ARG001
    """The trainer reported before and reports no more."""
    limit = stalled_after(s)
    if limit is None or s.report_age_seconds < limit:
        return Verdict("False", "ProgressSeen")
    return Verdict("True", "NoProgress", f"No update within {limit:.0f} s.")


def suspended(s: Situation, w: Workforce) -> Verdict:  # noqa: ARG001
    """The job holds no workers because the spec says so."""
    if s.mode is not Mode.SUSPENDED:
        return Verdict("False", "NotSuspended")
    return Verdict("Unknown", "Checkpointing") if s.is_trainer_running else Verdict("True", "BySpec")


def succeeded(s: Situation, w: Workforce) -> Verdict:  # noqa: ARG001
    """How the job ended."""
    if s.outcome is None:
        return Verdict("Unknown", "InProgress")
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


def degraded_after(s: Situation) -> int:
    """Seconds that workers may be missing before the job counts as degraded."""
    return max(s.spec.workers.wait_seconds, DEGRADED_AFTER_SECONDS)


def seconds_missing(s: Situation, w: Workforce) -> float | None:
    """Seconds since workers of the present stage began to be missing from a training; None where none is."""
    if s.mode is not Mode.ACTIVE or not s.update or w.ready >= w.desired:
        return None
    ready = condition(s.told, "ClusterReady")
    began = ready is not None and ready.status == "False"
    return seconds_since(ready.last_transition_time, s.seen.now) if ready is not None and began else 0.0


def stalled_after(s: Situation) -> float | None:
    """Seconds without an update after which a training counts as stalled; None where none is to be expected."""
    if s.mode is not Mode.ACTIVE or s.report is None or s.report.seconds_per_update is None:
        return None
    return max(STALLED_AFTER_SECONDS, STALLED_AFTER_UPDATES * s.report.seconds_per_update)
