"""What an update is made of: the sums over shards, and its result."""

from dataclasses import dataclass, field

from batchgrowth.decisions import Decision
from batchgrowth.plan import Step
from torch import Tensor


@dataclass(slots=True)
class Partial:
    """The sum over the shards [lo, hi), a node of the fixed tree.

    `row` has shape (L,): gradient, change of the buffers, and the numbers of Tail.
    `views` and `places` are views of it, of the parameters' gradients and of the quantities; they are empty if the row
    came from another process.
    """

    lo: int
    hi: int
    row: Tensor
    views: list[Tensor] = field(default_factory=list)
    places: list[Tensor] = field(default_factory=list)


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


def not_finite(step: Step, learning_rate: float, loss: float, size: float) -> str:
    """The message for a loss, the sum over the examples, or a gradient norm that is not finite."""
    return (
        f"update {step.position.update + 1} (epoch {step.position.epoch + 1}, batch {step.batch_size}, learning rate "
        f"{learning_rate:g}) is not finite: loss {loss / step.examples:g}, gradient norm {size:g}. "
        "The weights are unchanged; lower learningRate.initial, warm up, or look for a log or a division by zero "
        "in the loss."
    )
