"""What an update is made of: the sums over shards, and its result."""

from dataclasses import dataclass

from batchgrowth.decisions import Decision
from batchgrowth.plan import Step
from torch import Tensor


@dataclass(slots=True)
class Partial:
    """The sum over the shards [lo, hi), a node of the fixed tree.

    `row` has shape (L,): gradient, change of the buffers, and the numbers of Tail.
    The others are views of it, kept since making them takes as long as using them: of the gradient, its parameters and
    the quantities.
    """

    lo: int
    hi: int
    row: Tensor
    gradient: Tensor
    views: list[Tensor]
    places: list[Tensor]


@dataclass(frozen=True, slots=True)
class Committed:
    """The result of an update: mean loss per example, its learning rate, whether a member requested a stop after it,
    and what a look at the measured quantity decided, None if none was due.
    """

    loss: float
    learning_rate: float
    stop: bool
    decision: Decision | None = None


def largest_shard(step: Step) -> int:
    """The number of examples of the update's largest shard; the others have at most one less."""
    return -(-step.examples // step.shards)
