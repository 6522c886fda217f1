"""How many workers a run should have, now and soon, and who is in the next generation.

Workers are asked for ahead of the milestone that needs them, by the time that a worker took to become ready; training
goes on with those that are there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import takewhile
from typing import Protocol

from batchgrowth.errors import ClusterError
from batchgrowth.plan import Plan, Position

from batchgrowth_trainer.crew.crew import Crew
from batchgrowth_trainer.drivers.run import Run

_REPAIR_SECONDS = 3.0
_FIRST_LEAD_SECONDS = 10.0
_LEAD_SLACK = 1.5
_RELEASE_SLACK = 10.0  # a worker that is wanted again before long is kept
_SMOOTHING = 0.5
_LOOK_SECONDS = 0.05  # an update may take a millisecond; a look at a plan of many stages takes that, too
_TOGETHER_SECONDS = 1.0  # each joining is a pause, so a newcomer waits that long for those who are about to be ready
_TELL_SECONDS = 1.0  # a wait that is over sooner is not worth a line


class Scaler(Protocol):
    """A cluster whose number of workers can be set."""

    def scale(self, count: int, keep: Collection[str]) -> None:
        """Ask for so many workers, at least those whose names are in `keep`; does not wait for them."""

    def repair(self) -> None:
        """Begin anew with workers that will not come by themselves; called every few seconds while some are missing."""


def shards_of(plan: Plan) -> Callable[[Position], int]:
    """As many workers as a batch has shards: where somebody else decides how many there are, all are used.

    More would have nothing to do.
    """
    return lambda position: -(-plan.stage_at(position.update).batch_size // plan.shard)


class Scaling:
    """Compares what the plan wants with what is there; `scaler` is None where somebody else scales the cluster."""

    def __init__(self, run: Run, crew: Crew, scaler: Scaler | None, patience_seconds: float) -> None:
        self._run, self._crew, self._scaler, self._patience = run, crew, scaler, patience_seconds
        self._asked, self._asked_at, self._repaired_at = 0, 0.0, 0.0
        self._lead = _FIRST_LEAD_SECONDS
        self._seen = 0
        self._waited_in = -1  # the stage that has waited for its workers; it does so once
        self._newcomers_since: float | None = None
        self._looked_at = -_LOOK_SECONDS
        self._pace = _Pace()

    def wanted(self) -> int:
        """Workers that the present position should have, or can use where somebody else scales the cluster."""
        return self._run.wanted(self._run.position)

    def ends_at(self, size: int) -> int:
        """The update before which a group of this size is to end, since another one is wanted or possible from there.

        The plan's last where there is none.
        """
        run = self._run
        here = run.wanted(run.position)
        for stage in run.plan.stages[run.plan.stage_at(run.position.update).index + 1 :]:
            wanted = run.wanted(run.plan.position_at(stage.first_update))
            if wanted != here if self._scaler else min(wanted, len(self._crew.ready)) != size:
                return stage.first_update
        return run.plan.updates

    def regroup_due(self, members: Sequence[str]) -> bool:
        """Whether the members that train should make way for another group: too many, too few, or one is leaving."""
        wanted = self.wanted()
        if wanted < len(members) or not self._crew.leaving.isdisjoint(members):
            return True
        if min(wanted, len(self._crew.ready)) <= len(members):
            self._newcomers_since = None
            return False
        if self._newcomers_since is None:
            self._newcomers_since = time.monotonic()
        enough = wanted <= len(self._crew.ready) or not self._crew.is_preparing
        return enough or time.monotonic() - self._newcomers_since > _TOGETHER_SECONDS

    def tick(self, members: Sequence[str]) -> None:
        """Ask for the workers of now and of the time that a new one needs to become ready.

        `members` train, or are about to: none of them is let go.
        """
        if time.monotonic() - self._looked_at < _LOOK_SECONDS:
            return
        self._looked_at = time.monotonic()
        self._crew.check_connected()
        self._crew.see_off(members)
        self._measure_lead()
        if self._scaler is None:
            return
        soon, later = self._most(self._lead * _LEAD_SLACK), self._most(self._lead * _RELEASE_SLACK)
        count = soon if soon > self._asked else max(soon, min(later, self._asked))
        count = max(count, len(members))
        if count != self._asked:
            self._asked = count
            self._asked_at = self._repaired_at = time.monotonic()
            self._scaler.scale(count, {self._crew.ready[m].name for m in members if m in self._crew.ready})
        elif len(self._crew.here) < count and time.monotonic() - self._repaired_at > _REPAIR_SECONDS:
            self._repaired_at = time.monotonic()
            self._scaler.repair()

    def _most(self, seconds: float) -> int:
        """The most workers that the run wants between now and then."""
        now = self._run.position
        then = self._pace.position_in(seconds, now, self._run.plan)
        return max(self._run.wanted(place) for place in _places(self._run.plan, now, then))

    def gather(self, attend: Callable[[float], None], updates: Mapping[str, int]) -> list[str]:
        """The members of the next generation, the furthest by `updates` first: as many as wanted, or as are ready.

        `attend` handles events for at most so many seconds.  Waits for a first worker, and for the others once in a
        stage and no longer than workers.waitSeconds. Raises ClusterError where no worker comes.
        """
        began = time.monotonic()
        stage = self._run.plan.stage_at(self._run.position.update).index
        patience = 0 if stage == self._waited_in else self._run.spec.workers.wait_seconds
        while not self._run.stop_requested():
            members = self._crew.in_order(updates)[: self.wanted()]
            self.tick(members)
            waited = time.monotonic() - began
            if len(members) >= (self._awaited() if waited < patience else 1):
                self._waited_in, self._newcomers_since = stage, None
                return members
            if not members:
                self._tell_of_waiting(waited)
            if waited > max(self._patience, patience):
                raise ClusterError(
                    f"no worker became ready within {waited:.0f} s; look at the workers' logs, or at the scheduler "
                    f"whether any worker registered, and try again{self._trouble()}"
                )
            attend(0.05)
        return []

    def _awaited(self) -> int:
        """The workers that a stage may wait for."""
        planned = self._run.plan.stage_at(self._run.position.update).workers
        return self.wanted() if self._scaler else min(self.wanted(), planned)

    def _tell_of_waiting(self, waited: float) -> None:
        if waited > _TELL_SECONDS:
            here = len(self._crew.here)
            self._run.wait_for(f"a worker; {here} registered, none ready{self._trouble()}")

    def _trouble(self) -> str:
        return f". The last trouble was {self._crew.trouble}" if self._crew.trouble else ""

    def _measure_lead(self) -> None:
        self._pace.see(self._run.position, self._run.plan)
        ready = len(self._crew.ready)
        if ready != self._seen:
            self._run.note_ready(ready)
        if ready > self._seen and self._asked_at and ready <= self._asked:
            took = time.monotonic() - self._asked_at
            self._lead += _SMOOTHING * (took - self._lead)
        self._seen = ready


class _Pace:
    """Examples per second, smoothed over the last looks."""

    def __init__(self) -> None:
        self._examples, self._at, self._rate = -1.0, 0.0, 0.0

    def see(self, position: Position, plan: Plan) -> None:
        """Take a look; looks that are less than a tenth of a second apart are joined."""
        examples, now = _examples(position, plan), time.monotonic()
        if self._examples < 0 or examples < self._examples:
            self._examples, self._at = examples, now
        elif examples > self._examples and now - self._at > 0.1:
            rate = (examples - self._examples) / (now - self._at)
            self._rate = rate if not self._rate else self._rate + _SMOOTHING * (rate - self._rate)
            self._examples, self._at = examples, now

    def position_in(self, seconds: float, now: Position, plan: Plan) -> Position:
        """Where the run will be then, at this pace; where it is, as long as no pace is known."""
        ahead = int(_examples(now, plan) + self._rate * seconds)
        epoch, offset = divmod(ahead, plan.examples_per_epoch)
        return Position(now.update, min(epoch, plan.epochs - 1), offset)


def _examples(position: Position, plan: Plan) -> float:
    return position.epoch * plan.examples_per_epoch + position.offset


def _places(plan: Plan, now: Position, soon: Position) -> list[Position]:
    """The present position and the beginning of every stage up to `soon`."""
    reach = soon.epoch + soon.offset / plan.examples_per_epoch
    later = plan.stages[plan.stage_at(now.update).index + 1 :]
    return [now, *(plan.position_at(stage.first_update) for stage in takewhile(lambda s: s.epoch_from <= reach, later))]
