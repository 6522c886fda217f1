"""How many workers to ask for: those of the present stage, and ahead of a milestone those of the next.

Workers take a while to come, so they are asked for that much earlier, and are let go only when they are not wanted
again before long: a pace that wavers must not make pods come and go.
"""

from __future__ import annotations

from dataclasses import dataclass

from batchgrowth import names
from batchgrowth.plan import Stage
from batchgrowth.status import WorkersStatus

from batchgrowth_operator.decide.overlay import CONTAINER
from batchgrowth_operator.decide.retention import Cluster, cluster_policy
from batchgrowth_operator.decide.situation import Mode, Situation, condition
from batchgrowth_operator.seen.moments import fine_stamp, moment, seconds_since
from batchgrowth_operator.seen.observed import Object

SLACK = 1.5
"""Workers are asked for earlier than they took by this factor, for they do not always take the same."""
RELEASE_SLACK = 10.0
"""Workers that are wanted again within so many lead times are kept."""
SMOOTHING = 0.5
REPORT_SECONDS = 2.0
"""A trainer that commits updates reports within this time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workforce:
    """The workers wanted now, asked for, and there; `took` where this pass saw the last of those asked for arrive.

    `growth_due_seconds` says when a later stage's workers are to be asked for; None where none are, or no pace is
    known.
    """

    desired: int
    requested: int
    ready: int
    requested_time: str
    took: float | None
    lead_seconds: float
    growth_due_seconds: float | None

    def status(self, told: WorkersStatus, selector: str) -> WorkersStatus:
        """What the status says of them."""
        return WorkersStatus(
            desired=self.desired,
            requested=self.requested,
            requested_time=self.requested_time,
            ready=self.ready,
            resize_seconds=told.resize_seconds if self.took is None else f"{self.took:.3f}",
            lead_seconds=told.lead_seconds if self.took is None else f"{self.lead_seconds:.3f}",
            selector=selector,
        )


def workforce(s: Situation) -> Workforce:
    """The workers of the job in this situation."""
    told = s.told.workers or WorkersStatus()
    lead = float(told.lead_seconds) if told.lead_seconds else s.defaults.first_lead_seconds
    deployment = s.seen.child("Deployment", names.workers(s.seen.name))
    ready = 0 if cluster_policy(s) is Cluster.RELEASE else joined(s)
    took = _took(s, told, ready)
    if took is not None:
        lead = _next_lead(s, told, took)
    desired, requested = _counts(s, lead, deployment, told.requested)
    changed = requested != told.requested or told.requested_time is None
    return Workforce(
        desired=desired,
        requested=requested,
        ready=ready,
        requested_time=fine_stamp(s.seen.now) if changed else str(told.requested_time),
        took=took,
        lead_seconds=lead,
        growth_due_seconds=_growth_due(s, lead, requested),
    )


def selector(s: Situation) -> str:
    """The label selector of the job's worker pods."""
    return names.selector(s.seen.name, CONTAINER)


def joined(s: Situation) -> int:
    """Workers that could train: those that the trainer counts, of pods that are ready.

    A pod is ready before its worker has registered and loaded what it needs, and the trainer learns late of a pod that
    is gone. Where no trainer tells, the pods count.
    """
    deployment = s.seen.child("Deployment", names.workers(s.seen.name))
    pods = int(((deployment or {}).get("status") or {}).get("readyReplicas", 0))
    told = s.report.ready if s.report is not None and s.is_trainer_running else None
    return pods if told is None else min(pods, told)


def _counts(s: Situation, lead: float, deployment: Object | None, asked: int) -> tuple[int, int]:
    """Workers wanted and to ask for. A job that ends or pauses keeps what it has until its trainer is done."""
    if s.mode is not Mode.ACTIVE:
        kept = cluster_policy(s) is Cluster.KEEP and deployment is not None
        return 0, int(deployment["spec"].get("replicas", 0)) if kept and deployment else 0
    soon = _most(s, min(lead * SLACK, s.spec.workers.lead_seconds))
    later = _most(s, lead * RELEASE_SLACK if s.spec.workers.lead_seconds else 0)
    return s.stage.workers, soon if soon > asked else max(soon, min(later, asked))


def _most(s: Situation, seconds: float) -> int:
    """The most workers that a stage wants which begins within so many seconds."""
    return max([s.stage.workers, *(stage.workers for stage, due in _ahead(s) if due <= seconds)])


def _ahead(s: Situation) -> list[tuple[Stage, float]]:
    """The stages to come, each with the seconds until it begins at the present pace; none without a pace.

    Time since the last report counts, but no more than one update's or one report's: a trainer that stands still
    comes no nearer.
    """
    if s.report is None or s.report.seconds_per_update is None:
        return []
    pace = s.report.seconds_per_update
    age = min(s.report_age_seconds, max(pace, REPORT_SECONDS))
    later = s.plan.stages[s.stage.index + 1 :]
    return [(stage, max(0.0, (stage.first_update - s.update) * pace - age)) for stage in later]


def _growth_due(s: Situation, lead: float, requested: int) -> float | None:
    window = min(lead * SLACK, s.spec.workers.lead_seconds)
    due = [due - window for stage, due in _ahead(s) if stage.workers > requested and due > window]
    return min(due, default=None)


def _next_lead(s: Situation, told: WorkersStatus, took: float) -> float:
    """The first time that workers took is all that is known; later ones are smoothed."""
    seconds = _without_the_wait_for_a_node(s, took)
    if told.lead_seconds is None:
        return seconds
    return float(told.lead_seconds) + SMOOTHING * (seconds - float(told.lead_seconds))


def _without_the_wait_for_a_node(s: Situation, took: float) -> float:
    """Nodes that were full say nothing of how long a worker takes to start."""
    placed = _since(s, "PodScheduled")
    return min(took, seconds_since(max(placed), s.seen.now)) if placed else took


def _since(s: Situation, kind: str) -> list[str]:
    """Since when that condition holds of the worker pods of which it does."""
    return [
        str(condition["lastTransitionTime"])
        for pod in s.seen.pods_of(CONTAINER)
        for condition in (pod.get("status") or {}).get("conditions") or ()
        if condition.get("type") == kind and condition.get("status") == "True"
    ]


def _took(s: Situation, told: WorkersStatus, ready: int) -> float | None:
    """Seconds from asking until all were there, where they were on their way and now are there; else None.

    Where some were missing again later, it is from then on, if a pod came since: workers that only had to meet another
    trainer say nothing of how long a worker takes to come.
    """
    resizing = condition(s.told, "Resizing")
    if resizing is None or (resizing.status, resizing.reason) != ("True", "ScalingUp") or ready < told.requested:
        return None
    asked, missing = str(told.requested_time), resizing.last_transition_time
    if moment(asked) >= moment(missing):
        return seconds_since(asked, s.seen.now)
    came = _since(s, "Ready")
    return seconds_since(missing, s.seen.now) if not came or moment(max(came)) >= moment(missing) else None
