"""The status that follows from a situation and from what was told before."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from batchgrowth import names
from batchgrowth.errors import BatchGrowthError, PlanError
from batchgrowth.progress import Progress
from batchgrowth.status import (
    MOST_HISTORY,
    BatchStatus,
    CheckpointStatus,
    Condition,
    JobStatus,
    Phase,
    StageRecord,
    TrainerMetric,
    TrainerStatus,
    WorkersStatus,
)

from batchgrowth_operator.decide.retention import Cluster, cluster_policy
from batchgrowth_operator.decide.rules import RULES, Verdict
from batchgrowth_operator.decide.scaling import Workforce, joined, selector
from batchgrowth_operator.decide.situation import Mode, Situation, condition, told_status
from batchgrowth_operator.seen.moments import fine_stamp, seconds_since, stamp
from batchgrowth_operator.seen.observed import Observed
from batchgrowth_operator.seen.trainer_outcome import shortened

MOST_METRICS = 16
LONGEST_METRIC_NAME = 64


def next_status(s: Situation, w: Workforce) -> JobStatus:
    """The whole status of a job that has a plan."""
    conditions = tuple(_condition(s.seen, s.told, kind, rule(s, w)) for kind, rule in RULES.items())
    history = _history(s, w)
    trainer = s.seen.child("Job", names.trainer(s.seen.name))
    failed = int(((trainer or {}).get("status") or {}).get("failed", 0))
    return JobStatus(
        observed_generation=s.seen.generation,
        phase=_phase(s, conditions),
        start_time=s.told.start_time or (stamp(s.seen.now) if s.mode is Mode.ACTIVE else None),
        completion_time=s.told.completion_time or (stamp(s.seen.now) if s.outcome else None),
        conditions=conditions,
        cluster_name=None if cluster_policy(s) is Cluster.RELEASE else names.cluster(s.seen.name),
        stage=s.stage.index,
        stages=len(s.plan.stages),
        batch=_batch(s),
        workers=w.status(s.told.workers or WorkersStatus(), selector(s)),
        checkpoint=_checkpoint(s),
        trainer_status=_trainer_status(s),
        restarts=max(s.told.restarts, failed),
        history=history,
    )


def rejected_status(seen: Observed, error: BatchGrowthError) -> JobStatus:
    """The status of a job whose spec cannot be followed: what was told before, and why it goes no further."""
    told = told_status(seen.job.get("status"))
    reason = "PlanImpossible" if isinstance(error, PlanError) else "SpecInvalid"
    verdicts = {"Accepted": Verdict("False", reason, shortened(str(error)))}
    if condition(told, "Succeeded") is None:
        verdicts["Succeeded"] = Verdict("Unknown", "InProgress")
    said = {kind: _condition(seen, told, kind, verdict) for kind, verdict in verdicts.items()}
    kept = {c.type: c for c in told.conditions}
    conditions = tuple((kept | said)[kind] for kind in RULES if kind in kept | said)
    return told.model_copy(update={"observed_generation": seen.generation, "conditions": conditions})


def paced(new: JobStatus, told: JobStatus, now: datetime, seconds: float) -> tuple[JobStatus, float | None]:
    """The status to write, and the seconds until news of mere progress may be written; None where there are none.

    A trainer reports every second, and a cluster may hold a thousand of them.
    """
    if new == told or told.trainer_status is None:
        return new, None
    kept = {"trainer_status": told.trainer_status, "checkpoint": told.checkpoint}
    age = seconds_since(told.trainer_status.last_updated_time, now)
    if new.model_copy(update=kept) != told or age >= seconds:
        return new, None
    return told, seconds - age


def _condition(seen: Observed, told: JobStatus, kind: str, verdict: Verdict) -> Condition:
    before = condition(told, kind)
    same = before is not None and before.status == verdict.status
    return Condition.model_validate(
        {
            "type": kind,
            "status": verdict.status,
            "reason": verdict.reason,
            "message": verdict.message,
            "observedGeneration": seen.generation,
            "lastTransitionTime": before.last_transition_time if same and before else stamp(seen.now),
        }
    )


def _phase(s: Situation, conditions: tuple[Condition, ...]) -> Phase:
    holds = {c.type for c in conditions if c.status == "True"}
    if s.outcome is not None:
        return "Succeeded" if s.outcome.succeeded else "Failed"
    if s.mode is Mode.SUSPENDED:
        return "Suspended"
    if "Training" not in holds:
        return "Pending"
    if "Stalled" in holds:
        return "Stalled"
    return "Resizing" if "Resizing" in holds else "Training"


def _batch(s: Situation) -> BatchStatus:
    later = s.plan.stages[s.stage.index + 1 :]
    if not later:
        return BatchStatus(current=s.stage.batch_size)
    return BatchStatus(
        current=s.stage.batch_size, next=later[0].batch_size, next_at_epoch=f"{float(later[0].epoch_from):g}"
    )


def _checkpoint(s: Situation) -> CheckpointStatus | None:
    told = s.told.checkpoint
    if s.report is None or s.report.checkpoint_update is None:
        return told
    if told is not None and told.update == s.report.checkpoint_update:
        return told
    return CheckpointStatus(update=s.report.checkpoint_update, time=stamp(s.seen.now))


def _trainer_status(s: Situation) -> TrainerStatus | None:
    told, report = s.told.trainer_status, s.report
    if report is None or (told is not None and _told_of(told) == _told_of(report)):
        return told
    return TrainerStatus(
        progress_percentage=int(100 * report.fraction),
        estimated_remaining_seconds=None if report.eta_seconds is None else max(0, round(report.eta_seconds)),
        epoch=f"{report.epoch:.2f}",
        start=report.start,
        update=report.update,
        loss=None if report.loss is None else f"{report.loss:.4g}",
        metrics=_metrics(report),
        weights_sha256=report.weights_sha256,
        last_updated_time=fine_stamp(s.seen.now),
    )


def _told_of(known: TrainerStatus | Progress) -> tuple[int | None, int | None, str | None]:
    return known.start, known.update, known.weights_sha256


def _metrics(report: Progress) -> tuple[TrainerMetric, ...]:
    named = [(name, value) for name, value in sorted(report.metrics.items()) if 0 < len(name) <= LONGEST_METRIC_NAME]
    return tuple(TrainerMetric(name=name, value=f"{value:.6g}") for name, value in named[:MOST_METRICS])


def _history(s: Situation, w: Workforce) -> tuple[StageRecord, ...]:
    """The stages that have begun; one between two looks is recorded with the look that found it past."""
    records, index = list(s.told.history), s.stage.index
    last = records[-1].index if records else -1
    if w.took is not None and records and records[-1].resize_seconds is None and _grew(s, last):
        records[-1] = records[-1].model_copy(update={"resize_seconds": f"{w.took:.3f}"})
    if s.report is not None and index != last:
        records += [_record(s, w, begun) for begun in range(last + 1 if index > last else index, index + 1)]
    return tuple(_as_reported(record, s.report) for record in records[-MOST_HISTORY:])


def _as_reported(record: StageRecord, report: Progress | None) -> StageRecord:
    """The record with the most workers and the longest pause told so far: a restarted trainer knows of its own only."""
    if report is None:
        return record
    crew, pause = (told.get(str(record.index), 0) for told in (report.crews, report.pauses))
    news: dict[str, Any] = {"workers": max(int(crew), record.workers)}
    if pause > float(record.pause_seconds or 0):
        news["pause_seconds"] = f"{pause:.3f}"
    return record.model_copy(update=news)


def _record(s: Situation, w: Workforce, index: int) -> StageRecord:
    stage = s.plan.stages[index]
    told = s.told.workers.resize_seconds if s.told.workers else None
    took = told if w.took is None else f"{w.took:.3f}"
    return StageRecord(
        index=index,
        batch_size=stage.batch_size,
        workers=0,
        start_time=fine_stamp(s.seen.now),
        resize_seconds=took if _grew(s, index) and joined(s) >= stage.workers else None,
    )


def _grew(s: Situation, index: int) -> bool:
    """Whether a stage wants more workers than the one before; plans change with the bounds, so it may not be there."""
    stages = s.plan.stages
    return 0 < index < len(stages) and stages[index].workers > stages[index - 1].workers
