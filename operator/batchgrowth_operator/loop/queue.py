"""When a job's next pass runs: one queue per job, and a few slots that all jobs share.

A queue has one time at which its next pass is due. A request for a pass can make that time earlier: a change requests
one now, a report of progress `ProgressRate.seconds_apart` after the last pass. A pass returns when the next is due, as
at a deadline, which `Clock` in seen/observed.py notes. A due pass waits for the debounce, or for the back-off after
a pass that failed, and then for a slot. A job with a change gets a slot before a job whose time has merely come.
"""

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace

from batchgrowth_operator.api.cache import Key
from batchgrowth_operator.seen.observed import Failure, backoff_seconds
from batchgrowth_operator.settings import Defaults

DEBOUNCE_SECONDS = 0.05
"""Debounce between passes of one job, since a write causes several events. The first event after a quiet time is
handled at once."""
MOST_CONCURRENT = 16
"""Passes that run at the same time."""
MOST_PATIENT = 4
"""Passes among them that no change asked for, such as those that write progress."""
MOST_OUTDATED = 5
"""Outdated passes of one job in a row without a warning in the log: the watches catch up within moments."""
MOST_PROGRESS_WRITES = 20.0
"""Passes and status writes per second, of all jobs together, for reports of progress only."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PassResult:
    """The result of a pass: whether the job is gone, the refused writes, and the time of the next pass.

    With `requeue_after_seconds` None the next pass waits for an event; with `backs_off` it waits for the back-off,
    whatever events arrive. With `is_outdated` that time doubles with each such pass in a row, but an event ends this
    wait.
    """

    gone: bool = False
    failures: tuple[Failure, ...] = ()
    requeue_after_seconds: float | None = None
    backs_off: bool = False
    is_outdated: bool = False


Pass = Callable[[Key, tuple[Failure, ...]], Awaitable[PassResult]]
"""Runs a pass of that job; takes the refused writes of the last pass. It is `one_pass.Reconciler.make_pass`."""


@dataclass(slots=True, eq=False)
class JobQueue:
    """The next pass of one job. Times are of the monotonic clock."""

    due: float = -math.inf
    is_urgent: bool = False
    """Whether a change asked for the pass, so that it goes before those whose time has come."""
    last_pass: float = -math.inf
    moved: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when `due` becomes earlier."""
    task: asyncio.Task[None] | None = None


class Passes:
    """The queues of all jobs. A job has one pass at a time, and events during a pass cause one more."""

    def __init__(self, make_pass: Pass, *, waits: bool = False) -> None:
        """With `waits`, no pass runs before `begin`, which starts one for every job; earlier calls of `wake` have no
        effect.
        """
        self._make_pass = make_pass
        self._has_begun = not waits
        self._has_stopped = False
        self._queues: dict[Key, JobQueue] = {}
        self._slots = Slots(MOST_CONCURRENT, MOST_PATIENT)

    def begin(self, keys: Iterable[Key]) -> None:
        """Start the passes, with one pass of each of these jobs: all that exist, and those that have left something
        behind.
        """
        self._has_begun = True
        for key in keys:
            self.wake(key)

    def wake(self, key: Key, apart_seconds: float = 0.0) -> None:
        """Request a pass of a job of which something changed: now, or `apart_seconds` after its last pass.

        A pass that may come later is patient: it also waits behind the changes of other jobs.
        """
        if not self._has_begun or self._has_stopped:
            return
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = JobQueue()
            queue.task = asyncio.create_task(self._run(key, queue), name=f"{key.namespace}/{key.name}")
        if apart_seconds <= 0:
            queue.is_urgent = True
            self._slots.hurry(key)
        queue.due = min(queue.due, max(time.monotonic(), queue.last_pass + apart_seconds))
        queue.moved.set()

    async def stop(self) -> None:
        """Cancel every queue and start no other, whatever still arrives; a write in progress is completed."""
        self._has_stopped = True
        tasks = [queue.task for queue in self._queues.values() if queue.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, key: Key, queue: JobQueue) -> None:
        """Run the passes of a job until it is gone."""
        failures = 0
        conflicts = 0
        result = PassResult()
        try:
            # A job that was deleted may have been created again, and wake its queue, during the last pass.
            while not result.gone or queue.due < math.inf:
                async with self._slots.slot(key, patient=not queue.is_urgent):
                    # This pass may miss what is requested from here on, so a request causes another pass.
                    queue.due = math.inf
                    queue.is_urgent = False
                    queue.last_pass = time.monotonic()
                    try:
                        result = await self._make_pass(key, result.failures)
                    except Exception:
                        log.exception("%s/%s: the pass ended with an unexpected error", *key)
                        result = PassResult(failures=result.failures, backs_off=True)
                if result.backs_off:
                    failures += 1
                    seconds = backoff_seconds(failures)
                    log.info("%s/%s: attempt %d failed; retries in %g s", *key, failures, seconds)
                    # The back-off does not listen for events: a busy job must not retry a refused write at each of
                    # them.
                    queue.due = time.monotonic()
                    await asyncio.sleep(seconds)
                    continue
                failures = 0
                conflicts = conflicts + 1 if result.is_outdated else 0
                if conflicts > MOST_OUTDATED:
                    text = "%s/%s: %d passes in a row found the job or a child changed, more than the watches report"
                    log.warning(text, *key, conflicts)
                if not result.gone:
                    passed = time.monotonic()
                    if result.requeue_after_seconds is not None:
                        seconds = result.requeue_after_seconds
                        if conflicts:
                            seconds *= backoff_seconds(conflicts)
                        queue.due = min(queue.due, passed + seconds)
                    # Meanwhile, a change may make the time earlier.
                    while (left := queue.due - time.monotonic()) > 0:
                        queue.moved.clear()
                        with suppress(TimeoutError):
                            await asyncio.wait_for(queue.moved.wait(), left if left < math.inf else None)
                    await asyncio.sleep(max(0.0, passed + DEBOUNCE_SECONDS - time.monotonic()))
        finally:
            del self._queues[key]


class Slots:
    """Bounds the number of passes that run at once to `most`. A pass that no change asked for is patient.

    At most `most_patient` of them are patient, so that a milestone does not wait until the progress of many jobs is
    written. Urgent passes leave one slot free, so that a deadline does not wait until no job changes any more.
    """

    def __init__(self, most: int, most_patient: int) -> None:
        self._most = most
        self._most_patient = most_patient
        self._urgent: dict[Key, asyncio.Future[None]] = {}
        self._patient: dict[Key, asyncio.Future[None]] = {}
        self._is_patient: dict[Key, bool] = {}
        """Whether each running pass is patient."""

    @asynccontextmanager
    async def slot(self, key: Key, *, patient: bool) -> AsyncIterator[None]:
        """Wait for a slot, and hold it for the block."""
        waiting = self._patient if patient else self._urgent
        admitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting[key] = admitted
        self._admit()
        try:
            await admitted
            yield
        finally:
            for jobs in (self._urgent, self._patient, self._is_patient):
                jobs.pop(key, None)
            self._admit()

    def hurry(self, key: Key) -> None:
        """Make the job's pass urgent if it waits as a patient pass."""
        if key in self._patient:
            self._urgent[key] = self._patient.pop(key)
            self._admit()

    def _admit(self) -> None:
        """Give the free slots to the jobs that have waited longest, urgent jobs first."""
        while len(self._is_patient) < self._most:
            num_patient = sum(self._is_patient.values())
            if self._urgent and len(self._is_patient) - num_patient < self._most - 1:
                waiting = self._urgent
            elif self._patient and num_patient < self._most_patient:
                waiting = self._patient
            else:
                return
            key = next(iter(waiting))
            self._is_patient[key] = waiting is self._patient
            admitted = waiting.pop(key)
            if not admitted.cancelled():
                admitted.set_result(None)


class ProgressRate:
    """How often a job's progress is read and written: less often if more jobs train.

    So a thousand trainers do not keep the API server busy.
    """

    def __init__(self, defaults: Defaults) -> None:
        self._defaults = defaults
        self._training: set[Key] = set()

    @property
    def seconds_apart(self) -> float:
        """Return the shortest time between two passes of one job that only write progress."""
        return len(self._training) / MOST_PROGRESS_WRITES

    def defaults_for(self, key: Key, *, trains: bool) -> Defaults:
        """Return the defaults for the job's next pass. `trains` says whether the job counts as training."""
        if trains:
            self._training.add(key)
        else:
            self._training.discard(key)
        # Both are needed: seconds_apart delays the passes that reports ask for, report_seconds the writes of progress
        # in passes that something else asked for, of which a job with changing pods has many.
        return replace(self._defaults, report_seconds=max(self._defaults.report_seconds, self.seconds_apart))

    def forget(self, key: Key) -> None:
        """Stop counting a job that is gone or belongs to another operator."""
        self._training.discard(key)
