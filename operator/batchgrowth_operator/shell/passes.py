"""One queue for each job: woken by events, it makes one pass at a time, and another where something came meanwhile."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from batchgrowth_operator.decide.decision import Decision
from batchgrowth_operator.decide.defaults import Defaults
from batchgrowth_operator.decide.reconcile import reconcile
from batchgrowth_operator.seen.observed import Failure, ref_of
from batchgrowth_operator.server.api import Refused
from batchgrowth_operator.server.apply import Outdated, Writer
from batchgrowth_operator.server.observe import Observer
from batchgrowth_operator.server.store import Key
from batchgrowth_operator.shell.telemetry import Telemetry

GATHER_SECONDS = 0.05
"""So far apart are looks at a job: a write is followed by a handful of events, which are worth one. The first event
after a while of quiet is looked at at once."""
OUTDATED_SECONDS = 0.2
FIRST_BACKOFF_SECONDS = 1.0
LONGEST_BACKOFF_SECONDS = 30.0
AT_ONCE = 16

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a pass: whether the job is gone, what was refused, and when to look again without an event.

    `look_again_seconds` None waits for an event.
    """

    gone: bool = False
    failures: tuple[Failure, ...] = ()
    look_again_seconds: float | None = None
    backs_off: bool = False


Pass = Callable[[Key, tuple[Failure, ...]], Awaitable[Result]]


class Passes:
    """Wakes passes. A job whose pass failed waits before its next one, whatever events come."""

    def __init__(self, make_pass: Pass, *, waits: bool = False) -> None:
        """With `waits` no pass is made before `begin`."""
        self._make_pass = make_pass
        self._begun = asyncio.Event()
        self._companions: list[asyncio.Task[None]] = []
        if not waits:
            self._begun.set()
        self._woken: dict[Key, asyncio.Event] = {}
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(AT_ONCE)

    def begin(self) -> None:
        """From now on passes are made, also those that were woken before."""
        self._begun.set()

    def wake(self, key: Key) -> None:
        """Something about the job changed."""
        if key not in self._tasks:
            self._woken[key] = asyncio.Event()
            self._tasks[key] = asyncio.create_task(self._attend(key), name=f"{key.namespace}/{key.name}")
        self._woken[key].set()

    def accompany(self, task: asyncio.Task[None]) -> None:
        """The task ends with the queues."""
        self._companions.append(task)

    async def stop(self) -> None:
        """Ends every queue; a write that is under way comes to its end."""
        tasks = [*self._tasks.values(), *self._companions]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _attend(self, key: Key) -> None:
        woken, result, tries = self._woken[key], Result(), 0
        try:
            await self._begun.wait()
            while not result.gone or woken.is_set():
                woken.clear()
                async with self._slots:
                    result = await self._make_pass(key, result.failures)
                tries = tries + 1 if result.backs_off else 0
                await self._rest(woken, result, tries)
        finally:
            del self._tasks[key], self._woken[key]

    async def _rest(self, woken: asyncio.Event, result: Result, tries: int) -> None:
        if result.backs_off:
            await asyncio.sleep(min(FIRST_BACKOFF_SECONDS * 2 ** (tries - 1), LONGEST_BACKOFF_SECONDS))
            woken.set()
        elif not result.gone:
            rested = time.monotonic()
            try:
                await asyncio.wait_for(woken.wait(), result.look_again_seconds)
            except TimeoutError:
                woken.set()
            await asyncio.sleep(max(0.0, rested + GATHER_SECONDS - time.monotonic()))


def passes_of(observer: Observer, writer: Writer, defaults: Defaults, telemetry: Telemetry) -> Pass:
    """A pass: observe, reconcile, apply."""

    async def attempt(key: Key, failures: tuple[Failure, ...]) -> Result:
        seen = await observer.observe(key, failures)
        if seen is None:
            telemetry.forget(key)
            return Result(gone=True)
        decision = reconcile(seen, defaults)
        rest = min(observer.rest_seconds(key), decision.look_again_seconds or math.inf)
        telemetry.decided(key, seen, decision)
        if decision.is_empty:
            return Result(look_again_seconds=rest)
        log.info("%s/%s: %s", *key, said(decision))
        refused = await asyncio.shield(asyncio.to_thread(writer.carry_out, seen, decision))
        if refused != failures:
            return Result(failures=refused, look_again_seconds=GATHER_SECONDS, backs_off=bool(refused))
        return Result(failures=refused, look_again_seconds=rest, backs_off=bool(refused))

    async def make_pass(key: Key, failures: tuple[Failure, ...]) -> Result:
        began, result, outcome = time.monotonic(), "done", Result()
        try:
            outcome = await attempt(key, failures)
        except Outdated:
            result, outcome = "outdated", Result(failures=failures, look_again_seconds=OUTDATED_SECONDS)
        except (Refused, OSError) as error:
            log.warning("%s/%s: the API server does not do as asked: %s", *key, error)
            result, outcome = "refused", Result(failures=failures, backs_off=True)
        except Exception:
            log.exception("%s/%s: a pass failed", *key)
            result, outcome = "failed", Result(failures=failures, backs_off=True)
        telemetry.reconciled(result, time.monotonic() - began)
        return outcome

    return make_pass


def said(decision: Decision) -> str:
    """A decision in a line for the log."""
    parts = ["writes the status"] if decision.status is not None else []
    if decision.apply:
        parts.append("applies " + ", ".join("/".join(ref_of(manifest)) for manifest in decision.apply))
    if decision.delete:
        parts.append("deletes " + ", ".join(map("/".join, decision.delete)))
    if decision.delete_job:
        parts.append("deletes the job")
    return "; ".join(parts) or "tells of a change"
