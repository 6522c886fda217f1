"""How many workers to request, as replicas of their Deployment: for the current stage, and early for the next.

Workers take time to start, so they are requested a lead time before the milestone at which their stage begins. Workers
are kept if a later stage needs them again soon, so that an unsteady pace does not make pods come and go. If later
stages are only forecast, workers are kept for some start-up times after the last request.

Here the number is computed, with the arithmetic of batchgrowth/contract/lead_time.py. children/dask_cluster.py puts it
into the Deployment's manifest; job/reconcile.py compares that with the Deployment that is there, and api/apply.py
(`Writer._apply`) patches it, also after others have changed it. A pod that finds no node does not lower the number: the
job trains with the workers that have joined, and job/conditions.py reports the problem that seen/problems.py finds.
"""

import math
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

from batchgrowth.contract import lead_time
from batchgrowth.contract.progress import LONGEST_PERIOD_SECONDS
from batchgrowth.contract.status import WorkersStatus
from batchgrowth.errors import Fault, PodLimitError
from batchgrowth.manifest.pod_limits import PodLimits, pod_faults

from batchgrowth_operator.children.dask_cluster import worker_template
from batchgrowth_operator.children.drift import digest
from batchgrowth_operator.seen.observed import WORKER, condition, condition_of, seconds_since, timestamp_ms
from batchgrowth_operator.seen.progress import MOST_TEXTS
from batchgrowth_operator.seen.situation import ClusterPolicy, Mode, Situation, is_held

REPORT_SECONDS = LONGEST_PERIOD_SECONDS + 1.0
"""Longest age of the newest report of a trainer that commits updates."""
FIRST_LEAD_SECONDS = 10.0
"""Start-up time of workers that is assumed until a job's workers have been timed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workforce:
    """The workers of a job: how many, how long they take to start, and their pods."""

    desired: int
    """Workers that the current stage needs."""
    requested: int
    """Replicas of the Deployment."""
    ready: int
    """Workers that can train."""
    requested_time: str
    """When the requested number last changed."""
    resize_seconds: float | None
    """Seconds until all requested workers were ready, if this pass is the first to see that; None otherwise."""
    lead_seconds: float
    """Smoothed start-up time of workers."""
    template: dict[str, Any]
    """Their pod template."""
    refused: PodLimitError | None
    """What in the template exceeds the limits of the installation; None if nothing does."""


def workforce(s: Situation) -> Workforce:
    """Return the workforce of the job in this situation, and note in the clock when time alone changes the request."""
    previous = s.previous.workers or WorkersStatus()
    ready = 0 if s.cluster_policy is ClusterPolicy.DELETE else s.joined

    # The start-up time, if workers were requested and are all there now.
    lead_seconds = FIRST_LEAD_SECONDS
    known = float(previous.lead_seconds) if previous.lead_seconds else None
    if known is not None:
        lead_seconds = known
    resize_seconds = _resize_seconds(s, previous, ready)
    if resize_seconds is not None:
        startup_seconds = resize_seconds
        placed = _times_of(s, "PodScheduled")
        if placed:  # the wait for a free node says nothing about a worker's start-up time
            startup_seconds = min(resize_seconds, seconds_since(max(placed), s.seen.now))
        lead_seconds = lead_time.smoothed(known, startup_seconds)

    # The numbers. A job that ends or pauses keeps its workers until its trainer has ended.
    bound = s.spec.workers.lead_seconds
    # The seconds of an update as the trainer that runs reports them; None before it does.
    pace = None
    if s.report is not None and not s.is_report_awaited:
        pace = s.report.seconds_per_update
    upcoming = _upcoming(s, pace)
    desired = 0
    requested = 0
    if s.mode is Mode.ACTIVE:
        desired = s.stage.workers
        # If later stages are only forecast, the age of the last request counts.
        request_age = seconds_since(previous.requested_time, s.seen.now) if s.quantity else math.inf
        # A user who lowers the maximum wants the workers gone at once, and not after the release time.
        before = min(previous.requested, s.spec.workers.maximum)
        requested = lead_time.requested(desired, upcoming, before, lead_seconds, bound, request_age)
        if s.update and bound != 0 and pace is None:
            # When the later stages begin is unknown, so the workers that were requested for any of them stay.
            most = max(stage.workers for stage in s.expected.stages[s.stage.index :])
            requested = max(requested, min(before, most))
    elif s.cluster_policy is ClusterPolicy.KEEP and s.seen.workers is not None:
        requested = int(s.seen.workers["spec"].get("replicas", 0))
    requested_time = previous.requested_time
    if requested_time is None or requested != previous.requested:
        requested_time = timestamp_ms(s.seen.now)

    # When time alone changes the request: a later stage comes within the window, or spare workers are released.
    window = lead_time.window(lead_seconds, bound)
    for stage in upcoming:
        if stage.workers > requested:
            s.clock.wake_in(stage.due_seconds - window)
    if requested > desired and s.quantity:
        s.clock.wake_in(lead_time.release_after(lead_seconds, bound) - seconds_since(requested_time, s.seen.now))

    template = worker_template(s)
    # Remembered by the template's digest, and not by the spec alone: the template has the operator's defaults too.
    remembered = _remembered_faults(s.text, digest(template), s.defaults.pods)
    if not remembered:
        remembered.append(pod_faults(s.spec, template, s.defaults.pods))
    faults = remembered[0]
    return Workforce(
        desired=desired,
        requested=requested,
        ready=ready,
        requested_time=requested_time,
        resize_seconds=resize_seconds,
        lead_seconds=lead_seconds,
        template=template,
        refused=PodLimitError(faults) if faults else None,
    )


@lru_cache(maxsize=MOST_TEXTS)
def _remembered_faults(text: str, template: str, limits: PodLimits) -> list[tuple[Fault, ...]]:  # noqa: ARG001
    """Return the list to which the caller adds how pods of that template exceed the limits; empty before.

    Walking the template takes longer than the rest of a pass, and only an edit of the spec or an upgrade changes it.
    `template` is its digest.
    """
    return []


def _upcoming(s: Situation, pace: float | None) -> list[lead_time.Upcoming]:
    """Return the later stages with the seconds until each begins at the current pace; none if the pace is unknown.

    They include the stage that is forecast. Of the time since the last report, at most one update or one report
    interval counts, because a trainer that stands still comes no nearer to its milestone.
    """
    if pace is None:
        return []
    age = min(s.report_age_seconds, max(pace, REPORT_SECONDS))
    upcoming = []
    for stage in s.expected.stages[s.stage.index + 1 :]:
        begins_in = max(0.0, (stage.first_update - s.update) * pace - age)
        upcoming.append(lead_time.Upcoming(stage.workers, begins_in))
    return upcoming


def _resize_seconds(s: Situation, previous: WorkersStatus, ready: int) -> float | None:
    """Return the seconds from the request until all workers were ready; None unless a scale-up has just completed.

    If workers were lost after the request, the time counts from their loss, if a pod has become ready since. Workers
    that only reconnected to a restarted trainer, or that are lost repeatedly, say nothing about start-up times.
    """
    resizing = condition(s.previous, "Resizing")
    is_scaling_up = resizing is not None and resizing.status == "True" and resizing.reason != "ScalingDown"
    requested = previous.requested_time
    if resizing is None or not is_scaling_up or requested is None or ready < previous.requested:
        return None
    if is_held(s.previous, "Resizing"):
        return None
    missing = resizing.last_transition_time
    if datetime.fromisoformat(requested) >= datetime.fromisoformat(missing):
        return seconds_since(requested, s.seen.now)
    ready_since = _times_of(s, "Ready")
    if ready_since and datetime.fromisoformat(max(ready_since)) < datetime.fromisoformat(missing):
        return None
    return seconds_since(missing, s.seen.now)


def _times_of(s: Situation, kind: str) -> list[str]:
    """Return when that condition last changed in each worker pod in which it is true.

    Kubelets of virtual nodes leave the time out.
    """
    found = [condition_of(pod, kind, "True") or {} for pod in s.seen.pods_of(WORKER)]
    return [one["lastTransitionTime"] for one in found if one.get("lastTransitionTime")]
