"""kopf, without a client that it would load for its types alone, with an end where watching fails, and with a quick
beginning beside many objects.

kopf knows the classes of kubernetes_asyncio where that is installed, as it is beside dask-kubernetes.  Nobody here uses
them, and they would take 30 MiB and most of a second at every start.

Where watching fails, kopf cancels every task of the loop, those among them that tell its schedulers when their work is
done; a scheduler that is closed after that waits for ever to be told.  So it looks by itself.

While kopf begins, every object that was seen waits for the last one to be seen, and each that is seen wakes all those
that wait: half a minute for 2,000 objects, four minutes for 7,000.  So they are woken when there is something to wake
them for.

Where a definition comes or goes, kopf asks at once which kinds are served, and the API server may not know it itself by
then: a kind that came back would never be watched again.  So it asks a few times.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

CLIENT = "kubernetes_asyncio"
LOOK_SECONDS = 0.1
LOOK_AGAIN_SECONDS = (0.5, 2, 8)

_modules: dict[str, Any] = sys.modules
_is_hidden = _modules.setdefault(CLIENT, None) is None  # Python's own way to say that there is no such module

import kopf  # noqa: E402
from kopf._cogs.aiokits import aiotime  # noqa: E402
from kopf._cogs.aiokits.aiotasks import Scheduler  # noqa: E402
from kopf._cogs.aiokits.aiotoggles import Toggle, ToggleSet  # noqa: E402
from kopf._core.reactor import observation  # noqa: E402

if _is_hidden:
    del _modules[CLIENT]


async def _until_it_is_empty(scheduler: Scheduler) -> None:
    while not scheduler.empty():
        await asyncio.sleep(LOOK_SECONDS)


async def _make_toggle(toggles: ToggleSet, state: bool = False, *, name: str | None = None) -> Toggle:
    made = Toggle(state, name=name, condition=toggles._condition)
    async with _told_of_a_change(toggles):
        toggles._toggles.add(made)
    return made


async def _drop_toggle(toggles: ToggleSet, toggle: Toggle) -> None:
    async with _told_of_a_change(toggles):
        toggles._toggles.discard(toggle)


@asynccontextmanager
async def _told_of_a_change(toggles: ToggleSet) -> AsyncIterator[None]:
    async with toggles._condition:
        before = toggles.is_on()
        yield
        if toggles.is_on() is not before:
            toggles._condition.notify_all()


Scheduler.wait = _until_it_is_empty


async def _look_at_kinds(*, raw_event: Any, stream_pressure: asyncio.Event | None = None, **rest: Any) -> None:
    await _look_at_kinds_once(raw_event=raw_event, stream_pressure=stream_pressure, **rest)
    for seconds in LOOK_AGAIN_SECONDS if raw_event["type"] is not None else ():
        await aiotime.sleep(seconds, wakeup=stream_pressure)
        if stream_pressure is not None and stream_pressure.is_set():
            return  # the next event is here, and is looked at in the same way
        await _look_at_kinds_once(raw_event=raw_event, stream_pressure=stream_pressure, **rest)


_look_at_kinds_once = observation.process_discovered_resource_event
observation.process_discovered_resource_event = _look_at_kinds
ToggleSet.make_toggle = _make_toggle
ToggleSet.drop_toggle = _drop_toggle

__all__ = ["kopf"]
