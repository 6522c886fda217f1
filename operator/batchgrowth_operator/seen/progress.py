"""A job's progress: its plan as decided so far, its position in that plan, and whether its trainer still reports.

Plan and position follow from the trainer's report, or from the stored status if there is no usable report. The report
lies in a ConfigMap or with an ended pod. It comes from a pod that runs a user's code, so a report that does not fit the
spec is ignored. job/status.py writes what it says into the status.

A trainer reports at least every LONGEST_PERIOD_SECONDS, also while it waits or evaluates, so silence is news:
`is_silent` notices it, and `findings` tells what the operator finds when it looks for the reason. A trainer that
reports but commits no update is another matter: `stalled` in job/conditions.py has its limit, and sets the condition
Stalled for both.
"""

import json
import math
import re
from collections.abc import Hashable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from operator import attrgetter
from typing import Any

from batchgrowth import names
from batchgrowth.contract.progress import LARGEST_START, LONGEST_PERIOD_SECONDS, Progress
from batchgrowth.contract.status import JobStatus, StageRecord, TrainerStatus
from batchgrowth.errors import Fault, PlanError, SpecError
from batchgrowth.looks import LARGEST_BATCH
from batchgrowth.manifest.reading import StoredJob, read_stored, stored_text
from batchgrowth.notes import remarks
from batchgrowth.plan import MOST_DECISIONS, BatchDecision, Plan, make_plan
from batchgrowth.spec import JobSpec

from batchgrowth_operator.seen.observed import (
    Clock,
    Object,
    Observed,
    Ref,
    condition_of,
    endings_of,
    labels_of,
    timestamp,
)

LARGEST_COUNT = 2**31 - 1
"""The largest count of workers or seconds in a report."""
LARGEST_TIME = 2**37
"""The largest time in a report, in Unix seconds: what a date can hold."""
SHA256 = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingState:
    """The progress of a job's training."""

    plan: Plan
    """The plan that follows from the decisions."""
    expected: Plan
    """The plan with the stage that the report forecasts, if it forecasts one."""
    decisions: tuple[BatchDecision, ...]
    report: Progress | None
    """The trainer's report if it is usable."""
    update: int
    """The number of updates done."""
    forgotten: int = 0
    """The number of stages that the history in the status has dropped; 0 with a report."""
    misfit: str = ""
    """Why there is a report but no usable one; empty otherwise."""
    reported_epochs: int | None = None
    """The epochs that the reporting trainer trains for, if spec.epochs has grown since; None if it has not."""


def training_state(text: str, seen: Observed, previous: JobStatus) -> TrainingState:
    """Return the progress of the job with that text.

    Raises SpecError if its spec is refused, PlanError if it has no plan.
    """
    reported = None
    misfit = ""
    try:
        reported = _reported(text, seen)
    except ValueError as error:
        misfit = str(error)

    age = age_of(previous)
    if reported is not None:
        report, plan, epochs = reported
        if report.age >= age:  # not from before the status
            expected = None
            if report.forecast is not None and report.ended_at_epoch is None:
                next_decision = BatchDecision(report.forecast.update, report.forecast.batch_size, math.inf)
                expected = _decided(text, (*report.decisions, next_decision))  # None if it does not fit the spec
            return TrainingState(
                plan=plan,
                expected=expected or plan,
                decisions=report.decisions,
                report=report,
                update=report.update,
                reported_epochs=epochs,
            )

    known = previous.trainer_status
    done = 0 if known is None else known.update or 0
    # If the state of an earlier start was lost, its decisions were lost too.
    history = () if is_awaited(known) and not done else previous.history
    plan, decisions, forgotten = _remembered(text, history)
    return TrainingState(
        plan=plan,
        expected=plan,
        decisions=decisions,
        report=None,
        update=min(done, plan.updates),
        forgotten=forgotten,
        misfit=misfit,
    )


def age_of(status: JobStatus) -> tuple[int, int, int]:
    """Return the age of the report from which the status was made: see Progress.age."""
    known = status.trainer_status
    if known is None:
        return 0, 0, 0
    start = known.start or 0
    if is_awaited(known):  # it goes on from a checkpoint, which may be older
        return start, 0, 0
    times = 0
    if status.findings and status.findings[-1].start == start:
        times = status.findings[-1].times
    return start, times, known.update or 0


def is_awaited(known: TrainerStatus | None) -> bool:
    """Return whether the status is of a start that has not reported yet; it already has the number of that start."""
    return known is not None and known.last_updated_time is None


def job_text(seen: Observed) -> str:
    """Return the job without its status as text, which is the key of cached specs and plans."""
    job = {
        "apiVersion": seen.job["apiVersion"],
        "kind": seen.job["kind"],
        "metadata": {"name": seen.name, "namespace": seen.namespace},
        "spec": seen.job.get("spec"),
    }
    return stored_text(job)


MOST_TEXTS = 2048
"""Jobs of which the operator remembers what follows from the text of their spec."""


@lru_cache(maxsize=MOST_TEXTS)
def stored(text: str) -> StoredJob:
    """Return the job in the text. Raises SpecError if its spec is refused."""
    return read_stored(text)


def spec_of(text: str) -> JobSpec:
    """Return the spec in the text. Raises SpecError if it is refused."""
    return stored(text).job.spec


@lru_cache(maxsize=MOST_TEXTS)
def undecided(text: str) -> Plan:
    """Return the plan that follows from the spec alone. If the growth is measured, the batch of this plan never
    changes.
    """
    return make_plan(spec_of(text))


@lru_cache(maxsize=MOST_TEXTS)
def quantity_of(text: str) -> str:
    """Return the quantity that the growth rule measures; empty if the plan follows from the spec alone."""
    quantity: str = spec_of(text).batch.growth.entry.quantity
    return quantity


@lru_cache(maxsize=MOST_TEXTS)
def remarks_of(text: str) -> tuple[Fault, ...]:
    """Return what in the spec can never act in its plan, or wastes workers."""
    return remarks(spec_of(text), undecided(text))


def current_run(history: Iterable[StageRecord]) -> tuple[StageRecord, ...]:
    """Return the newest records with rising indices: a restarted trainer may have begun earlier stages again."""
    run: list[StageRecord] = []
    for record in reversed(tuple(history)):
        if not run or record.index < run[-1].index:
            run.append(record)
    return tuple(reversed(run))


def _reported(text: str, seen: Observed) -> tuple[Progress, Plan, int | None] | None:
    """Return the trainer's report, the plan that follows from its decisions, and the epochs that it trains for.

    The epochs are None if they are the spec's, and the result is None before the first report. Raises ValueError,
    naming the field, if this job cannot have made the report.
    """
    report = newest_report(seen)
    if report is None:
        return None
    before = int(report.epochs)
    plan = _decided(text, report.decisions)
    may_be_shorter = plan is not None and plan.updates != report.updates and report.ended_at_epoch is None
    if plan is None or not (may_be_shorter and 0 < before < spec_of(text).epochs):
        return report, _plan_of(text, report), None

    # spec.epochs has grown, and the trainer does not know it yet.
    shorter = json.loads(text)
    shorter["spec"]["epochs"] = before
    try:
        _plan_of(stored_text(shorter), report)
    except (SpecError, PlanError) as error:
        raise ValueError(f"progress.epochs: {before}; {error}") from error
    longer = replace(report, updates=plan.updates, epochs=plan.epochs, eta_seconds=None, weights_sha256=None)
    return longer, plan, before


def _plan_of(text: str, report: Progress) -> Plan:
    """Return the plan that follows from a report's decisions.

    Raises ValueError, naming the field, if this job cannot have made the report.
    """
    plan = _decided(text, report.decisions)
    if plan is None:
        raise ValueError("progress.decisions: not those of a training of this job")

    end = report.ended_at_epoch
    if end is not None:
        stop = spec_of(text).evaluation.stop_early
        every = spec_of(text).evaluation.every_epochs
        if stop is None or end % every or not stop.patience * every <= end < plan.epochs:
            raise ValueError(f"progress.ended_at_epoch: {end}; spec.evaluation.stopEarly ends no training there")
        plan = plan.until(end)

    # A pod with a user's code wrote the report: even a well-formed one may have impossible numbers, which the status
    # would show and requests for workers would follow.
    updates = plan.updates
    if report.updates != updates:
        raise ValueError(f"progress.updates: {report.updates:g}; the plan allows {updates}")
    largest: list[tuple[str, float, int]] = [
        ("update", report.update, updates),
        ("checkpoint_update", report.checkpoint_update or 0, updates),
        ("epoch", report.epoch, plan.epochs),
        ("start", report.start, LARGEST_START - 1),  # the next start has a number too
        ("ready", report.ready or 0, LARGEST_COUNT),
        ("seconds_per_update", report.seconds_per_update or 0, LARGEST_COUNT),
    ]
    if report.went_back is not None:
        largest += [
            ("went_back.times", report.went_back.times, LARGEST_COUNT),
            ("went_back.reached", report.went_back.reached, LARGEST_START),  # a plan that was undone may have had more
            ("went_back.update", report.went_back.update, report.went_back.reached),
        ]
    by_stage = (
        ("crews", report.crews, LARGEST_COUNT),
        ("pauses", report.pauses, LARGEST_COUNT),
        ("begun", report.begun, LARGEST_TIME),
    )
    for part, numbers, most in by_stage:
        for stage, number in numbers.items():
            largest.append((f"{part}.{stage}", number, most))
    for name, number, most in largest:
        if not 0 <= number <= most:
            raise ValueError(f"progress.{name}: {number:g}; the plan allows 0 to {most}")
    if report.weights_sha256 is not None and not SHA256.fullmatch(report.weights_sha256):
        raise ValueError("progress.weights_sha256: not the 64 hexadecimal digits of a SHA-256")
    return plan


def _remembered(text: str, history: Iterable[StageRecord]) -> tuple[Plan, tuple[BatchDecision, ...], int]:
    """Return the plan and the decisions in the status's history, and how many earlier stages the history has dropped.

    The history keeps the newest 64 stages, which is enough for the batch and the first update of the current one.
    """
    if not quantity_of(text):
        return undecided(text), (), 0
    run = [record for record in current_run(history) if record.index]
    decisions = []
    for record in run:  # without the value that decided, which no plan depends on
        wanted = record.batch_size if record.wanted is None else record.wanted
        decisions.append(BatchDecision(update=record.first_update or 0, wanted=wanted, value=math.inf))
    plan = _decided(text, tuple(decisions))
    if plan is None:
        return undecided(text), (), 0
    return plan, tuple(decisions), run[0].index - 1 if run else 0


@lru_cache(maxsize=MOST_TEXTS)
def _decided(text: str, decisions: tuple[BatchDecision, ...]) -> Plan | None:
    """Return the plan that follows from these decisions; None if this spec does not allow them."""
    if not decisions:
        return undecided(text)
    spec = spec_of(text)
    if not quantity_of(text) or len(decisions) > MOST_DECISIONS:
        return None
    if not all(1 <= decision.wanted <= LARGEST_BATCH for decision in decisions):
        return None
    updates = [0, *(decision.update for decision in decisions)]
    if not all(one < other for one, other in pairwise(updates)):
        return None
    plan = make_plan(spec, decisions)
    if len(plan.stages) != len(decisions) + 1:  # each decision before the end begins a stage
        return None
    return plan


# --- The trainer's report, as it lies in its ConfigMap or with an ended pod ---


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
    written = report_of(seen.children.get(Ref("ConfigMap", seen.names.progress)))
    known = []
    for pod in seen.trainer_pods:
        for ending in endings_of(pod):
            if ending["exitCode"] == 0 and ending.get("message"):
                with suppress(ValueError):  # by a trainer of another version, or by a user's code
                    known.append(_read(ending["message"]))
    if written is not None:
        known.append(written)
    return max(known, key=attrgetter("age"), default=None)


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
    # Without what changes while training goes on; of the pace, only whether it is known remains.
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


# --- A trainer that reports nothing ---

SILENT_AFTER_SECONDS = 3 * LONGEST_PERIOD_SECONDS
"""Time without a report after which a trainer that runs counts as silent."""
LATE_AFTER_UPDATES = 20
"""Time without an update, in updates, that may pass before a slow job counts as late."""


def is_silent(seen: Observed, clock: Clock) -> bool:
    """Return whether a ready trainer has been silent for SILENT_AFTER_SECONDS; if not, note when it will have been."""
    report = _report(seen)
    if seen.last_report is None or report is None:
        return False
    if report.beat is None or report.weights_sha256 is not None:
        return False  # of a version that reports only what is new, or of a trainer that has finished
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


def _report(seen: Observed) -> Progress | None:
    """Return the trainer's report; None if there is none or it cannot be read."""
    try:
        return report_of(seen.children.get(Ref("ConfigMap", seen.names.progress)))
    except ValueError:
        return None


def findings(seen: Observed) -> str:
    """Return the sentences about what the operator found: pods, the scheduler, network policies, its right to read."""
    parts = ["The trainer's pod is not ready."]
    ready = [pod["metadata"]["name"] for pod in seen.trainer_pods if condition_of(pod, "Ready", "True") is not None]
    if ready:
        parts = [f"The trainer's pod {ready[0]} is ready."]
    if Ref("Service", seen.names.scheduler) not in seen.parts:
        parts.append("The scheduler has no Service.")
    elif not seen.is_scheduler_ready:
        parts.append("The scheduler's pod is not ready, so its Service has no endpoint.")
    else:
        parts.append("The scheduler's pod is ready, so its Service has an endpoint.")
    workers = seen.workers or {}
    num_ready = (workers.get("status") or {}).get("readyReplicas", 0)
    desired = (workers.get("spec") or {}).get("replicas", 0)
    parts.append(f"{num_ready} of {desired} worker pods are ready.")
    inquiry = seen.inquiry
    if inquiry is not None and inquiry.refusal:
        parts.append(f"The operator cannot read the reports: {inquiry.refusal}.")
    elif inquiry is not None:
        parts.append("The operator can read the reports.")
    if inquiry is not None and inquiry.policies:
        which = ", ".join(inquiry.policies)
        label = names.JOB_LABEL
        remedy = f"Let them admit what the job's own policy {seen.names.network_policy} admits, or exempt {label}."
        parts.append(f"NetworkPolicies that are not the operator's apply to the job's pods: {which}. {remedy}")
    else:
        parts.append("The trainer's log may say more.")
    return " ".join(parts)


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
