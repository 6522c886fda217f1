"""The workers of a run as a driver gets them."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from batchgrowth_trainer.crew.crew import Crew
from batchgrowth_trainer.drivers.scaling import Scaling


@dataclass(frozen=True, slots=True)
class Workforce:
    """A crew that is open, how it is scaled, and the address of this machine that its workers can reach."""

    crew: Crew
    scaling: Scaling
    host: str


Join = Callable[[], AbstractContextManager[Workforce]]
"""Connects to a Dask cluster, and disconnects at the end of the block. Raises SchedulerLost and ClusterError."""
