"""How far a job has come: its plan as decided so far, and its position in that plan.

Both follow from the trainer's report, or without a usable one from the stored status. The report comes from a pod that
runs a user's code, so one that does not fit the spec counts as no report.
"""

import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from batchgrowth.contract.progress import LARGEST_START, Progress
from batchgrowth.contract.status import JobStatus, StageRecord
from batchgrowth.manifest.reading import StoredJob, read_stored
from batchgrowth.measuring import LARGEST_BATCH
from batchgrowth.schedule.plan import MOST_DECISIONS, BatchDecision, make_plan
from batchgrowth.schedule.stages import Plan
from batchgrowth.spec import JobSpec

from batchgrowth_operator.seen.observed import Observed, newest_report

LARGEST_COUNT = 2**31 - 1
"""The largest count of workers or seconds in a report."""
SHA256 = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The plan that follows from `decisions`, the usable report or None, and the number of updates done.

    `expected` is the plan with the stage that the report forecasts, if it forecasts one. `forgotten` is the number of
    stages before the first decision that is known; it is 0 with a report. `misfit` says why there is a report but no
    usable one; it is empty otherwise.
    """

    plan: Plan
    expected: Plan
    decisions: tuple[BatchDecision, ...]
    report: Progress | None
    update: int
    forgotten: int = 0
    misfit: str = ""


def standing(text: str, seen: Observed, previous: JobStatus) -> Standing:
    """The standing of the job with that text. Raises SpecError if its spec is refused, PlanError if it has no plan."""
    try:
        reported, misfit = _reported(text, seen), ""
    except ValueError as error:
        reported, misfit = None, str(error)
    known = previous.trainer_status
    start, update = (known.start or 0, known.update or 0) if known else (0, 0)
    if reported is not None and (reported[0].start, reported[0].update) >= (start, update):
        report, plan = reported
        expected = _expected(text, report) or plan
        return Standing(plan=plan, expected=expected, decisions=report.decisions, report=report, update=report.update)
    plan, decisions, forgotten = _remembered(text, previous.history)
    done = min(update, plan.updates)
    return Standing(
        plan=plan, expected=plan, decisions=decisions, report=None, update=done, forgotten=forgotten, misfit=misfit
    )


def job_text(seen: Observed) -> str:
    """The job without its status, by which specs and plans are cached."""
    metadata = {"name": seen.name, "namespace": seen.namespace}
    job = {key: seen.job[key] for key in ("apiVersion", "kind")} | {"metadata": metadata, "spec": seen.job.get("spec")}
    return json.dumps(job, ensure_ascii=False, sort_keys=True)


@lru_cache(maxsize=2048)
def stored(text: str) -> StoredJob:
    """The job in the text. Raises SpecError if its spec is refused."""
    return read_stored(text)


def spec_of(text: str) -> JobSpec:
    """The spec in the text. Raises SpecError if it is refused."""
    return stored(text).job.spec


@lru_cache(maxsize=2048)
def undecided(text: str) -> Plan:
    """The plan that follows from the spec alone; if the growth is measured, the batch stays as it is."""
    return make_plan(spec_of(text))


def current_run(history: Iterable[StageRecord]) -> tuple[StageRecord, ...]:
    """The newest records with rising indices: without stages that a restarted trainer took back."""
    run: list[StageRecord] = []
    for record in reversed(tuple(history)):
        if not run or record.index < run[-1].index:
            run.append(record)
    return tuple(reversed(run))


def _reported(text: str, seen: Observed) -> tuple[Progress, Plan] | None:
    """The trainer's report and the plan that follows from its decisions; None before the first report.

    Raises ValueError, naming the field, if the report is not one that a training of this job can make.
    """
    report = newest_report(seen)
    if report is None:
        return None
    plan = _decided(text, report.decisions)
    if plan is None:
        raise ValueError("progress.decisions: not those of a training of this job")
    plan = _shortened(spec_of(text), plan, report.ended_at_epoch)
    _check(report, plan)
    return report, plan


def _shortened(spec: JobSpec, plan: Plan, end: int | None) -> Plan:
    """The plan, up to where stopEarly ended it. Raises ValueError if it cannot end a training of this job there."""
    if end is None:
        return plan
    stop, every = spec.evaluation.stop_early, spec.evaluation.every_epochs
    if stop is None or end % every or not stop.patience * every <= end < plan.epochs:
        raise ValueError(f"progress.ended_at_epoch: {end}; spec.evaluation.stopEarly ends no training there")
    return plan.until(end)


def _expected(text: str, report: Progress) -> Plan | None:
    """The plan if the next look decides as the report forecasts; None without a forecast that fits the spec."""
    next_look = report.forecast
    if next_look is None or report.ended_at_epoch is not None:
        return None
    return _decided(text, (*report.decisions, BatchDecision(next_look.update, next_look.batch_size, math.inf)))


def _check(report: Progress, plan: Plan) -> None:
    """Raises ValueError if the report is not of this plan, or the status cannot store its numbers."""
    largest = {
        "update": plan.updates,
        "checkpoint_update": plan.updates,
        "epoch": plan.epochs,
        "start": LARGEST_START,
        "ready": LARGEST_COUNT,
        "seconds_per_update": LARGEST_COUNT,
    }
    named = [(name, getattr(report, name) or 0, most) for name, most in largest.items()]
    named += [(f"crews.{stage}", count, LARGEST_COUNT) for stage, count in report.crews.items()]
    named += [(f"pauses.{stage}", seconds, LARGEST_COUNT) for stage, seconds in report.pauses.items()]
    for name, number, most in [("updates", report.updates, plan.updates), *named]:
        if not 0 <= number <= most or (name == "updates" and number != most):
            raise ValueError(
                f"progress.{name}: {number:g}; the plan allows {'' if name == 'updates' else '0 to '}{most}"
            )
    if report.weights_sha256 is not None and not SHA256.fullmatch(report.weights_sha256):
        raise ValueError("progress.weights_sha256: not the 64 hexadecimal digits of a SHA-256")


def _remembered(text: str, history: Iterable[StageRecord]) -> tuple[Plan, tuple[BatchDecision, ...], int]:
    """The plan and the decisions that the history records, and the number of earlier stages that it no longer lists.

    It keeps the newest 64 stages, which suffice for the batch and the first update of the current one.
    """
    run = [record for record in current_run(history) if record.index]
    decisions = tuple(map(_decision, run))
    plan = _decided(text, decisions) if spec_of(text).batch.growth.entry.quantity else None
    if plan is None:
        return undecided(text), (), 0
    return plan, decisions, run[0].index - 1 if run else 0


def _decision(record: StageRecord) -> BatchDecision:
    """The decision that began the stage, without its value, which no plan depends on."""
    wanted = record.batch_size if record.wanted is None else record.wanted
    return BatchDecision(update=record.first_update or 0, wanted=wanted, value=math.inf)


@lru_cache(maxsize=2048)
def _decided(text: str, decisions: tuple[BatchDecision, ...]) -> Plan | None:
    """The plan that follows from these decisions; None if no training of this spec can take them."""
    if not decisions:
        return undecided(text)
    spec = spec_of(text)
    if not spec.batch.growth.entry.quantity or not _are_plausible(decisions):
        return None
    plan = make_plan(spec, decisions)
    return plan if len(plan.stages) == len(decisions) + 1 else None  # each decision before the end begins a stage


def _are_plausible(decisions: tuple[BatchDecision, ...]) -> bool:
    rising = all(one < other for one, other in pairwise([0, *(decision.update for decision in decisions)]))
    return (
        rising
        and len(decisions) <= MOST_DECISIONS
        and all(1 <= decision.wanted <= LARGEST_BATCH for decision in decisions)
    )
