"""Conditions that turn bad again and again stay bad until they have been good for a while.

A pod that crashes, runs out of memory or loses its readiness again and again would otherwise cost status writes without
an end. The first turns are shown at once. What is remembered is a part of the status, so it survives the operator.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from batchgrowth.contract.status import FlappingCondition, FlappingStatus

from batchgrowth_operator.job.conditions import Verdict
from batchgrowth_operator.job.workers import Workforce
from batchgrowth_operator.seen.clock import parse_timestamp, timestamp, timestamp_ms
from batchgrowth_operator.seen.outcome import truncated
from batchgrowth_operator.seen.situation import MOST_TURNS, Mode, Situation, condition, is_held, turns_of

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
    """What the status shows of the conditions and of the workers' readiness, and what it remembers of turns.

    `due_seconds` is the time until it may change without any event; None if it cannot.
    """

    verdicts: Mapping[str, Verdict]
    ready: int
    flapping: FlappingStatus | None
    due_seconds: float | None


@dataclass(frozen=True, slots=True)
class _Shown:
    """One condition as shown, and what is remembered of its turns; None if it has not turned lately."""

    verdict: Verdict
    turns: FlappingCondition | None


def steadied(s: Situation, w: Workforce, verdicts: Mapping[str, Verdict]) -> Steadied:
    """The verdicts, with those that flap kept bad; nothing is held of a job that is suspended or over."""
    if s.mode is not Mode.ACTIVE:
        return Steadied(verdicts, w.ready, None, None)
    wanted = {kind: _next(s, w, kind, verdicts[kind]) for kind in GOOD}
    held = {kind: _stored(s, kind) for kind in GOOD if is_held(s.previous, kind) and not _is_edited(s)}
    ready = s.previous.workers.ready if s.previous.workers and "Resizing" in held else w.ready
    is_changed = ready != w.ready or any(wanted[kind] != stored for kind, stored in held.items())
    left = _seconds_to_write(s) if is_changed else 0.0
    shown = {**wanted, **held} if left else wanted
    turns = tuple(one.turns for one in shown.values() if one.turns is not None)
    is_written = is_changed and not left
    return Steadied(
        verdicts={**verdicts, **{kind: one.verdict for kind, one in shown.items()}},
        ready=ready if left else w.ready,
        flapping=FlappingStatus(write_time=_write_time(s, is_written=is_written), conditions=turns) if turns else None,
        due_seconds=min(filter(None, [left, *(_seconds_to_release(one, s.seen.now) for one in turns)]), default=None),
    )


def _write_time(s: Situation, *, is_written: bool) -> str:
    known = s.previous.flapping
    return timestamp_ms(s.seen.now) if known is None or is_written else known.write_time


def _next(s: Situation, w: Workforce, kind: str, verdict: Verdict) -> _Shown:
    """The condition as it should be shown now."""
    turns, is_good = turns_of(s.previous, kind), verdict.status == GOOD[kind]
    if turns is None or _is_edited(s) or not is_held(s.previous, kind):
        known = None if _is_edited(s) else turns
        return _again(verdict, _counted(known, kind, s.seen.now) if _is_turn(s, w, kind, verdict) else known)
    if not is_good:
        return _again(verdict, turns.model_copy(update={"good_time": None}))
    if turns.good_time is None:
        return replace(_stored(s, kind), turns=turns.model_copy(update={"good_time": timestamp_ms(s.seen.now)}))
    return _stored(s, kind) if 0 <= _age(turns.good_time, s.seen.now) < CALM_SECONDS else _Shown(verdict, None)


def _stored(s: Situation, kind: str) -> _Shown:
    """The held condition as the status has it."""
    before = condition(s.previous, kind)
    assert before is not None, "a condition that is held is in the status"
    return _Shown(Verdict(before.status, before.reason, before.message), turns_of(s.previous, kind))


def _is_edited(s: Situation) -> bool:
    """Whether the user changed the spec since the last pass, perhaps to mend what flaps."""
    return s.previous.observed_generation != s.seen.generation


def _is_turn(s: Situation, w: Workforce, kind: str, verdict: Verdict) -> bool:
    """Whether the condition turned bad, or bad in another way, though the same workers are requested as before.

    Other messages while workers come or go as requested are progress, and so are those before the first update.
    """
    before, known = condition(s.previous, kind), s.previous.workers
    if before is None or known is None or verdict.status == GOOD[kind] or _is_edited(s) or w.ready > w.requested:
        return False
    if (known.desired, known.requested) != (w.desired, w.requested):
        return False
    is_other = (before.reason, before.message) != (verdict.reason, verdict.message)
    is_setback = w.ready < known.ready or (s.update > 0 and w.ready == known.ready)
    return before.status == GOOD[kind] or (is_other and is_setback)


def _counted(turns: FlappingCondition | None, kind: str, now: datetime) -> FlappingCondition:
    """The turns with one more; those before a long time without any are forgotten."""
    at = timestamp_ms(now)
    if turns is None or not 0 <= _age(turns.last_time, now) < FORGOTTEN_AFTER_SECONDS:
        return FlappingCondition(type=kind, turns=1, first_time=at, last_time=at)
    return turns.model_copy(update={"turns": turns.turns + 1, "last_time": at})


def _again(verdict: Verdict, turns: FlappingCondition | None) -> _Shown:
    """The verdict with the time since when it came again and again, if it is held."""
    if turns is None or turns.turns < MOST_TURNS:
        return _Shown(verdict, turns)
    since = timestamp(parse_timestamp(turns.first_time))
    return _Shown(verdict._replace(message=truncated(f"{verdict.message} Again and again since {since}.")), turns)


def _seconds_to_write(s: Situation) -> float:
    """Seconds until held conditions may be written again; 0 if they may be now."""
    assert s.previous.flapping is not None, "a condition is held"
    age = _age(s.previous.flapping.write_time, s.seen.now)
    return WRITE_SECONDS - age if 0 <= age < WRITE_SECONDS else 0.0


def _seconds_to_release(turns: FlappingCondition | None, now: datetime) -> float | None:
    """Seconds until a held condition that stays good may be shown as good; 0 if it may be now."""
    return None if turns is None or turns.good_time is None else max(0.0, CALM_SECONDS - _age(turns.good_time, now))


def _age(text: str, now: datetime) -> float:
    """Seconds since that time; negative after a clock was set back, which makes the operator forget."""
    return (now - parse_timestamp(text)).total_seconds()
