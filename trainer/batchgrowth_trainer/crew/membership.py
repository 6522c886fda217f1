"""A scheduler plugin that reports to a run which workers join and leave.

It reports on the run's own topic: Dask's topic "all" also carries events with objects that cannot be serialized, such
as those of a retirement, and each of them breaks the connection of every subscriber.
"""

from typing import Any

from distributed import Scheduler
from distributed.diagnostics.plugin import SchedulerPlugin


def membership_plugin(topic: str) -> SchedulerPlugin:
    """A plugin that reports on `topic`, as plain data that `messages.decode` turns into Joined and Left.

    Its class is local, so that it is pickled by value: an existing scheduler may lack this package.
    """

    class Membership(SchedulerPlugin):  # type: ignore[misc]  # Dask has no types
        def add_worker(self, scheduler: Scheduler, worker: str) -> None:
            scheduler.log_event(topic, {"kind": "joined", "address": worker})

        def remove_worker(self, scheduler: Scheduler, worker: str, **_: Any) -> None:
            scheduler.log_event(topic, {"kind": "left", "address": worker})

    return Membership()
