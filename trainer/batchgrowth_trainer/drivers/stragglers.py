"""Slow workers of GatherScatter: whose part is overdue, which idle worker repeats it, and which workers rest.

`Gathering` follows the parts of one update and their backups, `Stragglers` the workers that were late, from update to
update. `GatherScatterDriver._update` in gather_scatter.py asks both, and requests the backup. (A worker that does not
answer at all: pool/membership.py.)
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from batchgrowth_trainer.pool import membership
from batchgrowth_trainer.pool.calls import WorkerRequest
from batchgrowth_trainer.pool.membership import Ended, Event
from batchgrowth_trainer.pool.worker_pool import WorkerPool
from batchgrowth_trainer.user_errors import WorkerFault
from batchgrowth_trainer.worker.messages import Left

TIMES_THE_MEDIAN = 2.0
"""A part is overdue after this many times the median time per shard of the parts that have ended.

A backup begun then ends after about three times the median, so it only pays if the worker takes longer than that. Noise
seldom delays a worker so much; with a smaller factor, most backups would come second.
"""
SHORTEST_SECONDS = 0.1
"""The shortest time after which a part is overdue: a backup costs some milliseconds besides its computing."""
FIRST_REST = 4
"""The rest of a worker that was late twice in a row, in updates."""
LONGEST_REST = 256
"""The longest rest of a worker that is always late, in updates."""


@dataclass(eq=False, slots=True)
class Copy:
    """A request to `worker` for the part of `rank`; times in seconds, by the driver's clock. A backup was requested
    `delay` seconds after the first copy.
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
        """Return whether the copy's rows are ready."""
        return self.ended_at < math.inf


class Gathering:
    """One attempt at one update: which worker computes which part, and how each computation ended.

    A part is the run of shards of one rank; part r has `sizes[r]` shards. Two workers may compute it: the worker with
    that rank, and an idle worker as its backup. Both compute the same nodes of the tree with the same seeds, so both
    copies have the same bits. The copy that arrives first counts, even if its worker is lost afterwards. A part whose
    copies are all lost fails the attempt.

    `usual_pace` is the pace of earlier updates, in seconds per shard; `clock` gives seconds.
    """

    def __init__(
        self,
        number: int,
        sizes: Sequence[int],
        usual_pace: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.number = number
        self._sizes = sizes
        self._usual_pace = usual_pace
        self._clock = clock
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
        """Note that the worker was asked for the part of this rank."""
        copy = Copy(rank, worker, request, self._clock())
        part = self._parts[rank]
        if part:
            copy.is_backup = True
            copy.delay = copy.asked_at - part[0].asked_at
            self.num_backups += 1
        part.append(copy)
        self.asked.add(worker)
        self._copies[request.key] = copy

    def follow(self, event: Event) -> None:
        """Note that a request has ended, or that its worker was lost. Raises the request's error."""
        if isinstance(event, Left):
            for copy in [copy for copy in self.under_way() if copy.worker == event.address]:
                self._lose(copy)
        elif isinstance(event, Ended) and event.future.key in self._copies:
            self._end(self._copies[event.future.key], event)

    @property
    def is_over(self) -> bool:
        """Return whether every part has a finished copy, or some part has no copy left."""
        return self.is_lost or not self._missing

    def first_copies(self) -> list[Copy]:
        """Return the copy of each part that finished first, by rank. Valid once every part has a finished copy."""
        return [min(part, key=lambda copy: copy.ended_at) for part in self._parts]

    def under_way(self) -> list[Copy]:
        """Return the copies that have not ended."""
        return [copy for copy in self._copies.values() if not copy.has_ended]

    def in_time(self) -> list[str]:
        """Return the workers that have finished their own part."""
        return [copy.worker for copy in self._copies.values() if copy.has_ended and not copy.is_backup]

    def idle(self, ready: Iterable[str] = ()) -> list[str]:
        """Return the workers that compute nothing and have no fault, in the order in which they finished.

        The `ready` workers that were not asked follow, because they have become free since.
        """
        ended = sorted((copy for copy in self._copies.values() if copy.has_ended), key=lambda copy: copy.ended_at)
        busy = {copy.worker for copy in self.under_way()} | self.faults.keys()
        free = dict.fromkeys(copy.worker for copy in ended if copy.worker not in busy)
        return [*free, *(worker for worker in ready if worker not in self.asked)]

    def overdue(self) -> list[int]:
        """Return the ranks of the parts that an idle worker should repeat, the longest-running part first."""
        pace = self.pace
        if pace is None:
            return []
        overdue = []
        for rank in self._missing:
            if len(self._parts[rank]) == 1:
                copy = self._parts[rank][0]
                allowed = max(SHORTEST_SECONDS, TIMES_THE_MEDIAN * pace * self._sizes[rank])
                if self._clock() - copy.asked_at > allowed:
                    overdue.append(copy)
        overdue.sort(key=lambda copy: copy.asked_at)
        return [copy.rank for copy in overdue]

    @property
    def pace(self) -> float | None:
        """Return the median seconds per shard of the finished parts; the usual pace until half of them have finished.

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


class Stragglers:
    """The workers that still compute a part of an earlier update, which no longer counts; restarts workers that hang.

    A worker's thread cannot be interrupted, and its next part would wait behind this one. So the driver leaves the
    worker out of the following updates until the old part has ended. A worker that is late several times in a row then
    rests for further updates, twice as many each time. While it rests, it may still repeat the parts of others. `clock`
    gives seconds.
    """

    def __init__(
        self,
        pool: WorkerPool,
        note: membership.Note,
        patience_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pool = pool
        self._note = note
        self._patience = patience_seconds
        self._clock = clock
        self._late: dict[str, tuple[Copy, float]] = {}  # by worker, with the time at which its copy became useless
        self._in_a_row = Counter[str]()  # how often each worker was late since it was last in time
        self._rests: dict[str, int] = {}  # by worker, until which update it rests
        self._updates = 0
        self._asked_at = clock()

    def __contains__(self, worker: str) -> bool:
        """Return whether the worker still computes for an earlier update."""
        return worker in self._late

    def rests(self, worker: str) -> bool:
        """Return whether the worker, although ready, should get no part of the next update."""
        return self._rests.get(worker, 0) > self._updates

    def after(self, late: Iterable[Copy], in_time: Iterable[str]) -> None:
        """Note the copies that were unfinished when an update was complete, and the workers that had finished their
        part.
        """
        self._updates += 1
        for worker in in_time:
            self._in_a_row.pop(worker, None)
        for copy in late:
            self._late[copy.worker] = copy, self._clock()
            self._in_a_row[copy.worker] += 1

    def follow(self, event: Event) -> None:
        """Forget a worker that has finished or is gone; leave out a worker that ended with a fault.

        A worker whose connection is lost is gone, or soon will be. Other errors are ignored, as the rows are, because
        another worker has computed the part.
        """
        if isinstance(event, Left):
            for known in (self._late, self._in_a_row, self._rests):
                known.pop(event.address, None)
            return
        if not isinstance(event, Ended) or event.future.status == "lost" or event.address not in self._late:
            return
        copy, _ = self._late[event.address]
        if copy.request.key != event.future.key:
            return
        del self._late[event.address]
        # It rests for none after the first time. The 16 only bounds the shift; LONGEST_REST is reached before.
        in_a_row = self._in_a_row[event.address]
        rest = 0
        if in_a_row >= 2:
            rest = min(FIRST_REST << min(in_a_row - 2, 16), LONGEST_REST)
        self._rests[event.address] = self._updates + rest
        fault = event.fault()
        if fault is not None:
            self._note(f"worker {event.address} was left out: {fault}")
            self._pool.leave_out(event.address, fault)

    def watch(self) -> None:
        """Restart late workers that do not answer or do not end; do not wait for the restarts."""
        if not self._late:
            return
        now = self._clock()
        if now - self._asked_at > self._patience:
            self._asked_at = now
            self._pool.ask_whether_alive(self._late)
        self._pool.restart(self._pool.hung(), self._note)
        limit = self._patience + membership.STUCK_SECONDS
        stuck = [worker for worker, (_, since) in self._late.items() if now - since > limit]
        self._pool.restart(stuck, self._note, membership.STUCK)
