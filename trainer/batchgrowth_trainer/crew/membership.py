"""A scheduler plugin that tells a run who joins and who leaves.

Dask's own topic for that, "all", also carries events that cannot be sent (a retirement's, with the scheduler's own
objects in it): each breaks the connection of whoever listens.  So a run listens to a topic of its own.
"""

from __future__ import annotations

from typing import Any

from distributed import Scheduler
from distributed.diagnostics.plugin import SchedulerPlugin

JOINED, LEFT = "joined", "left"


def membership_plugin(topic: str) -> SchedulerPlugin:
    """A plugin that reports on `topic`.

    Its class is made here so that it travels by value: a scheduler that somebody else started need not have this
    package.
    """
    joined, left = JOINED, LEFT

    class Membership(SchedulerPlugin):  # type: ignore[misc]  # Dask has no types
        def add_worker(self, scheduler: Scheduler, worker: str) -> None:
            scheduler.log_event(topic, {"kind": joined, "worker": worker})

        def remove_worker(self, scheduler: Scheduler, worker: str, **_: Any) -> None:
            scheduler.log_event(topic, {"kind": left, "worker": worker})

    return Membership()
