"""One attempt at one update of GatherScatter: which workers compute which part of it, and how that ended.

A part is the run of shards of one rank. It may have two copies: that of the worker with that rank, and a backup by an
idle worker, which computes the same nodes of the tree with the same seeds, so both have the same bits. The first
copy counts, also if its worker is lost afterwards. A part whose copies are all lost fails the attempt.
"""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from batchgrowth_trainer.blame import WorkerFault
from batchgrowth_trainer.crew.events import Ended, Event
from batchgrowth_trainer.crew.request import Request
from batchgrowth_trainer.worker.messages import Left

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
    request: Request
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

    def add(self, rank: int, worker: str, request: Request) -> None:
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
