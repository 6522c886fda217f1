"""The next status, from a situation and the previous status."""

from datetime import datetime

from batchgrowth import names
from batchgrowth.conditions import CONDITIONS
from batchgrowth.errors import BatchGrowthError, PlanError, PodLimitError
from batchgrowth.exchanged import Exchanged
from batchgrowth.progress import Progress
from batchgrowth.redaction import redacted
from batchgrowth.status import (
    BatchStatus,
    CheckpointStatus,
    Condition,
    ExchangeStatus,
    JobStatus,
    Phase,
    TrainerMetric,
    TrainerStatus,
    WorkersStatus,
)

from batchgrowth_operator.decide.contention import Contention
from batchgrowth_operator.decide.flapping import steadied
from batchgrowth_operator.decide.history import next_history
from batchgrowth_operator.decide.pod_limits import PODS_NOT_ALLOWED
from batchgrowth_operator.decide.previous import condition, stored_status
from batchgrowth_operator.decide.rules import RULES, Verdict, contested
from batchgrowth_operator.decide.scaling import Workforce, selector
from batchgrowth_operator.decide.situation import ClusterPolicy, Mode, Situation
from batchgrowth_operator.seen.observed import Observed
from batchgrowth_operator.seen.timestamps import seconds_since, timestamp, timestamp_ms
from batchgrowth_operator.seen.trainer_outcome import restarts_of, truncated

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
