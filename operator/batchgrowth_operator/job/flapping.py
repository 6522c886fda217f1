"""Conditions that keep turning bad stay bad until they have been good for a while.

Otherwise, a pod that keeps crashing or losing its readiness would cost endless status writes. The first turns are shown
at once. The memory of turns is part of the status, so it survives the operator.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from batchgrowth.contract.status import FLAPPING, HELD_UP, Condition, FlappingCondition, FlappingStatus

from batchgrowth_operator.job.conditions import Verdict
from batchgrowth_operator.job.workforce import Workforce
from batchgrowth_operator.seen.clock import timestamp, timestamp_ms
from batchgrowth_operator.seen.observed import truncated
from batchgrowth_operator.seen.situation import MOST_TURNS, Mode, Situation, is_held

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
            turns = None  # what flapped is no more
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

    # What is held is written seldom: until the next write is due, the status keeps showing what it has.
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
    """Return the verdict; the message of a held condition says since when it flaps."""
    if turns.turns < MOST_TURNS:
        return verdict
    since = timestamp(datetime.fromisoformat(turns.first_time))
    return verdict._replace(message=truncated(f"{verdict.message} Again and again since {since}."))
