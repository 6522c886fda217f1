"""How many workers a run needs now and soon, and which workers form the next generation.

Workers are requested ahead of the milestone that needs them, by the measured time that a worker takes to become ready;
training goes on with those that are ready. While there is none, the run says what it waits for (`_report_wait`).

How long a resize stopped the training is measured by the workers (`PauseClock` in worker/member.py).
"""

import logging
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from batchgrowth.contract import lead_time
from batchgrowth.contract.lead_time import Upcoming
from batchgrowth.errors import ClusterError
from batchgrowth.plan import Plan
from batchgrowth.position import Position

from batchgrowth_trainer.drivers.run import RunState
from batchgrowth_trainer.pool.worker_pool import WorkerPool
from batchgrowth_trainer.sinks.events import WorkersReady

_REPAIR_SECONDS = 3.0
_FIRST_LEAD_SECONDS = 10.0
_TICK_SECONDS = 0.05  # between two ticks: one takes a millisecond for a plan of many stages, as long as an update
_TOGETHER_SECONDS = 1.0  # how long newcomers wait for workers that are about to be ready, as each resize is a pause
_PAUSES = 10.0  # between two resizes while more workers are expected, in pauses of the last that added workers
_LONGEST_APART_SECONDS = 60.0
_REPORT_SECONDS = 1.0  # the shortest wait for a worker that is reported

log = logging.getLogger(__name__)


class Scaler(Protocol):
    """A cluster whose number of workers can be set."""

    def scale(self, count: int, keep: Collection[str]) -> None:
        """Request `count` workers without waiting for them; they include the workers whose names are in `keep`."""

    def repair(self) -> None:
        """Replace workers that failed to start; called every few seconds while some are missing."""

    def check_starts(self, known: Collection[str]) -> None:
        """Raise ClusterError if workers keep ending before they are ready; the ends of `known` workers do not count."""

    def forget_starts(self) -> None:
        """Note that a worker is ready, so that earlier failures no longer count."""

    def worked_at(self) -> float:
        """Return when a worker that may not answer yet last did something, by the monotonic clock."""


def shards_of(plan: Plan, position: Position) -> int:
    """Return the number of shards of a batch: the most workers of an externally scaled cluster that could have work."""
    return plan.parts(plan.stage_at(position.update).batch_size)


class Scaling:
    """Matches the workers to the plan; `scaler` is None if the cluster is scaled externally."""

    def __init__(self, run: RunState, pool: WorkerPool, scaler: Scaler | None, patience_seconds: float) -> None:
        self._run = run
        self._pool = pool
        self._scaler = scaler
        self._patience = patience_seconds
        self._asked = 0  # workers, at `_asked_at`
        self._asked_at = 0.0
        self._is_outstanding = False  # until `_asked` are ready; a worker that comes back later is no measure
        self._repaired_at = 0.0
        self._ticked_at = -_TICK_SECONDS
        self._pace = _SmoothedPace()
        self._num_ready = 0
        self._lead_seconds: float | None = None  # the measured time from a request to a worker that is ready
        self._waited_in = -1  # the stage that has waited for its workers, as each does once
        self._newcomers_since: float | None = None
        self._grouped_at = 0.0

    def desired_workers(self) -> int:
        """Return how many workers to have at this position, or to use at most if the cluster is scaled externally."""
        return self._run.desired_workers(self._run.position)

    def ends_at(self, size: int) -> int:
        """Return the first update of the next stage with a different group size, or the plan's end."""
        run = self._run
        present = run.desired_workers(run.position) if self._scaler else size
        for stage in run.plan.stages[run.plan.stage_at(run.position.update).index + 1 :]:
            desired = run.desired_workers(run.plan.position_at(stage.first_update))
            # A cluster that is scaled externally does not grow because a stage wants more.
            if self._scaler is None:
                desired = min(desired, len(self._pool.ready))
            if desired != present:
                return stage.first_update
        return run.plan.updates

    def reason_to_regroup(self, members: Sequence[str]) -> str:
        """Return a line about why the group should end; empty if the group should go on."""
        desired = self.desired_workers()
        if desired < len(members):
            return f"only {desired} workers are wanted"
        leaving = self._pool.leaving.intersection(members)
        if leaving:
            return f"worker {min(leaving)} is leaving"
        usable = min(desired, len(self._pool.ready))
        if usable <= len(members):
            self._newcomers_since = None
            return ""

        now = time.monotonic()
        if self._newcomers_since is None:
            self._newcomers_since = now
        reason = f"{usable - len(members)} more workers are ready"
        if desired <= len(self._pool.ready):
            return reason
        if self._pool.is_preparing and now - self._newcomers_since <= _TOGETHER_SECONDS:
            return ""
        # While more workers are expected, resizes are some pauses apart. The pause of a loss does not count, because it
        # includes the wait for the lost worker.
        grown = (row for row in reversed(self._run.totals.resizes) if row.to_workers > row.from_workers)
        last = next(grown, None)
        apart_seconds = 0.0
        if last is not None:
            apart_seconds = min(_PAUSES * last.pause_seconds, _LONGEST_APART_SECONDS)
        if now - self._grouped_at > apart_seconds:
            return reason
        return ""

    def tick(self, members: Sequence[str]) -> None:
        """Request the workers that the run needs now, or will need before a new one could be ready; keep `members`."""
        run = self._run
        pool = self._pool
        if time.monotonic() - self._ticked_at < _TICK_SECONDS:
            return
        self._ticked_at = time.monotonic()
        pool.check_connected()
        pool.release_leaving(members)

        self._pace.update(run.position, run.plan)
        ready = len(pool.ready)
        if ready != self._num_ready:
            run.publish(WorkersReady(ready))
        if ready > self._num_ready and self._is_outstanding and ready <= self._asked:
            self._lead_seconds = lead_time.smoothed(self._lead_seconds, time.monotonic() - self._asked_at)
            log.debug("%s: workers ready: %d; a new one takes %.1f s", run.where, ready, self._lead_seconds)
        self._num_ready = ready
        self._is_outstanding = self._is_outstanding and ready < self._asked
        if self._scaler is None:
            return

        lead_seconds = _FIRST_LEAD_SECONDS if self._lead_seconds is None else self._lead_seconds
        # Forecasts of a measured growth come and go, so what was requested for one is kept for a while.
        age_seconds = math.inf
        if run.spec.batch.growth.entry.quantity:
            age_seconds = time.monotonic() - self._asked_at
        desired = self.desired_workers()
        count = lead_time.requested(desired, self._upcoming(), self._asked, lead_seconds, age_seconds=age_seconds)
        # No member is closed in the middle of its generation; the next generation has fewer members.
        count = max(count, len(members))
        if count != self._asked:
            why = f"this stage needs {desired}"
            if count > max(desired, len(members)):
                why += (
                    f", and a larger one begins within about {lead_seconds:.1f} s, which a new worker takes to be ready"
                )
            log.info(
                "%s: workers requested: %d (before: %d; now training: %d); %s",
                run.where,
                count,
                self._asked,
                len(members),
                why,
            )
            self._asked = count
            self._is_outstanding = True
            self._asked_at = self._repaired_at = time.monotonic()
            self._scaler.scale(count, {pool.ready[m].name for m in members if m in pool.ready})
        elif len(pool.registered) < count and time.monotonic() - self._repaired_at > _REPAIR_SECONDS:
            log.debug("%s: workers registered: %d of %d", run.where, len(pool.registered), count)
            self._repaired_at = time.monotonic()
            self._scaler.repair()

    def _upcoming(self) -> Iterator[Upcoming]:
        """Yield the later stages of the expected plan; none while the pace is unknown."""
        run = self._run
        plan = run.expected
        rate = self._pace.rate
        if not rate:
            return
        done = _examples(run.position, plan)
        for stage in plan.stages[plan.stage_at(run.position.update).index + 1 :]:
            due_seconds = (float(stage.epoch_from) * plan.examples_per_epoch - done) / rate
            yield Upcoming(run.desired_workers(plan.position_at(stage.first_update), plan), due_seconds)

    def gather(self, handle_events: Callable[[float], None], updates: Mapping[str, int]) -> list[str]:
        """Return the members of the next generation, the most advanced by `updates` first.

        They are as many as desired, or fewer if no more become ready in time: this waits for a first worker, and once
        per stage, up to workers.waitSeconds, for the others; it returns none if a stop is requested. Meanwhile,
        `handle_events(seconds)` handles the pool's events for at most that time. Raises ClusterError if no worker can
        become ready, or none is ready and none has shown a sign of life for a while.
        """
        run = self._run
        began = time.monotonic()
        stage = run.plan.stage_at(run.position.update).index
        patience = 0 if stage == self._waited_in else run.spec.workers.wait_seconds
        while not run.stop_requested():
            members = self.team(updates)
            self.tick(members)
            waited = time.monotonic() - began
            enough = 1
            if waited < patience:
                enough = self.desired_workers()
                if self._scaler is None:  # every worker that could have work is desired, but not waited for
                    enough = min(enough, run.plan.stage_at(run.position.update).workers)
            if members and self._scaler is not None:
                self._scaler.forget_starts()
            if len(members) >= enough:
                self._waited_in = stage
                self._newcomers_since = None
                self._grouped_at = time.monotonic()
                return members

            if not members:
                self._report_wait(began, patience)
            handle_events(0.05)
        return []

    def _report_wait(self, began: float, patience: float) -> None:
        """Report the wait since `began` for a first worker. Raises what `gather` does."""
        pool = self._pool
        pool.preparing.ask()
        heard_at = max(began, pool.preparing.heard_at)
        if self._scaler is not None:
            self._scaler.check_starts(pool.known)
            heard_at = max(heard_at, self._scaler.worked_at())
        if self._patience < math.inf:
            pool.check_failed()
        now = time.monotonic()
        trouble = f". The last error was {pool.trouble}" if pool.trouble else ""
        if now - began > _REPORT_SECONDS:
            doing = pool.preparing.line()
            doing = doing and f"; {doing}"
            self._run.wait_for(f"a worker; {len(pool.registered)} registered, none ready{doing}{trouble}")
        if now - heard_at > max(self._patience, patience):
            raise ClusterError(
                f"no worker became ready, and none has shown a sign of life for {now - heard_at:.0f} s; check the "
                f"workers' logs, and on the scheduler whether any worker registered, and try again{trouble}"
            )

    def team(self, updates: Mapping[str, int]) -> list[str]:
        """Return as many of the ready workers as wanted, the most advanced by `updates` first."""
        return self._pool.in_order(updates)[: self.desired_workers()]


class _SmoothedPace:
    """The smoothed pace, in examples per second."""

    def __init__(self) -> None:
        self._examples = -1.0
        self._at = 0.0
        self.rate = 0.0

    def update(self, position: Position, plan: Plan) -> None:
        """Update the pace by this position; positions less than 0.1 s apart are coalesced."""
        examples = _examples(position, plan)
        now = time.monotonic()
        if 0 <= self._examples <= examples:
            if examples == self._examples or now - self._at <= 0.1:
                return
            self.rate = lead_time.smoothed(self.rate or None, (examples - self._examples) / (now - self._at))
        self._examples = examples
        self._at = now


def _examples(position: Position, plan: Plan) -> float:
    return position.epoch * plan.examples_per_epoch + position.offset


@dataclass(frozen=True, slots=True)
class JoinedCluster:
    """An open worker pool, its scaling, and the address of this machine that its workers can reach."""

    pool: WorkerPool
    scaling: Scaling
    host: str


Join = Callable[[], AbstractContextManager[JoinedCluster]]
"""Connects to a Dask cluster, and disconnects at the end of the block. Raises SchedulerLost and ClusterError."""
