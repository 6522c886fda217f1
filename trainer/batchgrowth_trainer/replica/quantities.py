"""The numbers at the end of a row, which are added along the same tree as the gradient."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

import torch
from batchgrowth.errors import WorkloadError
from batchgrowth.stages import Step
from batchgrowth.timing import NOT_TIMED, Timing
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Quantity:
    """One number: `write(place, summed loss, summed gradient, weight)` writes a shard's summand to its place, a scalar
    view of the row; `weight` is the number of examples of the update's largest shard over that of this one.
    """

    name: str
    write: Callable[[Tensor, Tensor, Tensor, float], object]


def _write_square(place: Tensor, _loss: Tensor, gradient: Tensor, weight: float) -> None:
    torch.dot(gradient, gradient, out=place)
    if weight != 1:  # a division that most shards are spared: it takes longer than the product
        place.mul_(weight)


LOSS = Quantity("loss", lambda place, loss, _gradient, _weight: place.copy_(loss))
SHARD_SQUARES = Quantity("shard squares", _write_square)


class Tail:
    """The last numbers of a row: those of the quantities, the timing of an earlier update if the growth looks at a
    clock, and 1 where a member requests a stop after the update.
    """

    def __init__(self, quantities: Sequence[Quantity], *, clock: bool) -> None:
        self._timing = 2 if clock else 0
        self.length = len(quantities) + self._timing + 1
        self._quantities = tuple(quantities)

    def places(self, row: Tensor) -> list[Tensor]:
        """Scalar views of the row, one per quantity."""
        return list(row[-self.length :][: len(self._quantities)].unbind())

    def write(self, places: Sequence[Tensor], loss: Tensor, gradient: Tensor, weight: float) -> None:
        """Write a shard's numbers to their places in its row; see Quantity."""
        for place, quantity in zip(places, self._quantities, strict=True):
            quantity.write(place, loss, gradient, weight)

    def write_timing(self, row: Tensor, timing: Timing) -> None:
        """Write the timing, of which one member's is enough; do nothing if the growth does not look at a clock."""
        if self._timing:
            row[-3], row[-2] = timing.seconds, timing.load

    def request_stop(self, row: Tensor) -> None:
        """Mark the row as that of a member that requests a stop."""
        row[-1] = 1.0

    def read(self, total: Tensor, *more: Tensor) -> "Sums":
        """The sums of a row, and the further scalars, all in one transfer from a GPU."""
        if total.is_cpu:  # where each is read in less time than it takes to put them together
            own = total if total.numel() == self.length else total[-self.length :]
            tail, rest = own.tolist(), [number.item() for number in more]
        else:
            numbers = torch.cat((total[-self.length :], *(number.view(1) for number in more))).tolist()
            tail, rest = numbers[: self.length], numbers[self.length :]
        by_name = {quantity.name: tail[at] for at, quantity in enumerate(self._quantities)}
        return Sums(by_name, Timing(*tail[-3:-1]) if self._timing else NOT_TIMED, tail[-1] > 0, rest)


@dataclass(frozen=True, slots=True)
class Sums:
    """The numbers of a row: the quantities by name, the timing, whether a stop was requested, and further scalars."""

    by_name: Mapping[str, float]
    timing: Timing
    stop: bool
    more: Sequence[float]


def check_finite(step: Step, learning_rate: float, loss: float, size: float) -> None:
    """Raise WorkloadError if the summed loss of an update, or the norm of its gradient, is not finite."""
    if abs(loss) < inf and size < inf:
        return
    raise WorkloadError(
        f"update {step.position.update + 1} (epoch {step.position.epoch + 1}, batch {step.batch_size}, learning rate "
        f"{learning_rate:g}) is not finite: loss {loss / step.examples:g}, gradient norm {size:g}. "
        "The weights are unchanged; lower learningRate.initial, warm up, or look for a log or a division by zero "
        "in the loss."
    )
