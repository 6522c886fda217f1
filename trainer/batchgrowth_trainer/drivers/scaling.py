"""How many workers a run should have, now and soon, and which of them form the next generation.

Workers are requested ahead of the milestone that needs them, by the measured time that a worker takes to become ready;
training goes on with those that are ready.
"""

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from batchgrowth.contract import lead
from batchgrowth.contract.lead import Upcoming
from batchgrowth.errors import ClusterError
from batchgrowth.position import Position
from batchgrowth.schedule.stages import Plan

from batchgrowth_trainer.drivers.run import RunState
from batchgrowth_trainer.sinks.events import WorkersReady
from batchgrowth_trainer.workers.crew import Crew

# --- How many workers a run should have, now and soon, and which of them form the next generation ---

_REPAIR_SECONDS = 3.0
_FIRST_LEAD_SECONDS = 10.0
_TICK_SECONDS = 0.05  # between two ticks: one takes a millisecond for a plan of many stages, as long as an update
_TOGETHER_SECONDS = 1.0  # how long newcomers wait for workers that are about to be ready, as each resize is a pause
_PAUSES = 10.0  # between two resizes while more workers are expected, in pauses of the last that added one
_LONGEST_APART_SECONDS = 60.0
_REPORT_SECONDS = 1.0  # the shortest wait for a worker that is reported


class Scaler(Protocol):
    """A cluster whose number of workers can be set."""

    def scale(self, count: int, keep: Collection[str]) -> None:
        """Request `count` workers, among them those whose names are in `keep`, without waiting for them."""

    def repair(self) -> None:
        """Replace workers that failed to start; called every few seconds while some are missing."""


def shards_of(plan: Plan, position: Position) -> int:
    """As many workers as a batch has parts: every worker of an externally scaled cluster that could have work."""
    return plan.parts(plan.stage_at(position.update).batch_size)


class Scaling:
    """Matches the workers to the plan; `scaler` is None if the cluster is scaled externally."""

    def __init__(self, run: RunState, crew: Crew, scaler: Scaler | None, patience_seconds: float) -> None:
        self._run, self._crew, self._scaler, self._patience = run, crew, scaler, patience_seconds
        self._asked, self._asked_at, self._repaired_at = 0, 0.0, 0.0
        self._lead_seconds: float | None = None
        self._num_ready = 0
        self._waited_in = -1  # the stage that has waited for its workers, as each does once
        self._newcomers_since: float | None = None
        self._grouped_at = 0.0
        self._ticked_at = -_TICK_SECONDS
        self._pace = _SmoothedPace()

    def wanted(self) -> int:
        """The workers that the current position should have, or can use if the cluster is scaled externally."""
        return self._run.wanted(self._run.position)

    def ends_at(self, size: int) -> int:
        """The first update of the next stage that wants or allows another group size; the plan's end if none does."""
        run = self._run
        here = run.wanted(run.position)
        for stage in run.plan.stages[run.plan.stage_at(run.position.update).index + 1 :]:
            wanted = run.wanted(run.plan.position_at(stage.first_update))
            if wanted != here if self._scaler else min(wanted, len(self._crew.ready)) != size:
                return stage.first_update
        return run.plan.updates

    def regroup_due(self, members: Sequence[str]) -> bool:
        """Whether the group should end: it has too many members or too few, or one is leaving."""
        wanted = self.wanted()
        if wanted < len(members) or not self._crew.leaving.isdisjoint(members):
            return True
        if min(wanted, len(self._crew.ready)) <= len(members):
            self._newcomers_since = None
            return False
        now = time.monotonic()
        if self._newcomers_since is None:
            self._newcomers_since = now
        if wanted <= len(self._crew.ready):
            return True
        together = not self._crew.is_preparing or now - self._newcomers_since > _TOGETHER_SECONDS
        return together and now - self._grouped_at > self._seconds_apart()

    def _seconds_apart(self) -> float:
        """The shortest time between two resizes while more workers are expected.

        The pause of a loss does not count: it has the wait for the one that was lost, as no other resize will.
        """
        grown = (row for row in reversed(self._run.totals.resizes) if row.to_workers > row.from_workers)
        last = next(grown, None)
        return min(_PAUSES * last.pause_seconds, _LONGEST_APART_SECONDS) if last else 0.0

    def tick(self, members: Sequence[str]) -> None:
        """Request the workers needed now or before a new one could be ready; `members` train and are kept."""
        if time.monotonic() - self._ticked_at < _TICK_SECONDS:
            return
        self._ticked_at = time.monotonic()
        self._crew.check_connected()
        self._crew.release_leaving(members)
        self._measure_lead()
        if self._scaler is None:
            return
        lead_seconds = _FIRST_LEAD_SECONDS if self._lead_seconds is None else self._lead_seconds
        measures = self._run.spec.batch.growth.entry.quantity
        age_seconds = time.monotonic() - self._asked_at if measures else math.inf
        count = lead.requested(self.wanted(), self._upcoming(), self._asked, lead_seconds, age_seconds=age_seconds)
        count = max(count, len(members))
        if count != self._asked:
            self._asked = count
            self._asked_at = self._repaired_at = time.monotonic()
            self._scaler.scale(count, {self._crew.ready[m].name for m in members if m in self._crew.ready})
        elif len(self._crew.registered) < count and time.monotonic() - self._repaired_at > _REPAIR_SECONDS:
            self._repaired_at = time.monotonic()
            self._scaler.repair()

    def _upcoming(self) -> Iterator[Upcoming]:
        """The later stages, the expected one included; none while no pace is known."""
        run, plan, rate = self._run, self._run.expected, self._pace.rate
        done = _examples(run.position, plan)
        for stage in plan.stages[plan.stage_at(run.position.update).index + 1 :] if rate else ():
            due_seconds = (float(stage.epoch_from) * plan.examples_per_epoch - done) / rate
            yield Upcoming(run.wanted(plan.position_at(stage.first_update), plan), due_seconds)

    def gather(self, handle_events: Callable[[float], None], updates: Mapping[str, int]) -> list[str]:
        """The members of the next generation, the most advanced by `updates` first: as many as wanted, or as are ready.

        `handle_events` handles events for up to some seconds. Waits for a first worker, and once per stage, up to
        workers.waitSeconds, for the others. Raises ClusterError if no worker becomes ready.
        """
        began = time.monotonic()
        stage = self._run.plan.stage_at(self._run.position.update).index
        patience = 0 if stage == self._waited_in else self._run.spec.workers.wait_seconds
        while not self._run.stop_requested():
            members = self.team(updates)
            self.tick(members)
            waited = time.monotonic() - began
            if len(members) >= (self._expected() if waited < patience else 1):
                self._waited_in, self._newcomers_since, self._grouped_at = stage, None, time.monotonic()
                return members
            if not members:
                self._report_waiting(waited)
            if waited > max(self._patience, patience):
                raise ClusterError(
                    f"no worker became ready within {waited:.0f} s; check the workers' logs, and on the scheduler "
                    f"whether any worker registered, and try again{self._trouble()}"
                )
            handle_events(0.05)
        return []

    def team(self, updates: Mapping[str, int]) -> list[str]:
        """The ready workers, the most advanced by `updates` first, as many as wanted."""
        return self._crew.in_order(updates)[: self.wanted()]

    def _expected(self) -> int:
        """The number of workers that a stage waits for."""
        planned = self._run.plan.stage_at(self._run.position.update).workers
        return self.wanted() if self._scaler else min(self.wanted(), planned)

    def _report_waiting(self, waited: float) -> None:
        if waited > _REPORT_SECONDS:
            registered = len(self._crew.registered)
            self._run.wait_for(f"a worker; {registered} registered, none ready{self._trouble()}")

    def _trouble(self) -> str:
        return f". The last error was {self._crew.trouble}" if self._crew.trouble else ""

    def _measure_lead(self) -> None:
        self._pace.update(self._run.position, self._run.plan)
        ready = len(self._crew.ready)
        if ready != self._num_ready:
            self._run.publish(WorkersReady(ready))
        if ready > self._num_ready and self._asked_at and ready <= self._asked:
            self._lead_seconds = lead.smoothed(self._lead_seconds, time.monotonic() - self._asked_at)
        self._num_ready = ready


class _SmoothedPace:
    """The smoothed pace, in examples per second."""

    def __init__(self) -> None:
        self._examples, self._at, self.rate = -1.0, 0.0, 0.0

    def update(self, position: Position, plan: Plan) -> None:
        """Take the position into account; positions less than 0.1 s apart are coalesced."""
        examples, now = _examples(position, plan), time.monotonic()
        if self._examples < 0 or examples < self._examples:
            self._examples, self._at = examples, now
        elif examples > self._examples and now - self._at > 0.1:
            self.rate = lead.smoothed(self.rate or None, (examples - self._examples) / (now - self._at))
            self._examples, self._at = examples, now


def _examples(position: Position, plan: Plan) -> float:
    return position.epoch * plan.examples_per_epoch + position.offset


# --- The workers of a run as a driver gets them ---


@dataclass(frozen=True, slots=True)
class JoinedCluster:
    """A crew that is open, how it is scaled, and the address of this machine that its workers can reach."""

    crew: Crew
    scaling: Scaling
    host: str


Join = Callable[[], AbstractContextManager[JoinedCluster]]
"""Connects to a Dask cluster, and disconnects at the end of the block. Raises SchedulerLost and ClusterError."""
