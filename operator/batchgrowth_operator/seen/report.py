"""The trainer's report as it lies in its ConfigMap or with an ended pod, and a trainer that reports nothing.

seen/progress.py checks whether a report fits the job, and job/status.py writes what it says into the status.

A trainer reports at least every LONGEST_PERIOD_SECONDS, also while it waits or evaluates, so silence is news: since
when it lasts, and what the operator finds when it looks for the reason. A trainer that reports but commits no update is
another matter: `stalled` in job/conditions.py has its limit, and sets the condition Stalled for both.
"""

from collections.abc import Hashable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import Any

from batchgrowth import names
from batchgrowth.contract.progress import LONGEST_PERIOD_SECONDS, Progress

from batchgrowth_operator.seen.clock import Clock, timestamp
from batchgrowth_operator.seen.observed import Object, Observed, Ref, condition_of, endings_of, labels_of


def report_of(config_map: Object | None) -> Progress | None:
    """Return the report in the trainer's ConfigMap; None before the first one.

    Raises ValueError, naming the field, if the text is not a report.
    """
    text = text_of(config_map)
    if text is None:
        return None
    return _read(text)


def newest_report(seen: Observed) -> Progress | None:
    """Return the newest report of the job's trainers; None before the first one.

    A trainer that ends repeats its last report as its pod's termination message, in case its last write to the
    ConfigMap failed. Raises ValueError, naming the field, if the ConfigMap's text is not a report.
    """
    written = report_of(seen.child("ConfigMap", names.progress(seen.name)))
    known = []
    for pod in seen.trainer_pods:
        for ending in endings_of(pod):
            if ending["exitCode"] == 0 and ending.get("message"):
                with suppress(ValueError):  # by a trainer of another version, or by a user's code
                    known.append(_read(ending["message"]))
    if written is not None:
        known.append(written)
    return max(known, key=lambda report: report.age, default=None)


def mark_of(config_map: Object | None) -> Hashable:
    """Return the start and the position in the trainer's report, which change as it trains; None without a report.

    A report that cannot be read is its own mark.
    """
    try:
        report = report_of(config_map)
    except ValueError:
        return text_of(config_map)
    if report is None:
        return None
    return report.age


def news_of(config_map: Object) -> Hashable:
    """Return the content of a trainer's ConfigMap without mere progress: it changes only if something else is new."""
    metadata = config_map["metadata"]
    marks = {name: metadata.get(name) for name in ("uid", "labels", "annotations", "ownerReferences")}
    try:
        report = report_of(config_map)
    except ValueError:
        return str(marks), text_of(config_map)
    if report is None:
        return str(marks), None
    # Without what changes while a training goes on; that its pace is known remains.
    lasting = replace(
        report, update=0, epoch=0.0, learning_rate=0.0, loss=None, metrics={}, eta_seconds=None, checkpoint_update=None,
        exchanged=None, beat=None,
        forecast=None if report.forecast is None else replace(report.forecast, due_seconds=None),
        seconds_per_update=None if report.seconds_per_update is None else 1.0,
    )  # fmt: skip
    return str(marks), str(lasting)


def text_of(config_map: Object | None) -> str | None:
    """Return the text of the report in the trainer's ConfigMap; None before the first one."""
    return ((config_map or {}).get("data") or {}).get(names.PROGRESS_KEY)


@lru_cache(maxsize=64)  # a pass reads a report several times, and few passes run at once
def _read(text: str) -> Progress:
    return Progress.from_json(text)


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
