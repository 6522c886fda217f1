"""The events of a crew; all arrive in one queue, in the order in which they happened."""

from dataclasses import dataclass

from distributed import Future
from distributed.scheduler import KilledWorker

from batchgrowth_trainer.blame import WorkerFault
from batchgrowth_trainer.crew.request import Request
from batchgrowth_trainer.worker.messages import Message, Outcome, Prepared


@dataclass(frozen=True, slots=True)
class Ready:
    """A worker's member can join; `prepared` is None if that was lost on its way."""

    address: str
    prepared: Prepared | None


@dataclass(frozen=True, slots=True)
class Unready:
    """A worker's member could not be built."""

    address: str
    error: BaseException


@dataclass(frozen=True, slots=True)
class Ended:
    """A member's task of a generation, or what was requested of it, ended, or was lost with its worker.

    `outcome` is the result of a task that trained; None if it was lost on its way, and for a task of another kind.
    """

    address: str
    generation: int
    future: Future | Request
    outcome: Outcome | None = None

    def fault(self) -> WorkerFault | None:
        """The fault of this worker that ended the task; None if it ended otherwise."""
        error = self.future.exception() if self.future.status == "error" else None
        return error if isinstance(error, WorkerFault) else None

    def is_lost(self) -> bool:
        """Whether the task was lost with its worker. Raises the error of a task that failed."""
        if self.future.status == "error":
            error = self.future.exception()
            if error is not None and not isinstance(error, KilledWorker):
                raise error
        return bool(self.future.status != "finished")


Event = Message | Ready | Unready | Ended
