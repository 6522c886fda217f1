"""The stages of a job as rows of a table: what was planned, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction

from batchgrowth.plan import Stage
from batchgrowth.status import StageRecord

from cluster.demo.seen import Seen, moment


@dataclass(frozen=True, slots=True)
class Row:
    """One stage; times are seconds, and None says that there is nothing to tell (yet).

    `began` counts from the job's apply, `came` is how long its workers took to come, `workers` are those it began with.
    """

    stage: Stage
    state: str
    workers: int | None = None
    began: float | None = None
    lasted: float | None = None
    came: float | None = None
    pause: float | None = None

    @property
    def epochs(self) -> str:
        """From when to when."""
        return f"{_epoch(self.stage.epoch_from)} – {_epoch(self.stage.epoch_to)}"


def rows(seen: Seen, now: datetime) -> list[Row]:
    """A row for every stage of the plan; a stage lasts until the next one begins, the last until the job is over."""
    history = {record.index: record for record in seen.status.history}
    begins = {index: moment(record.start_time) for index, record in history.items()}
    return [_row(seen, stage, history.get(stage.index), begins, now) for stage in seen.plan.stages]


def _row(seen: Seen, stage: Stage, record: StageRecord | None, begins: dict[int, datetime], now: datetime) -> Row:
    if record is None:
        return Row(stage, "to come")
    later = [begins[index] for index in begins if index > stage.index]
    end = min(later) if later else (seen.ended or now)
    over = bool(later) or seen.status.phase == "Succeeded"
    return Row(
        stage=stage,
        state="done" if over else "failed" if seen.is_over else "now",
        workers=record.workers,
        began=(begins[stage.index] - seen.applied).total_seconds(),
        lasted=(end - begins[stage.index]).total_seconds(),
        came=None if record.resize_seconds is None else float(record.resize_seconds),
        pause=None if record.pause_seconds is None else float(record.pause_seconds),
    )


def _epoch(epoch: Fraction) -> str:
    return f"{float(epoch):g}"
