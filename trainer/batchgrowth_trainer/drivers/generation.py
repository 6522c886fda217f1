"""One generation as its driver sees it: its members, and how each of them ended."""

import math
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from batchgrowth.errors import BatchGrowthError
from distributed import Future

from batchgrowth_trainer.exchange.seats import TOKEN_BYTES
from batchgrowth_trainer.worker.messages import Outcome, Prepared


@dataclass(slots=True)
class Generation:
    """Members in the order of their ranks; the outcome of a member that is gone is None."""

    number: int
    members: list[str]
    token: bytes = field(default_factory=lambda: secrets.token_bytes(TOKEN_BYTES), repr=False)
    cancelled_at: float = math.inf  # when those that form it were last requested to stop waiting
    heard_at: float = field(default_factory=time.monotonic)  # when a member last reported or ended
    futures: dict[str, Future] = field(default_factory=dict)
    outcomes: dict[str, Outcome | None] = field(default_factory=dict)
    pauses: dict[int, float | None] = field(default_factory=dict)
    stopping: bool = False
    asked_at: float = -math.inf  # when it was last requested to stop
    hung: set[str] = field(default_factory=set)  # workers that are restarted once the others' state is saved
    hung_at: float = math.inf  # when the first of them was found

    @property
    def over(self) -> bool:
        """Whether every member has ended or gone."""
        return len(self.outcomes) == len(self.members)

    @property
    def gone(self) -> list[str]:
        """Members that died or lost their connection."""
        return [address for address, outcome in self.outcomes.items() if outcome is None]

    @property
    def errors(self) -> dict[str, BatchGrowthError]:
        """The errors with which members ended."""
        ended = ((address, outcome.error) for address, outcome in self.outcomes.items() if outcome is not None)
        return {address: error for address, error in ended if error is not None}

    @property
    def lost(self) -> str:
        """Why a peer was lost; empty if none was."""
        for address, error in self.errors.items():
            return f"worker {address} was left out: {error}"
        if self.gone:
            return f"{len(self.gone)} of {len(self.members)} workers were lost"
        reasons = (outcome.lost for outcome in self.outcomes.values() if outcome is not None and outcome.lost)
        return next(reasons, "")

    @property
    def remaining(self) -> dict[str, Outcome]:
        """The outcome of each remaining member."""
        return {address: outcome for address, outcome in self.outcomes.items() if outcome is not None}

    def pause(self, otherwise: float) -> float | None:
        """The longest pause of a member, in seconds, `otherwise` if all are newcomers; None until all have begun."""
        if len(self.pauses) < len(self.members):
            return None
        return max((pause for pause in self.pauses.values() if pause is not None), default=otherwise)


def backend_of(members: Sequence[Prepared]) -> str:
    """The backend of a group of these members: `nccl` if each has its own GPU, else `tcp`.

    Pods that share a GPU see it with one UUID.
    """
    gpus = {one.gpu for one in members}
    return "nccl" if all(one.gpu for one in members) and len(gpus) == len(members) else "tcp"
