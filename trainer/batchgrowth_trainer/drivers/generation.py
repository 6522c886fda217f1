"""One generation as its driver sees it: who is in it, who has ended, and how."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from distributed import Future

from batchgrowth_trainer.worker.member import Outcome
from batchgrowth_trainer.worker.service import Prepared


@dataclass(slots=True)
class Generation:
    """Members in the order of their ranks; `outcomes` has None for a member that is gone."""

    number: int
    members: list[str]
    began: float = field(default_factory=time.monotonic)
    heard: float = field(default_factory=time.monotonic)
    futures: dict[str, Future] = field(default_factory=dict)
    outcomes: dict[str, Outcome | None] = field(default_factory=dict)
    pauses: dict[int, float | None] = field(default_factory=dict)
    first_update: int = 0
    stopping: bool = False
    asked_at: float = -math.inf  # when it was last asked to stop

    @property
    def over(self) -> bool:
        """Whether every member has ended or gone."""
        return len(self.outcomes) == len(self.members)

    @property
    def gone(self) -> list[str]:
        """Members that died or were cut off."""
        return [address for address, outcome in self.outcomes.items() if outcome is None]

    @property
    def lost(self) -> str:
        """What went wrong with a peer, or nothing."""
        if self.gone:
            return f"{len(self.gone)} of {len(self.members)} workers went away"
        told = [outcome.lost for outcome in self.outcomes.values() if outcome is not None and outcome.lost]
        return told[0] if told else ""

    @property
    def updates(self) -> dict[str, int]:
        """How far each remaining member is."""
        return {address: outcome.update for address, outcome in self.outcomes.items() if outcome is not None}

    def pause(self, otherwise: float) -> float | None:
        """The longest time that a member stood still before this generation; None until all have begun.

        `otherwise` is the driver's own measure, for a generation of newcomers alone.
        """
        if len(self.pauses) < len(self.members):
            return None
        return max((pause for pause in self.pauses.values() if pause is not None), default=otherwise)


def backend_of(members: Sequence[Prepared]) -> str:
    """What a group of these members speaks: `nccl` where each has a GPU of its own."""
    gpus = {(one.host, one.gpu) for one in members}
    return "nccl" if all(one.gpu for one in members) and len(gpus) == len(members) else "tcp"
