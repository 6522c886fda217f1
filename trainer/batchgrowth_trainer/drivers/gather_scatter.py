"""GatherScatter: a server gathers the workers' gradients, takes the step and scatters the model."""

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from statistics import median

import numpy as np
import torch
from batchgrowth.schedule.stages import Step

from batchgrowth_trainer.blame import WorkerFault
from batchgrowth_trainer.drivers.run import RunState
from batchgrowth_trainer.drivers.scaling import Join, Scaling
from batchgrowth_trainer.drivers.single_process import evaluate_if_due
from batchgrowth_trainer.record.snapshot import PackedTensor, Trained, pack_all
from batchgrowth_trainer.replica.building import build_replica
from batchgrowth_trainer.replica.evaluation import trained_of
from batchgrowth_trainer.replica.growth import Stopwatch
from batchgrowth_trainer.replica.replica import Replica
from batchgrowth_trainer.replica.rows import Committed, add_up, lay_out
from batchgrowth_trainer.sinks.events import BackedUp, BytesSent
from batchgrowth_trainer.worker import service
from batchgrowth_trainer.worker.messages import Gradients, Left, UpdateRow
from batchgrowth_trainer.workers import health
from batchgrowth_trainer.workers.arithmetics import STEPS
from batchgrowth_trainer.workers.calls import WorkerRequest
from batchgrowth_trainer.workers.connection import SchedulerLost
from batchgrowth_trainer.workers.crew import Crew
from batchgrowth_trainer.workers.registered import Ended, Event

# --- One attempt at one update of GatherScatter: which workers compute which part of it, and how that ended ---
# A part is the run of shards of one rank. It may have two copies: that of the worker with that rank, and a backup by an
# idle worker, which computes the same nodes of the tree with the same seeds, so both have the same bits. The first
# copy counts, also if its worker is lost afterwards. A part whose copies are all lost fails the attempt.

TIMES_THE_MEDIAN = 2.0
"""A part is overdue after this many times what the median of the ended ones took per shard.

A backup begun then ends after about three times the median. So it only pays if the worker is slower than that; noise
seldom is, and a smaller factor would have most backups come second.
"""
SHORTEST_SECONDS = 0.1
"""The shortest time after which a part is overdue: a backup costs some milliseconds besides its computing."""


@dataclass(eq=False, slots=True)
class Copy:
    """A request that `worker` computes the part of `rank`; times in seconds, by the driver's clock.

    A backup was asked for `delay` seconds after the copy that was there.
    """

    rank: int
    worker: str
    request: WorkerRequest
    asked_at: float
    is_backup: bool = False
    delay: float = 0.0
    ended_at: float = math.inf

    @property
    def has_ended(self) -> bool:
        """Whether its rows are ready."""
        return self.ended_at < math.inf


class Gathering:
    """The copies of each part of one update; part r has `sizes[r]` shards. `clock` gives seconds.

    `usual_pace` is that of the updates before it, in seconds per shard.
    """

    def __init__(
        self,
        number: int,
        sizes: Sequence[int],
        usual_pace: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.number, self._sizes, self._usual_pace, self._clock = number, sizes, usual_pace, clock
        self.answered_at = clock()  # when those under way were last known to live
        self.first_ended_at = math.inf
        self.faults: dict[str, WorkerFault] = {}  # by worker
        self.num_backups = 0
        self.asked: set[str] = set()  # the workers, those included that are gone
        self.is_lost = False
        self._parts: list[list[Copy]] = [[] for _ in sizes]
        self._copies: dict[str, Copy] = {}  # by the key of the request, without those that are lost
        self._missing = set(range(len(sizes)))

    def add(self, rank: int, worker: str, request: WorkerRequest) -> None:
        """Take a request that the worker computes the part of this rank."""
        copy, part = Copy(rank, worker, request, self._clock()), self._parts[rank]
        if part:
            copy.is_backup, copy.delay = True, copy.asked_at - part[0].asked_at
            self.num_backups += 1
        part.append(copy)
        self.asked.add(worker)
        self._copies[request.key] = copy

    def follow(self, event: Event) -> None:
        """Take the end of a request, or the loss of a worker with what it still computes. Raises what it raised."""
        if isinstance(event, Left):
            for copy in [copy for copy in self.under_way() if copy.worker == event.address]:
                self._lose(copy)
        elif isinstance(event, Ended) and event.future.key in self._copies:
            self._end(self._copies[event.future.key], event)

    @property
    def is_over(self) -> bool:
        """Whether each part has a copy that ended, or one has none left."""
        return self.is_lost or not self._missing

    def first_copies(self) -> list[Copy]:
        """The copy that counts of each part, by rank; once it is over, and not lost."""
        return [min(part, key=lambda copy: copy.ended_at) for part in self._parts]

    def under_way(self) -> list[Copy]:
        """The copies that have not ended."""
        return [copy for copy in self._copies.values() if not copy.has_ended]

    def in_time(self) -> list[str]:
        """The workers that have ended the part that they were given first."""
        return [copy.worker for copy in self._copies.values() if copy.has_ended and not copy.is_backup]

    def idle(self, ready: Iterable[str] = ()) -> list[str]:
        """The workers without a part under way and without a fault, in the order in which they ended.

        After them, those of the `ready` ones that were not asked, as they have become free since.
        """
        ended = sorted((copy for copy in self._copies.values() if copy.has_ended), key=lambda copy: copy.ended_at)
        busy = {copy.worker for copy in self.under_way()} | self.faults.keys()
        free = dict.fromkeys(copy.worker for copy in ended if copy.worker not in busy)
        return [*free, *(worker for worker in ready if worker not in self.asked)]

    def overdue(self) -> list[int]:
        """The ranks of the parts that an idle worker should repeat, the one that began first before others."""
        pace = self.pace
        if pace is None:
            return []
        alone = sorted((self._parts[rank][0] for rank in self._missing if len(self._parts[rank]) == 1), key=_asked_at)
        return [copy.rank for copy in alone if self._is_overdue(copy, pace)]

    @property
    def pace(self) -> float | None:
        """The median seconds per shard of the parts that have ended; the usual one before half of them have.

        None if neither is known.
        """
        paces = [
            (copy.ended_at - copy.asked_at) / size
            for part, size in zip(self._parts, self._sizes, strict=True)
            for copy in part
            if size and copy.has_ended
        ]
        if 2 * len(paces) < sum(size > 0 for size in self._sizes):
            return self._usual_pace  # what most take is not known yet
        return median(paces) if paces else None

    def _is_overdue(self, copy: Copy, pace: float) -> bool:
        allowed = TIMES_THE_MEDIAN * pace * self._sizes[copy.rank]
        return self._clock() - copy.asked_at > max(SHORTEST_SECONDS, allowed)

    def _end(self, copy: Copy, event: Ended) -> None:
        fault = event.fault()
        if fault is not None:
            self.faults[copy.worker] = fault
        if fault is not None or event.is_lost():
            self._lose(copy)
            return
        copy.ended_at = self._clock()
        self.first_ended_at = min(self.first_ended_at, copy.ended_at)
        self._missing.discard(copy.rank)

    def _lose(self, copy: Copy) -> None:
        del self._copies[copy.request.key]
        part = self._parts[copy.rank]
        part.remove(copy)
        self.is_lost = self.is_lost or not part


def _asked_at(copy: Copy) -> float:
    return copy.asked_at


# --- The workers of GatherScatter that still compute a copy of an earlier update, which no longer counts ---
# A worker's thread cannot be interrupted, and its next part would wait behind this one. So the driver leaves the worker
# out of the following updates until this one has ended. One that was late in each of its last updates rests for further
# ones, twice as many each time, in which it may still repeat the parts of others.

FIRST_REST, LONGEST_REST = 4, 256
"""Updates for which a worker rests that was late twice in a row, and the most for one that always is."""


class Stragglers:
    """Knows which workers are late, and restarts those that hang; `clock` gives seconds."""

    def __init__(
        self, crew: Crew, note: health.Note, patience_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._crew, self._note, self._patience, self._clock = crew, note, patience_seconds, clock
        self._late: dict[str, tuple[Copy, float]] = {}  # by worker, with the time at which its copy became useless
        self._in_a_row = Counter[str]()  # how often each worker was late since it was last in time
        self._rests: dict[str, int] = {}  # by worker, until which update it rests
        self._updates = 0
        self._asked_at = clock()

    def __contains__(self, worker: str) -> bool:
        """Whether the worker still computes for an earlier update."""
        return worker in self._late

    def rests(self, worker: str) -> bool:
        """Whether the worker should have no part of the next update, although it could."""
        return self._rests.get(worker, 0) > self._updates

    def after(self, late: Iterable[Copy], in_time: Iterable[str]) -> None:
        """Take the copies that were under way when an update was complete, and the workers that ended their part."""
        self._updates += 1
        for worker in in_time:
            self._in_a_row.pop(worker, None)
        for copy in late:
            self._late[copy.worker] = copy, self._clock()
            self._in_a_row[copy.worker] += 1

    def follow(self, event: Event) -> None:
        """Forget a worker that has ended or is gone; one that ended by a fault is left out.

        One whose connection is lost is gone, or soon will be. Other errors are ignored, as the rows are: the part has
        been computed without one.
        """
        if isinstance(event, Left):
            for known in (self._late, self._in_a_row, self._rests):
                known.pop(event.address, None)
        elif isinstance(event, Ended) and event.future.status != "lost" and self._is_late(event):
            del self._late[event.address]
            self._rests[event.address] = self._updates + _rest(self._in_a_row[event.address])
            fault = event.fault()
            if fault is not None:
                self._note(f"worker {event.address} was left out: {fault}")
                self._crew.leave_out(event.address, fault)

    def watch(self) -> None:
        """Restart late workers that do not answer, or do not end; waits for none of them."""
        if not self._late:
            return
        now = self._clock()
        if now - self._asked_at > self._patience:
            self._asked_at = now
            self._crew.ask_whether_alive(self._late)
        self._crew.restart(self._crew.hung(), self._note)
        limit = self._patience + health.STUCK_SECONDS
        self._crew.restart([w for w, (_, since) in self._late.items() if now - since > limit], self._note, health.STUCK)

    def _is_late(self, event: Ended) -> bool:
        return event.address in self._late and self._late[event.address][0].request.key == event.future.key


def _rest(in_a_row: int) -> int:
    """The updates for which a worker rests that was late that many times in a row: none after the first time."""
    return min(FIRST_REST << min(in_a_row - 2, 16), LONGEST_REST) if in_a_row >= 2 else 0


# --- GatherScatter: a server gathers the workers' gradients, takes the step and scatters the model ---
# The paper's centralised, synchronous scheme (AdaDamp over Dask; CS744 report, task 2A); the driver is the server.
# Each update is one request per worker, by Dask's connections, with the model in it; the answer is the gradients. So
# workers join and leave between updates at no cost; losing one costs that update's gradients. With `backups`, an idle
# worker repeats the part of a slow one.

_TICK_SECONDS = 0.05
_PACES = 9  # of the last updates; their median is the usual one, though one or the other was slow


class GatherScatterDriver:
    """The server: holds the replica and the optimizer and adds in the fixed order; the workers compute gradients."""

    def __init__(self, run: RunState, crew: Crew, scaling: Scaling, replica: Replica) -> None:
        self._run, self._crew, self._scaling, self._replica = run, crew, scaling, replica
        self._number = self._size = 0
        self._now: Gathering | None = None
        self._paces = deque[float](maxlen=_PACES)
        self._late = Stragglers(crew, run.note, run.spec.patience_seconds)
        self._stopwatch = Stopwatch()
        self._committed_at = time.perf_counter()

    def train(self) -> Trained:
        """Train to the end of the plan or a requested stop. Raises WorkloadError, DataError and ClusterError."""
        run, replica = self._run, self._replica
        saved = run.checkpoint_after(0)
        if saved is not None:
            replica.restore(saved.snapshot)
        try:
            return self._train()
        except SchedulerLost:
            run.save(replica.snapshot())  # the next scheduler's driver resumes from it
            raise

    def _train(self) -> Trained:
        run, replica = self._run, self._replica
        while True:
            if evaluate_if_due(run, replica):
                self._committed_at = time.perf_counter()
            if run.stop_requested() or replica.plan.is_done(replica.position):
                return trained_of(replica)
            if run.checkpoint_due():
                run.save(replica.snapshot())
            self._update(replica.plan.step_at(replica.position))

    def _update(self, step: Step) -> None:
        team = self._scaling.gather(self._handle_events, {})
        free = self._free(team)
        members = [worker for worker in free if not self._late.rests(worker)] or free
        if not members:
            self._handle_events(_TICK_SECONDS)
            return
        began = time.perf_counter()
        self._number += 1
        layout = lay_out(step.shards, len(members))
        usual = median(self._paces) if self._paces else None
        present = self._now = Gathering(self._number, [hi - lo for lo, hi in layout.runs], usual)
        answers = self._gathered(step, members, len(team))
        self._now = None
        if answers is None:
            self._recover(members, present)
            return
        pace = present.pace
        assert pace is not None
        self._paces.append(pace)
        self._part_with(present)
        sent = len(present.asked) * sum(t.nbytes for t in self._replica.model_tensors().values())
        self._run.publish(BytesSent(sent + sum(row.nbytes for answer in answers for row in answer.rows)))
        rows = [torch.from_numpy(np.array(row)).to(self._replica.device) for answer in answers for row in answer.rows]
        self._replica.write_timing(rows[0], self._stopwatch.timing)
        done = self._replica.commit(step, add_up(rows, layout))
        seconds = [c.delay + a.seconds for c, a in zip(present.first_copies(), answers, strict=True)]
        self._record(step, members, done, began, seconds)

    def _recover(self, members: list[str], present: Gathering) -> None:
        cause = "a worker was lost"
        for address, fault in present.faults.items():
            cause = f"worker {address} was left out: {fault}"
            self._crew.leave_out(address, fault)
        self._crew.restart_unresponsive([m for m in members if m not in present.faults], self._run.note)
        self._handle_events(_TICK_SECONDS)  # handles its Left, so that the next attempt is without it
        self._run.record_recovery(cause)

    def _part_with(self, present: Gathering) -> None:
        """Leave out the workers whose part of a complete update came from another: the late ones, and the faulty."""
        self._late.after(present.under_way(), present.in_time())
        for address, fault in present.faults.items():
            self._run.note(f"worker {address} was left out: {fault}")
            self._crew.leave_out(address, fault)
        if present.num_backups:
            first = sum(copy.is_backup for copy in present.first_copies())
            self._run.publish(BackedUp(first, present.num_backups - first))

    def _gathered(self, step: Step, members: list[str], team: int) -> list[Gradients] | None:
        """The gradients of each part, in the order of the ranks; None if one was lost."""
        present, size = self._now, len(members)
        assert present is not None
        model = pack_all(self._replica.model_tensors())
        for rank, address in enumerate(members):
            self._request(step, rank, size, address, model)
        self._record_resize(step, team)
        while not present.is_over:
            self._handle_events(_TICK_SECONDS)
            self._crew.check_connected()
            if self._run.spec.exchange.settings.backups:
                overdue = present.overdue()
                for rank, address in zip(overdue, self._idle(present) if overdue else (), strict=False):
                    self._request(step, rank, size, address, model)
            self._restart_hung(present)
        if present.is_lost:
            return None
        return [copy.request.result for copy in present.first_copies()]

    def _free(self, team: list[str]) -> list[str]:
        return [worker for worker in team if worker not in self._late]

    def _idle(self, present: Gathering) -> list[str]:
        """The workers that may repeat a part; among them those that came, or came back, since the update began."""
        idle = present.idle(self._free(self._scaling.team({})))
        return [address for address in idle if address in self._crew.ready]

    def _request(self, step: Step, rank: int, size: int, address: str, model: dict[str, PackedTensor]) -> None:
        """Have the worker compute the part of this rank, with this model, which it is given once in an update."""
        assert self._now is not None
        order = (self._crew.run_id, None if address in self._now.asked else model, step, rank, size)
        on_end = self._crew.on_end(address, self._now.number)
        request = self._crew.calls.request(address, service.compute_gradients, *order, then=on_end)
        self._now.add(rank, address, request)

    def _restart_hung(self, present: Gathering) -> None:
        """Restart members that do not answer, and those that do not end though others have long ended."""
        patience, now = self._run.spec.patience_seconds, time.monotonic()
        if now - present.answered_at > patience:
            self._crew.restart_unresponsive([copy.worker for copy in present.under_way()], self._run.note)
            present.answered_at = time.monotonic()
        if now - present.first_ended_at > patience + health.STUCK_SECONDS:
            self._crew.restart([copy.worker for copy in present.under_way()], self._run.note, health.STUCK)
            present.first_ended_at = math.inf

    def _handle_events(self, seconds: float) -> None:
        self._crew.drain_events(seconds, self._handle)
        self._crew.settle(self._replica.position.update)
        self._late.watch()

    def _handle(self, event: Event) -> None:
        self._crew.follow(event)
        self._late.follow(event)
        if self._now is not None:
            self._now.follow(event)

    def _record_resize(self, step: Step, size: int) -> None:
        before, self._size = self._size, size
        if before != size:
            self._stopwatch = Stopwatch()
        if before not in (0, size):
            pause = time.perf_counter() - self._committed_at
            self._run.record_resize(step.position.update, before, size, pause)

    def _record(self, step: Step, members: list[str], done: Committed, began: float, seconds: list[float]) -> None:
        now = self._committed_at = time.perf_counter()
        self._stopwatch.lap(step, len(members), now - began)
        longest, wait = max(seconds), max(seconds) - min(seconds)
        times = longest, max(0.0, now - began - longest), wait
        self._run.record_rows([UpdateRow.now(step, self._replica.plan, done, len(members), times)])


def train(run: RunState, join: Join) -> Trained:
    """Train with GatherScatter. See GatherScatterDriver.train."""
    replica = build_replica(run.spec)
    with closing(replica.loaders):
        run.arithmetics.compare_own(STEPS, replica.arithmetic)
        with join() as force:
            return GatherScatterDriver(run, force.crew, force.scaling, replica).train()
