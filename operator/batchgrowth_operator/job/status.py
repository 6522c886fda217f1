"""The next status, from a situation and the previous status, with the history of the stages.

Conditions that keep turning bad stay bad until they have been good for a while. Otherwise, a pod that keeps crashing or
losing its readiness would cost endless status writes. The first turns are shown at once. The memory of turns is part of
the status, so it survives the operator.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from batchgrowth import names
from batchgrowth.contract.progress import LONGEST_CAUSE, MOST_DIFFERING, TRAINER
from batchgrowth.contract.status import (
    CONDITIONS,
    FLAPPING,
    HELD_UP,
    MOST_FINDINGS,
    MOST_HISTORY,
    BatchStatus,
    CheckpointStatus,
    Condition,
    ExchangeStatus,
    FindingRecord,
    FlappingCondition,
    FlappingStatus,
    JobStatus,
    Phase,
    StageRecord,
    TrainerMetric,
    TrainerStatus,
    WorkersStatus,
    WrongWorker,
)
from batchgrowth.errors import BatchGrowthError, PlanError, PodLimitError, redacted

from batchgrowth_operator.children.drift import Contention
from batchgrowth_operator.job.conditions import PODS_NOT_ALLOWED, RULES, SETTLED, Verdict, contested, restated
from batchgrowth_operator.job.worker_count import Workforce
from batchgrowth_operator.seen.observed import (
    WORKER,
    Clock,
    Observed,
    stored_status,
    timestamp,
    timestamp_ms,
    truncated,
)
from batchgrowth_operator.seen.progress import current_run, is_awaited
from batchgrowth_operator.seen.situation import MOST_TURNS, ClusterPolicy, Mode, Situation, is_held
from batchgrowth_operator.seen.trainer_pods import has_ended, restarts_of

MOST_METRICS = 16
LONGEST_METRIC_NAME = 64
LONGEST_POD_NAME = 253
LONGEST_SECONDS = 2.0**53
"""The longest remaining time that the status can store."""


def next_status(s: Situation, w: Workforce, contention: Contention) -> JobStatus:
    """Return the complete status of a job that has a plan."""
    stored: dict[str, Condition] = {one.type: one for one in s.previous.conditions}
    verdicts = {kind: rule(s, w) for kind, rule in RULES.items()}
    # Not in RULES, because it follows from the writes and not from the situation.
    verdicts["Contested"] = contested(contention)
    for kind, verdict in verdicts.items():
        # A message that is already in the status was made printable before it was stored.
        if kind not in stored or stored[kind].message != verdict.message:
            verdicts[kind] = _printable(verdict)
    steady = steadied(s, w, verdicts)
    # Derived from what is shown, so that a condition that is kept bad costs no other writes.
    shown = {**steady.verdicts, **restated(s, steady.verdicts)}
    conditions = tuple([_condition(s.seen, stored.get(kind), kind, shown[kind]) for kind in CONDITIONS])

    # Set once: from then on, the API server refuses changes of the mathematics of the spec.
    start_time = s.previous.start_time
    if start_time is None and s.mode is Mode.ACTIVE:
        start_time = timestamp(s.seen.now)
    completion_time = s.previous.completion_time
    if completion_time is None and s.outcome is not None:
        completion_time = timestamp(s.seen.now)

    batch = BatchStatus(current=s.stage.batch_size)
    later = s.expected.stages[s.stage.index + 1 :]
    if later:
        at_epoch = f"{float(later[0].epoch_from):g}"
        batch = BatchStatus(current=s.stage.batch_size, next=later[0].batch_size, next_at_epoch=at_epoch)

    known = s.previous.workers or WorkersStatus()
    resize_seconds = known.resize_seconds
    lead_seconds = known.lead_seconds
    if w.resize_seconds is not None:
        resize_seconds = f"{w.resize_seconds:.3f}"
        lead_seconds = f"{w.lead_seconds:.3f}"
    workers = WorkersStatus(
        desired=w.desired,
        requested=w.requested,
        requested_time=w.requested_time,
        ready=steady.ready,
        resize_seconds=resize_seconds,
        lead_seconds=lead_seconds,
        selector=names.selector(s.seen.name, WORKER),
    )

    checkpoint = s.previous.checkpoint
    written = s.report.checkpoint_update if s.report is not None else None
    if written is not None and (checkpoint is None or checkpoint.update != written):
        checkpoint = CheckpointStatus(update=written, time=timestamp(s.seen.now))
    if s.is_state_lost:
        checkpoint = None

    return JobStatus(
        observed_generation=s.seen.generation,
        phase=_phase(s, shown),
        start_time=start_time,
        completion_time=completion_time,
        conditions=conditions,
        cluster_name=None if s.cluster_policy is ClusterPolicy.DELETE else s.seen.names.cluster,
        # A plan that was restored from the history lacks the stages that the history has dropped.
        stage=s.forgotten + s.stage.index,
        stages=s.forgotten + len(s.plan.stages),
        batch=batch,
        workers=workers,
        checkpoint=checkpoint,
        trainer_status=_trainer_status(s),
        restarts=max(s.previous.restarts, restarts_of(s.seen)),
        retries=s.retries,
        findings=next_findings(s),
        flapping=steady.flapping,
        history=next_history(s, w),
    )


def rejected_status(seen: Observed, error: BatchGrowthError) -> JobStatus:
    """Return the status of a job whose spec is refused: the previous status plus the refusal."""
    previous = stored_status(seen)
    if isinstance(error, PodLimitError):
        reason = PODS_NOT_ALLOWED
    elif isinstance(error, PlanError):
        reason = "PlanImpossible"
    else:
        reason = "SpecInvalid"
    by_type = {c.type: c for c in previous.conditions}
    refusal = _printable(Verdict("False", reason, str(error)))
    by_type["Accepted"] = _condition(seen, by_type.get("Accepted"), "Accepted", refusal)
    if "Succeeded" not in by_type:
        unknown = Verdict("Unknown", "InProgress", "The job is not over.")
        by_type["Succeeded"] = _condition(seen, None, "Succeeded", unknown)
    if previous.completion_time is None:
        stalled = refusal._replace(status="True", reason="JobRefused")
        by_type["Stalled"] = _condition(seen, by_type.get("Stalled"), "Stalled", stalled)
    by_type["Reconciling"] = _condition(seen, by_type.get("Reconciling"), "Reconciling", SETTLED)
    return previous.model_copy(
        update={
            "observed_generation": seen.generation,
            "phase": previous.phase if previous.completion_time else "Rejected",
            "conditions": tuple(by_type[kind] for kind in CONDITIONS if kind in by_type),
        }
    )


def throttled(new: JobStatus, previous: JobStatus, clock: Clock, seconds: float) -> JobStatus:
    """Return the status to write now: the previous one if only progress is new and its next write is not due.

    A trainer reports every second, and a cluster may run a thousand trainers. `ProgressRate.seconds_apart` in
    loop/queue.py holds back the passes that reports ask for; `seconds` holds back the progress that a pass with another
    cause would write.
    """
    if not is_progress_only(new, previous):
        return new
    assert previous.trainer_status is not None, "new progress alone differs from progress that was known"
    if clock.passed(previous.trainer_status.last_updated_time, seconds):
        return new
    return previous


def is_progress_only(new: JobStatus, previous: JobStatus) -> bool:
    """Return whether the new status differs from the previous one only in its progress.

    A job's first progress is more than that, because it tells that training began.
    """
    if new == previous or previous.trainer_status is None or new.trainer_status is None:
        return False
    if is_awaited(previous.trainer_status) or is_awaited(new.trainer_status):
        return False  # the first report of a start is news, and so is the end of a start
    without_progress = new.model_copy(
        update={
            "trainer_status": previous.trainer_status,
            "checkpoint": previous.checkpoint,
            "batch": previous.batch,
            "retries": previous.retries,
        }
    )
    return without_progress == previous


def _printable(verdict: Verdict) -> Verdict:
    return verdict._replace(message=truncated(redacted(verdict.message)))


def _condition(seen: Observed, before: Condition | None, kind: str, verdict: Verdict) -> Condition:
    """Return the condition with that verdict. It keeps the time of the stored condition `before` if its status stays
    the same.
    """
    since = None
    if before is not None and before.status == verdict.status:
        if (before.reason, before.message, before.observed_generation) == (*verdict[1:], seen.generation):
            return before
        since = before.last_transition_time
    return Condition.model_validate(
        {
            "type": kind,
            "status": verdict.status,
            "reason": verdict.reason,
            "message": verdict.message,
            "observedGeneration": seen.generation,
            "lastTransitionTime": since or timestamp(seen.now),
        }
    )


def _phase(s: Situation, shown: Mapping[str, Verdict]) -> Phase:
    if s.outcome is not None:
        return "Succeeded" if s.outcome.succeeded else "Failed"
    if s.mode is Mode.SUSPENDED:
        return "Suspended"
    if shown["Training"].status != "True":
        return "Pending"
    if shown["Stalled"].status == "True":
        return "Stalled"
    if shown["Resizing"].status == "True":
        return "Resizing"
    return "Training"


def _trainer_status(s: Situation) -> TrainerStatus | None:
    """Return the trainer's part of the status; None before its first report.

    If the trainer has stopped, that part describes the next start: no report yet, and no progress if the state is lost.
    """
    if s.awaited_start is None:
        return _reported_status(s)
    if s.is_state_lost:
        return TrainerStatus(progress_percentage=0, epoch="0.00", start=s.awaited_start, update=0)
    reported = _reported_status(s) or TrainerStatus()
    changes = {"start": s.awaited_start, "last_updated_time": None, "estimated_remaining_seconds": None}
    return reported.model_copy(update=changes)


def _reported_status(s: Situation) -> TrainerStatus | None:
    """Return what the trainer's report says; the previous status if the report says nothing new."""
    known = s.previous.trainer_status
    report = s.report
    if report is None:
        return known
    percentage = int(100 * report.fraction)
    # As many metrics as the status can store, and only those whose names it can store.
    named = [(name, value) for name, value in sorted(report.metrics.items()) if 0 < len(name) <= LONGEST_METRIC_NAME]
    metrics = tuple([TrainerMetric(name=name, value=f"{value:.6g}") for name, value in named[:MOST_METRICS]])
    identity = (report.start, report.update, report.weights_sha256, percentage)
    if known and metrics in ((), known.metrics):  # an evaluation is reported after its update
        before = (known.start, known.update, known.weights_sha256, known.progress_percentage)
        if identity == before:
            return known

    remaining = None
    if report.eta_seconds is not None:
        remaining = round(min(max(0.0, report.eta_seconds - s.report_age_seconds), LONGEST_SECONDS))
    exchange = None
    figures = {} if report.exchanged is None else report.exchanged.known()
    if figures:
        exchange = ExchangeStatus(
            **{name: value if isinstance(value, int) else _decimal(value) for name, value in figures.items()}
        )
    return TrainerStatus(
        progress_percentage=percentage,
        estimated_remaining_seconds=remaining,
        epoch=f"{report.epoch:.2f}",
        start=report.start,
        update=report.update,
        loss=_decimal(report.loss),
        metrics=metrics,
        weights_sha256=report.weights_sha256,
        exchange=exchange,
        last_updated_time=timestamp_ms(s.seen.now),
    )


def _decimal(value: float | None) -> str | None:
    if value is None:
        return None
    return f"{value:.4g}"


# status.findings: the workers that computed wrongly, with the nodes that they were on.


def next_findings(s: Situation) -> tuple[FindingRecord, ...]:
    """Return what spot checks have found; of several findings between two passes, the newest is recorded."""
    known = s.previous.findings
    found = None if s.report is None else s.report.went_back
    if s.report is None or found is None:
        return known
    if known and (s.report.start, found.times) <= (known[-1].start, known[-1].times):
        return known
    record = FindingRecord(
        start=s.report.start,
        times=found.times,
        workers=tuple(_wrong_worker(s.seen, name) for name in found.workers[:MOST_DIFFERING]),
        cause=redacted(found.cause)[:LONGEST_CAUSE],
        reached=found.reached,
        update=found.update,
        time=timestamp(s.seen.now),
    )
    return (*known, record)[-MOST_FINDINGS:]


def _wrong_worker(seen: Observed, name: str) -> WrongWorker:
    """Return the worker of that name with the node of its pod, which stays when the worker's process has ended."""
    pods = {pod["metadata"]["name"]: pod for pod in seen.pods}
    pod = pods.get(name, {})
    if name == TRAINER and seen.trainer_pods:
        # The newest pod of the present Job that has not ended, else the newest of all.
        working = [pod for pod in seen.pods_of_job if not has_ended(pod)]
        pod = max(working or seen.trainer_pods, key=lambda pod: str(pod["metadata"].get("creationTimestamp") or ""))
    return WrongWorker(
        pod=redacted(pod["metadata"]["name"] if pod else name)[:LONGEST_POD_NAME],
        node=(pod.get("spec") or {}).get("nodeName") or None,
    )


# status.history: the stages that have begun, with what decided them and how their workers came.


def next_history(s: Situation, w: Workforce) -> tuple[StageRecord, ...]:
    """Return the stages that have begun; if a stage began and ended between two passes, the second pass records it."""
    records = list(s.previous.history)
    last = records[-1] if records else None
    if w.resize_seconds is not None and last and last.resize_seconds is None and _needs_more_workers(s, last.index):
        records[-1] = last.model_copy(update={"resize_seconds": f"{w.resize_seconds:.3f}"})
    if s.report is not None:
        for index in range(_first_unrecorded(s), s.stage.index + 1):
            earliest = records[-1].start_time if records else s.previous.start_time
            records.append(_record(s, w, index, earliest))

    # The maxima of workers and pause so far; a restarted trainer reports only its own.
    kept = records[-MOST_HISTORY:]
    if s.report is None:
        return tuple(kept)
    history = []
    for record in kept:
        maxima: dict[str, Any] = {"workers": max(int(s.report.crews.get(str(record.index), 0)), record.workers)}
        pause = s.report.pauses.get(str(record.index), 0)
        if pause > float(record.pause_seconds or 0):
            maxima["pause_seconds"] = f"{pause:.3f}"
        history.append(record.model_copy(update=maxima))
    return tuple(history)


def _first_unrecorded(s: Situation) -> int:
    """Return the index of the first stage whose record is missing or belongs to another decision.

    A trainer that fell back to an earlier stage begins that stage again; a trainer that ended early, before an
    update of the current stage, does not.
    """
    current = s.stage.index
    run = current_run(s.previous.history)
    last = run[-1].index if run else -1
    if s.plan.ended_early and current < last:
        return current + 1
    for record in run:
        if record.index <= current:
            stage = s.plan.stages[record.index]
            if record.first_update not in (None, stage.first_update) or record.batch_size != stage.batch_size:
                return record.index
    if current >= last:
        return last + 1
    return current


def _record(s: Situation, w: Workforce, index: int, earliest: str | None) -> StageRecord:
    """Return the record of a stage that begins; it cannot have begun before the time `earliest`."""
    stage = s.plan.stages[index]
    measured = None
    if s.decisions and index and math.isfinite(s.decisions[index - 1].value):  # else it is too large to measure
        measured = f"{s.decisions[index - 1].value:.6g}"
    resize_seconds = None
    if _needs_more_workers(s, index) and s.joined >= stage.workers:
        resize_seconds = (s.previous.workers or WorkersStatus()).resize_seconds
        if w.resize_seconds is not None:
            resize_seconds = f"{w.resize_seconds:.3f}"
    return StageRecord(
        index=index,
        batch_size=stage.batch_size,
        workers=0,
        first_update=stage.first_update,
        wanted=stage.wanted if s.quantity and stage.wanted != stage.batch_size else None,
        measured=measured,
        start_time=_start_time(s, index, earliest),
        resize_seconds=resize_seconds,
    )


def _start_time(s: Situation, index: int, earliest: str | None) -> str:
    """Return when the stage began by the trainer's clock, since the operator may have been down; now if it is unknown.

    The trainer's clock may be wrong, so the time is kept between the earliest possible one and now.
    """
    assert s.report is not None
    known = s.report.begun.get(str(index))
    if known is None:
        return timestamp_ms(s.seen.now)
    began = min(s.seen.now, datetime.fromtimestamp(known, UTC))
    if earliest is not None:
        began = max(began, min(s.seen.now, datetime.fromisoformat(earliest)))
    return timestamp_ms(began)


def _needs_more_workers(s: Situation, index: int) -> bool:
    """Return whether the stage needs more workers than the stage before; False if the plan no longer has the stage."""
    stages = s.plan.stages
    return 0 < index < len(stages) and stages[index].workers > stages[index - 1].workers


# status.flapping: the conditions that keep turning bad.

FORGOTTEN_AFTER_SECONDS = 600.0
"""Time without a turn after which the turns before it no longer count."""
CALM_SECONDS = 300.0
"""Time for which a held condition must be good before it is shown as good."""
WRITE_SECONDS = 60.0
"""Shortest time between two status writes for held conditions."""
GOOD = {"ClusterReady": "True", "Training": "True", "Resizing": "False", "Degraded": "False", "Stalled": "False"}
"""The conditions that may flap, with the status that is good. The others follow the user, or the end of the job."""


@dataclass(frozen=True, slots=True)
class Steadied:
    """The conditions and the workers' readiness as the status shows them, and the recent turns of conditions."""

    verdicts: Mapping[str, Verdict]
    ready: int
    flapping: FlappingStatus | None


@dataclass(frozen=True, slots=True)
class ShownCondition:
    """One condition as the status shows it; `turns` are its recent transitions, None if there were none lately."""

    verdict: Verdict
    turns: FlappingCondition | None


def steadied(s: Situation, w: Workforce, verdicts: Mapping[str, Verdict]) -> Steadied:
    """Return the verdicts, keeping flapping conditions bad; a suspended or finished job has no flapping conditions."""
    if s.mode is not Mode.ACTIVE:
        return Steadied(verdicts, w.ready, None)

    known = s.previous.flapping
    if s.previous.observed_generation != s.seen.generation:
        known = None  # a user who changed the spec since the last pass may have mended what flaps
    turned: dict[str, FlappingCondition] = {}
    if known is not None:
        turned = {one.type: one for one in known.conditions}
    stored: dict[str, Condition] = {one.type: one for one in s.previous.conditions}
    shown: dict[str, ShownCondition] = {}
    held: dict[str, ShownCondition] = {}
    for kind, good in GOOD.items():
        verdict = verdicts[kind]
        before = stored.get(kind)
        turns = turned.get(kind)
        if before is not None and _is_of_a_pod_that_is_gone(s, before):
            turns = None  # the pod that flapped is gone
        if before is not None and turns is not None and is_held(s.previous, kind):
            held[kind] = ShownCondition(Verdict(before.status, before.reason, before.message), turns)
            shown[kind] = _held(s, held[kind], turns, verdict)
            continue
        if before is not None and verdict.status != good and _is_turn(s, w, before, verdict):
            at = timestamp_ms(s.seen.now)
            if turns is not None:
                age = (s.seen.now - datetime.fromisoformat(turns.last_time)).total_seconds()
                if not 0 <= age < FORGOTTEN_AFTER_SECONDS:
                    turns = None
            if turns is None:
                turns = FlappingCondition(type=kind, turns=1, first_time=at, last_time=at)
            else:
                turns = turns.model_copy(update={"turns": turns.turns + 1, "last_time": at})
        if turns is not None:
            verdict = _again(verdict, turns)
        shown[kind] = ShownCondition(verdict, turns)

    # Held conditions are written seldom: until the next write is due, the status keeps what it shows.
    ready = w.ready
    if "Resizing" in held and s.previous.workers is not None:
        ready = s.previous.workers.ready
    is_changed = ready != w.ready or any(shown[kind] != before for kind, before in held.items())
    waits = known is not None and is_changed and s.clock.within(datetime.fromisoformat(known.write_time), WRITE_SECONDS)
    if waits:
        shown |= held
    else:
        ready = w.ready
    write_time = timestamp_ms(s.seen.now)
    if known is not None and (waits or not is_changed):
        write_time = known.write_time

    turns_now = tuple(one.turns for one in shown.values() if one.turns is not None)
    return Steadied(
        verdicts={**verdicts, **{kind: one.verdict for kind, one in shown.items()}},
        ready=ready,
        flapping=FlappingStatus(write_time=write_time, conditions=turns_now) if turns_now else None,
    )


def _held(s: Situation, stored: ShownCondition, turns: FlappingCondition, verdict: Verdict) -> ShownCondition:
    """Return a held condition as the status should show it: bad until it has been good for CALM_SECONDS."""
    if verdict.status != GOOD[turns.type]:
        turns = turns.model_copy(update={"good_time": None})
        return ShownCondition(_again(verdict, turns), turns)
    good_time = turns.good_time or timestamp_ms(s.seen.now)
    if not s.clock.within(datetime.fromisoformat(good_time), CALM_SECONDS):
        return ShownCondition(verdict, None)
    if turns.good_time is None:
        turns = turns.model_copy(update={"good_time": good_time})
    minutes = round(CALM_SECONDS / 60)
    calm = f"{verdict.message} It is good once this has lasted for {minutes} minutes."
    return ShownCondition(_again(Verdict(stored.verdict.status, FLAPPING, calm), turns), turns)


def _is_of_a_pod_that_is_gone(s: Situation, before: Condition) -> bool:
    """Return whether the stored message is about a pod of the job that exists no more."""
    name = before.message.partition(": ")[0]
    is_pod = before.reason in HELD_UP and name.startswith(f"{s.seen.name}-") and " " not in name
    return is_pod and name not in {pod["metadata"]["name"] for pod in s.seen.pods}


def _is_turn(s: Situation, w: Workforce, before: Condition, verdict: Verdict) -> bool:
    """Return whether a condition turned bad, or changed its bad reason, while the number of requested workers stayed
    the same.

    Changes while workers come or go as requested, or before the first update, are progress.
    """
    known = s.previous.workers
    if s.previous.observed_generation != s.seen.generation or known is None or w.ready > w.requested:
        return False
    if (known.desired, known.requested) != (w.desired, w.requested):
        return False
    is_other = (before.reason, before.message) != (verdict.reason, verdict.message)
    is_setback = w.ready < known.ready or (s.update > 0 and w.ready == known.ready)
    return before.status == GOOD[before.type] or (is_other and is_setback)


def _again(verdict: Verdict, turns: FlappingCondition) -> Verdict:
    """Return the verdict; if the condition is held, the message also says since when it has flapped."""
    if turns.turns < MOST_TURNS:
        return verdict
    since = timestamp(datetime.fromisoformat(turns.first_time))
    return verdict._replace(message=truncated(f"{verdict.message} Again and again since {since}."))
