"""What can happen to a crew; everything arrives in one queue, in the order in which it happened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from distributed import Future
from distributed.scheduler import KilledWorker


@dataclass(frozen=True, slots=True)
class Joined:
    """A worker has registered with the scheduler."""

    address: str


@dataclass(frozen=True, slots=True)
class Left:
    """A worker is gone."""

    address: str


@dataclass(frozen=True, slots=True)
class Leaving:
    """A worker has been asked to go, and waits until the others can do without it."""

    address: str


@dataclass(frozen=True, slots=True)
class Ready:
    """A worker's member can join; `future` holds what there is to know of it."""

    address: str
    future: Future


@dataclass(frozen=True, slots=True)
class Unready:
    """A worker's member could not be made."""

    address: str
    error: BaseException


@dataclass(frozen=True, slots=True)
class Said:
    """A member reports: rows, an evaluation, or that its generation began."""

    message: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Ended:
    """A member's task of a generation ended; `future` holds its Outcome or its error."""

    address: str
    generation: int
    future: Future

    def is_lost(self) -> bool:
        """Whether the task is gone with its worker. Raises an error that is nobody's loss but a fault."""
        if self.future.status == "error":
            error = self.future.exception()
            if not isinstance(error, KilledWorker):
                raise error
        return bool(self.future.status != "finished")


Event = Joined | Left | Leaving | Ready | Unready | Said | Ended
