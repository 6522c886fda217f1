"""How many workers to request: those of the current stage, and ahead of a milestone those of the next one.

Workers take time to start, so they are requested a lead time before their stage begins. They are kept if a later stage
needs them again soon, so that an unsteady pace does not make pods come and go; if later stages are only forecast, for
some start-up times after the last request.
"""

import math
from dataclasses import dataclass

from batchgrowth import names
from batchgrowth.contract import lead
from batchgrowth.contract.progress import LONGEST_PERIOD_SECONDS
from batchgrowth.contract.status import WorkersStatus
from batchgrowth.spec.pods import CONTAINER

from batchgrowth_operator.seen.clock import parse_timestamp, seconds_since, timestamp_ms
from batchgrowth_operator.seen.observed import Object
from batchgrowth_operator.seen.situation import ClusterPolicy, Mode, Situation, condition, is_held

REPORT_SECONDS = LONGEST_PERIOD_SECONDS + 1.0
"""Longest age of the newest report of a trainer that commits updates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workforce:
    """The numbers of workers desired now, requested, and ready.

    `resize_seconds` is set if this pass is the first to see all requested workers ready. `growth_due_seconds` is the
    time until a later stage's workers must be requested; None if no stage needs more or the pace is unknown.
    `release_due_seconds` is the time until spare workers may be released; None if there are none.
    """

    desired: int
    requested: int
    ready: int
    requested_time: str
    resize_seconds: float | None
    lead_seconds: float
    growth_due_seconds: float | None
    release_due_seconds: float | None

    def status(self, previous: WorkersStatus, selector: str) -> WorkersStatus:
        """The workers' part of the job's status."""
        resized = self.resize_seconds is not None
        return WorkersStatus(
            desired=self.desired,
            requested=self.requested,
            requested_time=self.requested_time,
            ready=self.ready,
            resize_seconds=f"{self.resize_seconds:.3f}" if resized else previous.resize_seconds,
            lead_seconds=f"{self.lead_seconds:.3f}" if resized else previous.lead_seconds,
            selector=selector,
        )


def workforce(s: Situation) -> Workforce:
    """The workforce of the job in this situation."""
    previous = s.previous.workers or WorkersStatus()
    lead_seconds = float(previous.lead_seconds) if previous.lead_seconds else s.defaults.first_lead_seconds
    deployment = s.seen.child("Deployment", names.workers(s.seen.name))
    ready = 0 if s.cluster_policy is ClusterPolicy.DELETE else s.joined
    resize_seconds = _resize_seconds(s, previous, ready)
    if resize_seconds is not None:
        known = float(previous.lead_seconds) if previous.lead_seconds else None
        lead_seconds = lead.smoothed(known, _without_scheduling(s, resize_seconds))
    desired, requested = _counts(s, lead_seconds, deployment, previous)
    changed = requested != previous.requested or previous.requested_time is None
    requested_time = timestamp_ms(s.seen.now) if changed else str(previous.requested_time)
    return Workforce(
        desired=desired,
        requested=requested,
        ready=ready,
        requested_time=requested_time,
        resize_seconds=resize_seconds,
        lead_seconds=lead_seconds,
        growth_due_seconds=_growth_due(s, lead_seconds, requested),
        release_due_seconds=_release_due(s, lead_seconds, requested_time) if requested > desired else None,
    )


def selector(s: Situation) -> str:
    """The label selector of the job's worker pods."""
    return names.selector(s.seen.name, CONTAINER)


def _counts(s: Situation, lead_seconds: float, deployment: Object | None, previous: WorkersStatus) -> tuple[int, int]:
    """Workers desired and to request. A job that ends or pauses keeps its workers until its trainer has ended."""
    if s.mode is not Mode.ACTIVE:
        kept = s.cluster_policy is ClusterPolicy.KEEP and deployment is not None
        return 0, int(deployment["spec"].get("replicas", 0)) if kept and deployment else 0
    before = min(previous.requested, s.spec.workers.maximum)
    bound, age = s.spec.workers.lead_seconds, _request_age(s, previous.requested_time)
    return s.stage.workers, lead.requested(s.stage.workers, _upcoming(s), before, lead_seconds, bound, age)


def _request_age(s: Situation, requested_time: str | None) -> float:
    """Seconds since the last request if later stages are only forecast; infinite if the plan knows them."""
    return seconds_since(requested_time, s.seen.now) if s.quantity else math.inf


def _release_due(s: Situation, lead_seconds: float, requested_time: str) -> float:
    return lead.release_after(lead_seconds, s.spec.workers.lead_seconds) - _request_age(s, requested_time)


def _upcoming(s: Situation) -> list[lead.Upcoming]:
    """The later stages, each with the seconds until it begins at the current pace; none if the pace is unknown.

    They include the stage that is forecast. The time since the last report counts up to the length of one update or
    one report: a trainer that stands still comes no nearer to its milestone.
    """
    if s.report is None or s.report.seconds_per_update is None:
        return []
    pace = s.report.seconds_per_update
    age = min(s.report_age_seconds, max(pace, REPORT_SECONDS))
    later = s.expected.stages[s.stage.index + 1 :]
    due_seconds = (max(0.0, (stage.first_update - s.update) * pace - age) for stage in later)
    return [lead.Upcoming(stage.workers, due) for stage, due in zip(later, due_seconds, strict=True)]


def _growth_due(s: Situation, lead_seconds: float, requested: int) -> float | None:
    window = lead.window(lead_seconds, s.spec.workers.lead_seconds)
    growing = (stage.due_seconds for stage in _upcoming(s) if stage.workers > requested)
    return min((due - window for due in growing if due > window), default=None)


def _without_scheduling(s: Situation, resize_seconds: float) -> float:
    """The resize time without the wait for a free node, which says nothing about a worker's start-up time."""
    placed = _since(s, "PodScheduled")
    return min(resize_seconds, seconds_since(max(placed), s.seen.now)) if placed else resize_seconds


def _since(s: Situation, kind: str) -> list[str]:
    """The transition times of that condition for all worker pods on which it holds."""
    return [
        str(condition["lastTransitionTime"])
        for pod in s.seen.pods_of(CONTAINER)
        for condition in (pod.get("status") or {}).get("conditions") or ()
        if condition.get("type") == kind and condition.get("status") == "True"
    ]


def _resize_seconds(s: Situation, previous: WorkersStatus, ready: int) -> float | None:
    """Seconds from the request until all workers were ready, if the job was scaling up and they are now; else None.

    If workers were lost after the request, the time counts from their loss, provided that a pod became ready since:
    workers that only reconnected to a restarted trainer say nothing about a worker's start-up time. Nor do workers that
    are lost again and again.
    """
    resizing = None if is_held(s.previous, "Resizing") else condition(s.previous, "Resizing")
    if resizing is None or (resizing.status, resizing.reason) != ("True", "ScalingUp") or ready < previous.requested:
        return None
    requested, missing = str(previous.requested_time), resizing.last_transition_time
    if parse_timestamp(requested) >= parse_timestamp(missing):
        return seconds_since(requested, s.seen.now)
    ready_since = _since(s, "Ready")
    if ready_since and parse_timestamp(max(ready_since)) < parse_timestamp(missing):
        return None
    return seconds_since(missing, s.seen.now)
