"""The next status, from a situation and the previous status, with the history of the stages."""

import math
import re
from datetime import datetime
from typing import Any

from batchgrowth import names
from batchgrowth.contract.progress import Exchanged, Progress
from batchgrowth.contract.status import (
    CONDITIONS,
    MOST_HISTORY,
    BatchStatus,
    CheckpointStatus,
    Condition,
    ExchangeStatus,
    JobStatus,
    Phase,
    StageRecord,
    TrainerMetric,
    TrainerStatus,
    WorkersStatus,
)
from batchgrowth.errors import BatchGrowthError, PlanError, PodLimitError, redacted
from batchgrowth.schedule.stages import Stage

from batchgrowth_operator.job.conditions import PODS_NOT_ALLOWED, RULES, Verdict, contested
from batchgrowth_operator.job.contention import Contention
from batchgrowth_operator.job.flapping import steadied
from batchgrowth_operator.job.workers import Workforce, selector
from batchgrowth_operator.seen.clock import seconds_since, timestamp, timestamp_ms
from batchgrowth_operator.seen.observed import Observed
from batchgrowth_operator.seen.outcome import restarts_of, truncated
from batchgrowth_operator.seen.progress import current_run
from batchgrowth_operator.seen.situation import ClusterPolicy, Mode, Situation, condition, stored_status

# --- status.history: the stages that have begun, with what decided them and how their workers came ---


def next_history(s: Situation, w: Workforce) -> tuple[StageRecord, ...]:
    """The stages that have begun; one that began and ended between two passes is recorded by the second."""
    records = list(s.previous.history)
    if w.resize_seconds is not None and records and records[-1].resize_seconds is None and _grew(s, records[-1].index):
        records[-1] = records[-1].model_copy(update={"resize_seconds": f"{w.resize_seconds:.3f}"})
    if s.report is not None:
        records += [_record(s, w, index) for index in range(_first_unrecorded(s), s.stage.index + 1)]
    return tuple(_updated(record, s.report) for record in records[-MOST_HISTORY:])


def _first_unrecorded(s: Situation) -> int:
    """Index of the first stage to record: the first whose record is missing or of a stage that was decided otherwise.

    A trainer that fell back to an earlier stage begins that stage again; one that ended early before an update of the
    current stage does not.
    """
    current, run = s.stage.index, current_run(s.previous.history)
    last = run[-1].index if run else -1
    if s.plan.ended_early and current < last:
        return current + 1
    other = (r.index for r in run if r.index <= current and not _is_of(r, s.plan.stages[r.index]))
    return next(other, last + 1 if current >= last else current)


def _is_of(record: StageRecord, stage: Stage) -> bool:
    return record.first_update in (None, stage.first_update) and record.batch_size == stage.batch_size


def _record(s: Situation, w: Workforce, index: int) -> StageRecord:
    stage = s.plan.stages[index]
    known = s.previous.workers.resize_seconds if s.previous.workers else None
    resize_seconds = known if w.resize_seconds is None else f"{w.resize_seconds:.3f}"
    return StageRecord(
        index=index,
        batch_size=stage.batch_size,
        workers=0,
        first_update=stage.first_update,
        wanted=stage.wanted if s.quantity and stage.wanted != stage.batch_size else None,
        measured=_measured(s, index),
        start_time=timestamp_ms(s.seen.now),
        resize_seconds=resize_seconds if _grew(s, index) and s.joined >= stage.workers else None,
    )


def _measured(s: Situation, index: int) -> str | None:
    """The value that decided the stage; None if nothing did, or if the value is too large to measure."""
    value = s.decisions[index - 1].value if s.decisions and index else math.inf
    return f"{value:.6g}" if math.isfinite(value) else None


def _updated(record: StageRecord, report: Progress | None) -> StageRecord:
    """The record with the maxima of workers and pause so far; a restarted trainer reports only its own."""
    if report is None:
        return record
    crew, pause = (by_stage.get(str(record.index), 0) for by_stage in (report.crews, report.pauses))
    maxima: dict[str, Any] = {"workers": max(int(crew), record.workers)}
    if pause > float(record.pause_seconds or 0):
        maxima["pause_seconds"] = f"{pause:.3f}"
    return record.model_copy(update=maxima)


def _grew(s: Situation, index: int) -> bool:
    """Whether the stage needs more workers than the one before; False if the plan has no such stage any more."""
    stages = s.plan.stages
    return 0 < index < len(stages) and stages[index].workers > stages[index - 1].workers


# --- The next status, from a situation and the previous status ---

MOST_METRICS = 16
LONGEST_METRIC_NAME = 64
PROGRESS = ("trainer_status", "checkpoint", "batch", "retries")
"""Fields of the status that change while a training goes on."""
LONGEST_SECONDS = 2.0**53
"""The longest remaining time that the status can store."""


def next_status(s: Situation, w: Workforce, contention: Contention) -> tuple[JobStatus, float | None]:
    """The complete status of a job that has a plan, and the seconds until a condition that flaps may change in it."""
    found = {kind: rule(s, w) for kind, rule in RULES.items()} | {"Contested": contested(contention)}
    steady = steadied(s, w, {kind: _printable(verdict) for kind, verdict in found.items()})
    conditions = tuple(_condition(s.seen, s.previous, kind, steady.verdicts[kind]) for kind in CONDITIONS)
    workers = w.status(s.previous.workers or WorkersStatus(), selector(s))
    status = JobStatus(
        observed_generation=s.seen.generation,
        phase=_phase(s, conditions),
        start_time=s.previous.start_time or (timestamp(s.seen.now) if s.mode is Mode.ACTIVE else None),
        completion_time=s.previous.completion_time or (timestamp(s.seen.now) if s.outcome else None),
        conditions=conditions,
        cluster_name=None if s.cluster_policy is ClusterPolicy.DELETE else names.cluster(s.seen.name),
        stage=s.forgotten + s.stage.index,
        stages=s.forgotten + len(s.plan.stages),
        batch=_batch(s),
        workers=workers.model_copy(update={"ready": steady.ready}),
        checkpoint=_checkpoint(s),
        trainer_status=_trainer_status(s),
        restarts=max(s.previous.restarts, restarts_of(s.seen)),
        retries=s.retries,
        flapping=steady.flapping,
        history=next_history(s, w),
    )
    return status, steady.due_seconds


def rejected_status(seen: Observed, error: BatchGrowthError) -> JobStatus:
    """The status of a job whose spec is refused: the previous status with the refusal, so that nothing else changes."""
    previous = stored_status(seen)
    verdicts = {"Accepted": _printable(Verdict("False", _refusal(error), str(error)))}
    if condition(previous, "Succeeded") is None:
        verdicts["Succeeded"] = Verdict("Unknown", "InProgress", "The job is not over.")
    by_type: dict[str, Condition] = {c.type: c for c in previous.conditions}
    by_type |= {kind: _condition(seen, previous, kind, verdict) for kind, verdict in verdicts.items()}
    return previous.model_copy(
        update={
            "observed_generation": seen.generation,
            "phase": previous.phase if previous.completion_time else "Rejected",
            "conditions": tuple(by_type[kind] for kind in CONDITIONS if kind in by_type),
        }
    )


def _refusal(error: BatchGrowthError) -> str:
    """The reason of the condition Accepted."""
    if isinstance(error, PodLimitError):
        return PODS_NOT_ALLOWED
    return "PlanImpossible" if isinstance(error, PlanError) else "SpecInvalid"


def throttled(new: JobStatus, previous: JobStatus, now: datetime, seconds: float) -> tuple[JobStatus, float | None]:
    """The status to write now, and the seconds until a change of progress alone may be written; None if there is none.

    A trainer reports every second, and a cluster may run a thousand trainers.
    """
    if new == previous or previous.trainer_status is None:
        return new, None
    age = seconds_since(previous.trainer_status.last_updated_time, now)
    if not _are_alike(new, previous) or age >= seconds:
        return new, None
    return previous, seconds - age


def differ_in_progress(new: JobStatus, previous: JobStatus) -> bool:
    """Whether the statuses differ, but only in how far the training is, which has been known before."""
    return new != previous and previous.trainer_status is not None and _are_alike(new, previous)


def _are_alike(new: JobStatus, previous: JobStatus) -> bool:
    return new.model_copy(update={name: getattr(previous, name) for name in PROGRESS}) == previous


def _printable(verdict: Verdict) -> Verdict:
    return verdict._replace(message=truncated(redacted(verdict.message)))


def _condition(seen: Observed, previous: JobStatus, kind: str, verdict: Verdict) -> Condition:
    before = condition(previous, kind)
    same = before is not None and before.status == verdict.status
    return Condition.model_validate(
        {
            "type": kind,
            "status": verdict.status,
            "reason": verdict.reason,
            "message": verdict.message,
            "observedGeneration": seen.generation,
            "lastTransitionTime": before.last_transition_time if same and before else timestamp(seen.now),
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
    later = s.expected.stages[s.stage.index + 1 :]
    if not later:
        return BatchStatus(current=s.stage.batch_size)
    return BatchStatus(
        current=s.stage.batch_size, next=later[0].batch_size, next_at_epoch=f"{float(later[0].epoch_from):g}"
    )


def _checkpoint(s: Situation) -> CheckpointStatus | None:
    known = s.previous.checkpoint
    if s.report is None or s.report.checkpoint_update is None:
        return known
    if known is not None and known.update == s.report.checkpoint_update:
        return known
    return CheckpointStatus(update=s.report.checkpoint_update, time=timestamp(s.seen.now))


def _trainer_status(s: Situation) -> TrainerStatus | None:
    known, report = s.previous.trainer_status, s.report
    if report is None:
        return known
    percentage = int(100 * report.fraction)
    identity = report.start, report.update, report.weights_sha256, percentage
    if known and identity == (known.start, known.update, known.weights_sha256, known.progress_percentage):
        return known
    return TrainerStatus(
        progress_percentage=percentage,
        estimated_remaining_seconds=None if report.eta_seconds is None else _whole(report.eta_seconds),
        epoch=f"{report.epoch:.2f}",
        start=report.start,
        update=report.update,
        loss=None if report.loss is None else f"{report.loss:.4g}",
        metrics=_metrics(report),
        weights_sha256=report.weights_sha256,
        exchange=_exchange(report.exchanged),
        last_updated_time=timestamp_ms(s.seen.now),
    )


def _exchange(done: Exchanged | None) -> ExchangeStatus | None:
    if done is None or done == Exchanged():
        return None
    return ExchangeStatus(
        bytes_sent=done.bytes_sent or None,
        compression_error=_decimal(done.compression_error),
        replica_distance=_decimal(done.replica_distance),
        largest_staleness=done.largest_staleness,
        mean_staleness=_decimal(done.mean_staleness),
        backups=done.backups or None,
        backups_first=done.backups_first if done.backups else None,
    )


def _decimal(value: float | None) -> str | None:
    return None if value is None else f"{value:.4g}"


def _whole(seconds: float) -> int:
    return round(min(max(0.0, seconds), LONGEST_SECONDS))


def _metrics(report: Progress) -> tuple[TrainerMetric, ...]:
    named = [(name, value) for name, value in sorted(report.metrics.items()) if 0 < len(name) <= LONGEST_METRIC_NAME]
    return tuple(TrainerMetric(name=name, value=f"{value:.6g}") for name, value in named[:MOST_METRICS])


_FIELD = re.compile(r"\.status\.([\w.]+(?:\[[^\]]*\][\w.]*)*): field not declared in schema")


_INDEX = re.compile(r"\[[^\]]*\]")


def declared(status: dict[str, Any], refusal: str) -> dict[str, Any] | None:
    """The status without the fields that the API server's refusal calls undeclared; None if it names none."""
    paths = [_INDEX.sub("", path).split(".") for path in _FIELD.findall(refusal)]
    kept: Any = status
    for path in paths:
        kept = _without(kept, path)
    return kept if paths else None


def _without(value: Any, path: list[str]) -> Any:
    """The value without the field at the path, in every entry of lists."""
    if isinstance(value, list):
        return [_without(entry, path) for entry in value]
    name, *rest = path
    if not isinstance(value, dict) or name not in value:
        return value
    if not rest:
        return {key: inner for key, inner in value.items() if key != name}
    return {**value, name: _without(value[name], rest)}
