"""kopf, without a client that it would load for its types alone, and with an end where watching fails.

kopf knows the classes of kubernetes_asyncio where that is installed, as it is beside dask-kubernetes.  Nobody here uses
them, and they would take 30 MiB and most of a second at every start.

Where watching fails, kopf cancels every task of the loop, those among them that tell its schedulers when their work is
done; a scheduler that is closed after that waits for ever to be told.  So it looks by itself.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

CLIENT = "kubernetes_asyncio"
LOOK_SECONDS = 0.1

_modules: dict[str, Any] = sys.modules
_is_hidden = _modules.setdefault(CLIENT, None) is None  # Python's own way to say that there is no such module

import kopf  # noqa: E402
from kopf._cogs.aiokits.aiotasks import Scheduler  # noqa: E402

if _is_hidden:
    del _modules[CLIENT]


async def _until_it_is_empty(scheduler: Scheduler) -> None:
    while not scheduler.empty():
        await asyncio.sleep(LOOK_SECONDS)


Scheduler.wait = _until_it_is_empty

__all__ = ["kopf"]
