"""From what was seen to what it means: the spec and its plan, the position, and whether the job is over."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any

from batchgrowth import names
from batchgrowth.manifest import read_manifest
from batchgrowth.plan import Plan, Stage, make_plan
from batchgrowth.progress import Progress
from batchgrowth.spec import JobSpec
from batchgrowth.status import Condition, JobStatus
from pydantic import ValidationError

from batchgrowth_operator.decide.defaults import Defaults
from batchgrowth_operator.decide.overlay import check_overlay
from batchgrowth_operator.seen.moments import seconds_since
from batchgrowth_operator.seen.observed import Observed
from batchgrowth_operator.seen.trainer_outcome import Outcome, is_running, outcome_of


class Mode(Enum):
    """What a job is up to."""

    ACTIVE = "active"
    SUSPENDED = "suspended"
    OVER = "over"


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """A job whose spec has a plan.

    `told` is the status as the last pass left it, `report` the trainer's progress where it is not older than that,
    `update` the updates done, and `outcome` how the job ended or None.
    """

    seen: Observed
    defaults: Defaults
    spec: JobSpec
    plan: Plan
    told: JobStatus
    report: Progress | None
    update: int
    outcome: Outcome | None

    @property
    def mode(self) -> Mode:
        """Over wins over suspended."""
        if self.outcome is not None:
            return Mode.OVER
        return Mode.SUSPENDED if self.spec.suspend else Mode.ACTIVE

    @property
    def stage(self) -> Stage:
        """The stage of the next update; the last one at the end."""
        return self.plan.stage_at(self.update)

    @property
    def is_trainer_running(self) -> bool:
        """Whether a pod of the trainer may still be at work."""
        return is_running(self.seen)

    @property
    def report_age_seconds(self) -> float:
        """Time since the report was first seen; 0 where this pass is the first to see it."""
        told = self.told.trainer_status
        if self.report is None or told is None or (told.start, told.update) != (self.report.start, self.report.update):
            return 0.0
        return seconds_since(told.last_updated_time, self.seen.now)


def situate(seen: Observed, defaults: Defaults) -> Situation:
    """The situation of the job; SpecError or PlanError where its spec cannot be followed."""
    spec, plan = _planned(_text(seen))
    check_overlay(spec.workers.template)
    told = told_status(seen.job.get("status"))
    report, update = _position(seen, told, plan)
    return Situation(
        seen=seen,
        defaults=defaults,
        spec=spec,
        plan=plan,
        told=told,
        report=report,
        update=update,
        outcome=_past(told) or outcome_of(seen) or _overdue(seen, told, spec),
    )


def told_status(status: Any) -> JobStatus:
    """The stored status; what of it this version does not know or cannot read is left aside."""
    readable = {}
    for key, value in (status or {}).items():
        try:
            JobStatus.model_validate({key: value})
        except ValidationError:
            continue
        readable[key] = value
    return JobStatus.model_validate(readable)


def condition(status: JobStatus, kind: str) -> Condition | None:
    """The condition of that type, or None where it was never set."""
    return next((c for c in status.conditions if c.type == kind), None)


def _text(seen: Observed) -> str:
    metadata = {"name": seen.name, "namespace": seen.namespace}
    job = {key: seen.job[key] for key in ("apiVersion", "kind")} | {"metadata": metadata, "spec": seen.job.get("spec")}
    return json.dumps(job, ensure_ascii=False, sort_keys=True)


@lru_cache(maxsize=2048)
def _planned(text: str) -> tuple[JobSpec, Plan]:
    spec = read_manifest(text).spec
    return spec, make_plan(spec)


def _position(seen: Observed, told: JobStatus, plan: Plan) -> tuple[Progress | None, int]:
    """The report and its update; no report and what was told where it is missing, older or of another plan."""
    known = told.trainer_status
    known_at = (known.start or 0, known.update or 0) if known else (0, 0)
    report = _report(seen)
    if report is None or report.updates != plan.updates or (report.start, report.update) < known_at:
        return None, min(known_at[1], plan.updates)
    return report, report.update


def _report(seen: Observed) -> Progress | None:
    config_map = seen.child("ConfigMap", names.progress(seen.name))
    text = (config_map or {}).get("data", {}).get(names.PROGRESS_KEY)
    if text is None:
        return None
    try:
        return Progress.from_json(text)
    except ValueError:
        return None  # somebody else wrote it; the trainer's next report takes its place


def _past(told: JobStatus) -> Outcome | None:
    succeeded = condition(told, "Succeeded")
    if succeeded is None or succeeded.status == "Unknown":
        return None
    return Outcome(succeeded.status == "True", succeeded.reason, succeeded.message)


def _overdue(seen: Observed, told: JobStatus, spec: JobSpec) -> Outcome | None:
    left = seconds_to_deadline(seen, told, spec)
    if left is None or left > 0:
        return None
    return Outcome(False, "DeadlineExceeded", f"The job was active for {spec.active_deadline_seconds} s.")


def seconds_to_deadline(seen: Observed, told: JobStatus, spec: JobSpec) -> float | None:
    """Seconds that the job may still be active; None without a deadline, or while it is suspended."""
    suspended = condition(told, "Suspended")
    if spec.active_deadline_seconds is None or spec.suspend:
        return None
    active = suspended is not None and suspended.status == "False"
    since = suspended.last_transition_time if suspended is not None and active else None
    return spec.active_deadline_seconds - seconds_since(since, seen.now)
