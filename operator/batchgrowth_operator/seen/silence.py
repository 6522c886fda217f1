"""A trainer that reports nothing: since when, and what the operator finds when it looks for the reason.

A trainer reports at least every LONGEST_PERIOD_SECONDS, also while it waits or evaluates, so silence is news. A trainer
that reports but commits no update is another matter: `stalled` in job/conditions.py has its limit, and sets the
condition Stalled for both.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from batchgrowth import names
from batchgrowth.contract.progress import LONGEST_PERIOD_SECONDS, Progress

from batchgrowth_operator.seen.clock import Clock, timestamp
from batchgrowth_operator.seen.observed import Object, Observed, Ref, condition_of, labels_of
from batchgrowth_operator.seen.report import report_of

SILENT_AFTER_SECONDS = 3 * LONGEST_PERIOD_SECONDS
"""Time without a report after which a trainer that runs counts as silent."""
LATE_AFTER_UPDATES = 20
"""Time without an update, in updates, that may pass before a slow job counts as late."""


def is_silent(seen: Observed, clock: Clock) -> bool:
    """Return whether a ready trainer has not reported for SILENT_AFTER_SECONDS; if not, note when it will not have."""
    if seen.last_report is None or not _reports_regularly(seen):
        return False
    if not ((seen.trainer or {}).get("status") or {}).get("ready", 0):
        return False  # the condition Training says why
    return clock.passed(timestamp(seen.last_report), SILENT_AFTER_SECONDS)


def waits_long(seen: Observed, report: Progress | None, clock: Clock) -> bool:
    """Return whether the trainer says that it waits for something, and is late."""
    if report is None or not report.waiting_for or report.seconds_per_update is None:
        return False  # before the first update of a start, workers are starting
    return clock.reached(seen.report_age_seconds, late_after_seconds(report.seconds_per_update, SILENT_AFTER_SECONDS))


def late_after_seconds(seconds_per_update: float, least: float) -> float:
    """Return the time without an update after which a job of this speed is late; at least `least`."""
    return max(least, LATE_AFTER_UPDATES * seconds_per_update)


def needs_inquiry(seen: Observed) -> bool:
    """Return whether to ask the API server why the trainer is silent or waits."""
    clock = Clock(seen.now)
    return is_silent(seen, clock) or (seen.trainer is not None and waits_long(seen, _report(seen), clock))


def _reports_regularly(seen: Observed) -> bool:
    """Return whether the trainer is of a version that reports even if nothing is new, and has not finished."""
    report = _report(seen)
    return report is not None and report.beat is not None and report.weights_sha256 is None


def _report(seen: Observed) -> Progress | None:
    """Return the trainer's report; None if there is none or it cannot be read."""
    try:
        return report_of(seen.child("ConfigMap", names.progress(seen.name)))
    except ValueError:
        return None


def findings(seen: Observed) -> str:
    """Return the sentences about what the operator found: pods, the scheduler, network policies, its right to read."""
    parts = [_trainer(seen), _scheduler(seen), _workers(seen)]
    inquiry = seen.inquiry
    if inquiry is not None and inquiry.refusal:
        parts.append(f"The operator cannot read the reports: {inquiry.refusal}.")
    elif inquiry is not None:
        parts.append("The operator can read the reports.")
    if inquiry is not None and inquiry.policies:
        which = ", ".join(inquiry.policies)
        label = names.JOB_LABEL
        remedy = (
            f"Let them admit what the job's own policy {names.network_policy(seen.name)} admits, or exempt {label}."
        )
        parts.append(f"NetworkPolicies that are not the operator's apply to the job's pods: {which}. {remedy}")
    else:
        parts.append("The trainer's log may say more.")
    return " ".join(parts)


def _trainer(seen: Observed) -> str:
    ready = [pod["metadata"]["name"] for pod in seen.trainer_pods if condition_of(pod, "Ready", "True") is not None]
    if ready:
        return f"The trainer's pod {ready[0]} is ready."
    return "The trainer's pod is not ready."


def _scheduler(seen: Observed) -> str:
    if Ref("Service", names.scheduler(seen.name)) not in seen.parts:
        return "The scheduler has no Service."
    if not seen.is_scheduler_ready:
        return "The scheduler's pod is not ready, so its Service has no endpoint."
    return "The scheduler's pod is ready, so its Service has an endpoint."


def _workers(seen: Observed) -> str:
    workers = seen.workers or {}
    ready = (workers.get("status") or {}).get("readyReplicas", 0)
    desired = (workers.get("spec") or {}).get("replicas", 0)
    return f"{ready} of {desired} worker pods are ready."


def foreign_policies(policies: Iterable[Object], job: str) -> tuple[str, ...]:
    """Return the names of the NetworkPolicies that are not a job's and that apply to pods of this job."""
    roles = ("trainer", "scheduler", "worker")
    found = []
    for policy in policies:
        selector = (policy.get("spec") or {}).get("podSelector") or {}
        applies = any(_selects(selector, names.labels(job, role)) for role in roles)
        if names.JOB_LABEL not in labels_of(policy) and applies:
            found.append(str(policy["metadata"]["name"]))
    return tuple(sorted(found))


def _selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Return whether a label selector selects an object with these labels."""
    if any(labels.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        return False
    return all(_meets(rule, labels) for rule in selector.get("matchExpressions") or ())


def _meets(rule: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    value = labels.get(rule["key"])
    values = rule.get("values") or ()
    operators = {
        "In": value in values,
        "NotIn": value not in values,
        "Exists": value is not None,
        "DoesNotExist": value is None,
    }
    return operators[rule["operator"]]
