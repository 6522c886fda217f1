"""status.history: the stages that have begun, with what decided them and how their workers came."""

import math
from typing import Any

from batchgrowth.progress import Progress
from batchgrowth.stages import Stage
from batchgrowth.status import MOST_HISTORY, StageRecord

from batchgrowth_operator.decide.scaling import Workforce
from batchgrowth_operator.decide.situation import Situation
from batchgrowth_operator.decide.standing import current_run
from batchgrowth_operator.seen.timestamps import timestamp_ms


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
