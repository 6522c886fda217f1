"""kopf, patched: without an unused client library, with a shutdown that ends, and with a fast startup.

kopf imports kubernetes_asyncio for its types alone if it is installed, as dask-kubernetes requires. That would cost
30 MiB and most of a second at every start.

If watching fails, kopf cancels every task of the event loop, among them those that notify its schedulers when their
work is done; a scheduler that is closed afterwards would wait forever. So it polls instead.

While kopf starts, every object waits until all are indexed, and each indexed object wakes all waiting ones: that takes
half a minute for 2,000 objects and four minutes for 7,000. So they are woken only when the wait is over.

When a CRD appears or disappears, kopf asks at once which kinds are served, when the API server may not know it yet: a
kind that came back would never be watched again. So kopf asks a few more times.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

CLIENT = "kubernetes_asyncio"
POLL_SECONDS = 0.1
REDISCOVERY_SECONDS = (0.5, 2, 8)
"""Delays of the further discoveries, each after the one before."""

_modules: dict[str, Any] = sys.modules
_is_hidden = _modules.setdefault(CLIENT, None) is None  # None makes the import raise ModuleNotFoundError

import kopf  # noqa: E402
from kopf._cogs.aiokits import aiotime  # noqa: E402
from kopf._cogs.aiokits.aiotasks import Scheduler  # noqa: E402
from kopf._cogs.aiokits.aiotoggles import Toggle, ToggleSet  # noqa: E402
from kopf._core.reactor import observation  # noqa: E402

if _is_hidden:
    del _modules[CLIENT]


async def _wait_until_empty(scheduler: Scheduler) -> None:
    while not scheduler.empty():
        await asyncio.sleep(POLL_SECONDS)


async def _make_toggle(toggles: ToggleSet, state: bool = False, *, name: str | None = None) -> Toggle:
    made = Toggle(state, name=name, condition=toggles._condition)
    async with _notifying_on_change(toggles):
        toggles._toggles.add(made)
    return made


async def _drop_toggle(toggles: ToggleSet, toggle: Toggle) -> None:
    async with _notifying_on_change(toggles):
        toggles._toggles.discard(toggle)


@asynccontextmanager
async def _notifying_on_change(toggles: ToggleSet) -> AsyncIterator[None]:
    async with toggles._condition:
        before = toggles.is_on()
        yield
        if toggles.is_on() is not before:
            toggles._condition.notify_all()


Scheduler.wait = _wait_until_empty


async def _discover(*, raw_event: Any, stream_pressure: asyncio.Event | None = None, **rest: Any) -> None:
    await _discover_once(raw_event=raw_event, stream_pressure=stream_pressure, **rest)
    for seconds in REDISCOVERY_SECONDS if raw_event["type"] is not None else ():
        await aiotime.sleep(seconds, wakeup=stream_pressure)
        if stream_pressure is not None and stream_pressure.is_set():
            return  # the next event has arrived and starts its own discoveries
        await _discover_once(raw_event=raw_event, stream_pressure=stream_pressure, **rest)


_discover_once = observation.process_discovered_resource_event
observation.process_discovered_resource_event = _discover
ToggleSet.make_toggle = _make_toggle
ToggleSet.drop_toggle = _drop_toggle

__all__ = ["kopf"]
