"""TopK: each logical replica sends only its largest changes of weights, and keeps the others for a later exchange.

The changes that a replica has not sent, its residual, are added to its next changes, so nothing is lost (error
feedback). The changes that are sent are added to the weights in the order of the replicas; then all replicas have the
same weights.
"""

import math
from collections.abc import Iterable, Sequence

import torch
from batchgrowth.errors import WorkloadError
from batchgrowth.plan import Step
from torch import Tensor

from batchgrowth_trainer.exchange.logical_replicas import LogicalReplicas, State, register_copies
from batchgrowth_trainer.exchange.strategy import Setting
from batchgrowth_trainer.replica.replica import Replica

MOST_PARAMETERS = 2**31 - 1
"""Largest number of a model's parameters: places are sent as int32."""


class TopK(LogicalReplicas):
    """The strategy of TopK. A message has the places of each replica's changes, the changes, and whether to stop."""

    has_centre = True
    most_exchanges = 64

    @staticmethod
    def register(replica: Replica) -> None:
        """Register the state of each replica: its residual, its optimizer's state and its buffers."""
        register_copies(replica, residual=torch.zeros_like(replica.parameters.vector.data))

    def __init__(self, setting: Setting) -> None:
        """Raise WorkloadError for a model with more parameters than a place in a message can name."""
        super().__init__(setting)
        if len(self.centre) > MOST_PARAMETERS:
            raise WorkloadError(
                f"exchange.type: TopK sends places below {MOST_PARAMETERS:,}, and the model has {len(self.centre):,} "
                "parameters; give LocalSGD, or a smaller model"
            )
        self._count = self.replica.spec.exchange.settings.count(len(self.centre))

    def train(self, states: dict[int, State], steps: Sequence[Step], losses: Tensor) -> None:
        """Train each replica, and weight its changes by its share of the examples, so that their sum is the mean
        change.
        """
        examples = sum(step.examples for step in steps)
        weights = self.replica.parameters.vector.data
        for number, state in states.items():
            weights.copy_(self.centre)
            self.copies.load(state)
            seen = self.local.make(number, steps, losses[number])
            self.copies.store(state)
            state["residual"].add_(weights - self.centre, alpha=seen / examples)

    def mix(self, states: dict[int, State], turn: int, *, stop: bool = False) -> bool:  # noqa: ARG002
        """Move the weights that all replicas share by the changes that all replicas send."""
        residuals = [state["residual"] for state in states.values()]
        before = _squares(residuals)
        taken = [_taken(residual, self._count) for residual in residuals]
        flag = torch.tensor([int(stop)], dtype=torch.int32, device=self.centre.device)
        mine = torch.cat([*(places_and_changes.view(-1) for places_and_changes in taken), flag])
        landing = {
            rank: mine.new_empty((hi - lo) * 2 * self._count + 1)
            for rank, (lo, hi) in enumerate(self.runs)
            if rank != self.group.rank
        }
        self.swap(dict.fromkeys(landing, mine), landing)
        messages = [landing.get(rank, mine) for rank in range(self.group.size)]
        for message in messages:
            for places, changes in message[:-1].view(-1, 2, self._count):
                # The places of one message are distinct, so each of its changes is added once.
                self.centre[places.long()] += changes.view(torch.float32)
        if 0 < before < math.inf:
            left = 1 - _squares(changes.view(torch.float32) for _, changes in taken) / before
            self.compression_error = math.sqrt(max(left, 0.0))
        return any(bool(message[-1]) for message in messages)


def _taken(residual: Tensor, count: int) -> Tensor:
    """Take the largest numbers out of the residual, and return their places and their bits, shape (2, count)."""
    places = largest(residual, count)
    changes = residual[places]
    residual[places] = 0.0
    # The bits of the changes as int32, so that one tensor carries both.
    return torch.stack((places.int(), changes.view(torch.int32)))


def largest(vector: Tensor, count: int) -> Tensor:
    """Return the places of the `count` numbers with the largest magnitude, shape (count,).

    Of equal ones the first are taken.
    """
    # NaN compares with no number, so it counts as infinite.
    sizes = vector.abs().nan_to_num_(nan=math.inf, posinf=math.inf)
    least = torch.topk(sizes, count, sorted=False).values.min()
    above = (sizes > least).nonzero().view(-1)
    return torch.cat((above, (sizes == least).nonzero().view(-1)[: count - len(above)]))


def _squares(vectors: Iterable[Tensor]) -> float:
    """Return the sum of the squares of these numbers."""
    return sum(float(torch.dot(vector, vector)) for vector in vectors)
