"""One queue per job: an event wakes it, it runs one pass at a time, and events during a pass cause one more."""

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from batchgrowth import names
from batchgrowth.errors import redacted

from batchgrowth_operator.api.apply import Outdated, Writer
from batchgrowth_operator.api.cache import Key
from batchgrowth_operator.api.client import Refused
from batchgrowth_operator.api.observe import Observer
from batchgrowth_operator.children.writes import Writes
from batchgrowth_operator.job.reconcile import reconcile
from batchgrowth_operator.loop.metrics import OperatorMetrics
from batchgrowth_operator.seen.clock import backoff_seconds
from batchgrowth_operator.seen.observed import Failure, ref_of
from batchgrowth_operator.settings import Defaults

# How often the progress of jobs is looked at and written, so that a thousand trainers do not keep the server busy.

MOST_PROGRESS_WRITES = 20.0
"""Passes and status writes per second, of all jobs together, for reports of progress only."""


class ProgressRate:
    """The settings for a job's next pass: the more jobs train, the less often each has its progress written."""

    def __init__(self, defaults: Defaults) -> None:
        self._defaults = defaults
        self._training: set[Key] = set()

    @property
    def seconds_apart(self) -> float:
        """The shortest time between two passes of one job for progress only."""
        return len(self._training) / MOST_PROGRESS_WRITES

    def settings(self, key: Key, *, trains: bool) -> Defaults:
        """The settings, given whether this job has a cluster now."""
        if trains:
            self._training.add(key)
        else:
            self._training.discard(key)
        return replace(self._defaults, report_seconds=max(self._defaults.report_seconds, self.seconds_apart))

    def forget(self, key: Key) -> None:
        """Counts a job no more that is gone, or another operator's."""
        self._training.discard(key)


# --- How many passes run at once, and whose turn is next: a change goes before what is only due ---


class Slots:
    """Lets passes of `most` jobs run at once, of which at most `most_patient` are patient; for those, one is kept free.

    So a milestone does not wait until the progress of many jobs is written, and a deadline not until nothing changes.
    """

    def __init__(self, most: int, most_patient: int) -> None:
        self._most, self._most_patient = most, most_patient
        self._urgent: dict[Key, asyncio.Future[None]] = {}
        self._patient: dict[Key, asyncio.Future[None]] = {}
        self._is_patient: dict[Key, bool] = {}
        """Of each pass that runs."""

    @asynccontextmanager
    async def slot(self, key: Key, *, patient: bool) -> AsyncIterator[None]:
        """A slot for the block, once it is the job's turn; a job has one pass at a time."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        (self._patient if patient else self._urgent)[key] = turn
        self._admit()
        try:
            await turn
            yield
        finally:
            for jobs in (self._urgent, self._patient, self._is_patient):
                jobs.pop(key, None)
            self._admit()

    def hurry(self, key: Key) -> None:
        """Has the job's pass be patient no longer, if it waits for its turn."""
        if key in self._patient:
            self._urgent[key] = self._patient.pop(key)
            self._admit()

    def _admit(self) -> None:
        while len(self._is_patient) < self._most and (turn := self._next()) is not None:
            if not turn.cancelled():
                turn.set_result(None)

    def _next(self) -> asyncio.Future[None] | None:
        """The turn of the job that waits longest, of those that may run now."""
        patient = sum(self._is_patient.values())
        if self._urgent and len(self._is_patient) - patient < self._most - 1:
            return self._take(self._urgent, patient=False)
        if self._patient and patient < self._most_patient:
            return self._take(self._patient, patient=True)
        return None

    def _take(self, waiting: dict[Key, asyncio.Future[None]], *, patient: bool) -> asyncio.Future[None]:
        key = next(iter(waiting))
        self._is_patient[key] = patient
        return waiting.pop(key)


# --- One queue per job: an event wakes it, it runs one pass at a time, and events during a pass cause one more ---

DEBOUNCE_SECONDS = 0.05
"""Debounce between passes of one job, since a write causes several events. The first event after a quiet time is
handled at once."""
OUTDATED_SECONDS = 0.2
"""Delay of the pass that follows an outdated one."""
MOST_CONCURRENT = 16
"""Passes that run at the same time."""
MOST_PATIENT = 4
"""Passes among them that no change asked for, such as those that write progress."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a pass: whether the job is gone, the refused writes, and the time of the next pass.

    With `requeue_after_seconds` None the next pass waits for an event.
    """

    gone: bool = False
    failures: tuple[Failure, ...] = ()
    requeue_after_seconds: float | None = None
    backs_off: bool = False


Pass = Callable[[Key, tuple[Failure, ...]], Awaitable[Result]]


class Passes:
    """The queues of all jobs. A job whose pass failed backs off, whatever events arrive."""

    def __init__(self, make_pass: Pass, *, waits: bool = False) -> None:
        """With `waits` no pass runs before `begin`, and no job is remembered that is woken before."""
        self._make_pass = make_pass
        self._has_begun = not waits
        self._others: list[asyncio.Task[None]] = []
        self._woken: dict[Key, asyncio.Event] = {}
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self._passed: dict[Key, float] = {}
        self._later: dict[Key, asyncio.TimerHandle] = {}
        self._slots = Slots(MOST_CONCURRENT, MOST_PATIENT)
        self._changed: set[Key] = set()

    def begin(self, keys: Iterable[Key]) -> None:
        """Starts the passes, with one of each of these jobs: all that there are."""
        self._has_begun = True
        for key in keys:
            self.wake(key)

    def wake(self, key: Key, apart_seconds: float = 0.0) -> None:
        """Requests a pass of the job, because something about it changed: now, or that time after its last one.

        One that may come later is also behind the changes of other jobs.
        """
        if not self._has_begun:
            return
        if apart_seconds <= 0:
            self._changed.add(key)
            self._slots.hurry(key)
        elif (early := self._passed.get(key, -math.inf) + apart_seconds - time.monotonic()) > 0:
            if key not in self._later:
                self._later[key] = asyncio.get_running_loop().call_later(early, self._wake_now, key)
            return
        self._wake_now(key)

    def _wake_now(self, key: Key) -> None:
        self._cancel_timer(key)
        if key not in self._tasks:
            self._woken[key] = asyncio.Event()
            self._tasks[key] = asyncio.create_task(self._run_queue(key), name=f"{key.namespace}/{key.name}")
        self._woken[key].set()

    def add_task(self, task: asyncio.Task[None]) -> None:
        """Adds a task that `stop` cancels together with the queues."""
        self._others.append(task)

    async def stop(self) -> None:
        """Cancels every queue; a write in progress is completed."""
        tasks = [*self._tasks.values(), *self._others]
        for key in [*self._later]:
            self._cancel_timer(key)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run_queue(self, key: Key) -> None:
        woken, result, failures = self._woken[key], Result(), 0
        try:
            while not result.gone or woken.is_set():
                async with self._slots.slot(key, patient=key not in self._changed):
                    woken.clear()
                    self._changed.discard(key)
                    self._cancel_timer(key)
                    self._passed[key] = time.monotonic()
                    result = await self._attempt(key, result.failures)
                failures = failures + 1 if result.backs_off else 0
                await self._wait(woken, result, failures)
        finally:
            del self._tasks[key], self._woken[key]
            self._passed.pop(key, None)
            self._changed.discard(key)
            self._cancel_timer(key)

    def _cancel_timer(self, key: Key) -> None:
        if (timer := self._later.pop(key, None)) is not None:
            timer.cancel()

    async def _attempt(self, key: Key, failures: tuple[Failure, ...]) -> Result:
        """A pass; whatever it raises, the job's queue goes on."""
        try:
            return await self._make_pass(key, failures)
        except Exception:
            log.exception("%s/%s: the pass ended with an unexpected error", *key)
            return Result(failures=failures, backs_off=True)

    async def _wait(self, woken: asyncio.Event, result: Result, failures: int) -> None:
        """Waits until the next pass of a job is due."""
        if result.backs_off:
            await asyncio.sleep(backoff_seconds(failures))
            woken.set()
        elif not result.gone:
            since = time.monotonic()
            try:
                await asyncio.wait_for(woken.wait(), result.requeue_after_seconds)
            except TimeoutError:
                woken.set()
            await asyncio.sleep(max(0.0, since + DEBOUNCE_SECONDS - time.monotonic()))


def passes_of(
    observer: Observer, writer: Writer, rate: ProgressRate, metrics: OperatorMetrics, operator_class: str = ""
) -> Pass:
    """A function that runs one pass: observe, reconcile, apply. Jobs of another class are left to their operator."""

    async def attempt(key: Key, failures: tuple[Failure, ...]) -> Result:
        seen = await observer.observe(key, failures)
        if seen is None:
            metrics.forget(key)
            writer.poster.forget(key)
            rate.forget(key)
            return Result(gone=True)
        if seen.operator_class != operator_class:
            metrics.forget(key)
            rate.forget(key)
            return Result()
        trains = seen.child("DaskCluster", names.cluster(key.name)) is not None
        writes = reconcile(seen, rate.settings(key, trains=trains))
        requeue = min(observer.resync_seconds(key), writes.requeue_after_seconds or math.inf)
        metrics.decided(key, seen, writes)
        if writes.is_empty:
            observer.remember(key, writes.put_backs)
            return Result(requeue_after_seconds=requeue)
        log.info("%s/%s: %s", *key, summary(writes))
        refused = await asyncio.shield(asyncio.to_thread(writer.carry_out, seen, writes))
        _log_refusals(key, refused)
        observer.remember(key, writes.put_backs, refused)
        if refused != failures:
            return Result(failures=refused, requeue_after_seconds=DEBOUNCE_SECONDS, backs_off=bool(refused))
        return Result(failures=refused, requeue_after_seconds=requeue, backs_off=bool(refused))

    async def make_pass(key: Key, failures: tuple[Failure, ...]) -> Result:
        began, result, outcome = time.monotonic(), "done", Result()
        try:
            outcome = await attempt(key, failures)
        except Outdated:
            result, outcome = "outdated", Result(failures=failures, requeue_after_seconds=OUTDATED_SECONDS)
        except (Refused, OSError) as error:
            log.warning("%s/%s: a request to the API server failed: %s", *key, error)
            result, outcome = "refused", Result(failures=failures, backs_off=True)
        except Exception:
            log.exception("%s/%s: the pass failed", *key)
            result, outcome = "failed", Result(failures=failures, backs_off=True)
        metrics.reconciled(result, time.monotonic() - began)
        return outcome

    return make_pass


def _log_refusals(key: Key, failures: tuple[Failure, ...]) -> None:
    for failure in failures:
        log.warning("%s/%s: the API server refuses %s/%s: %s", *key, *failure.ref, redacted(failure.message))


def summary(writes: Writes) -> str:
    """Return the writes of a pass as a line of the log."""
    parts = ["writing the status"] if writes.status is not None else []
    if writes.apply:
        parts.append("applying " + ", ".join("/".join(ref_of(manifest)) for manifest in writes.apply))
    if writes.delete:
        parts.append("deleting " + ", ".join(map("/".join, writes.delete)))
    if writes.delete_job:
        parts.append("deleting the job")
    return "; ".join(parts) or "posting events"
