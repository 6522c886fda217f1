"""The numbers at the end of a row, which are added along the same tree as the gradient."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from batchgrowth.timing import NOT_TIMED, Timing
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Quantity:
    """One number: `of_shard(summed loss, summed gradient, examples)` is a shard's summand."""

    name: str
    of_shard: Callable[[Tensor, Tensor, int], Tensor]


LOSS = Quantity("loss", lambda loss, _gradient, _examples: loss)
SHARD_SQUARES = Quantity(
    "shard squares", lambda _loss, gradient, examples: torch.linalg.vector_norm(gradient).square_().div_(examples)
)


class Tail:
    """The last numbers of a row: those of the quantities, the timing of an earlier update if the growth looks at a
    clock, and 1 where a member requests a stop after the update.
    """

    def __init__(self, quantities: Sequence[Quantity], *, clock: bool) -> None:
        self._timing = 2 if clock else 0
        self.length = len(quantities) + self._timing + 1
        self._quantities = [(index - self.length, quantity) for index, quantity in enumerate(quantities)]

    def write(self, row: Tensor, loss: Tensor, gradient: Tensor, examples: int) -> None:
        """Write a shard's numbers to the end of its row."""
        for at, quantity in self._quantities:
            row[at] = quantity.of_shard(loss, gradient, examples)

    def write_timing(self, row: Tensor, timing: Timing) -> None:
        """Write the timing, of which one member's is enough; do nothing if the growth does not look at a clock."""
        if self._timing:
            row[-3], row[-2] = timing.seconds, timing.load

    def request_stop(self, row: Tensor) -> None:
        """Mark the row as that of a member that requests a stop."""
        row[-1] = 1.0

    def read(self, total: Tensor, *more: Tensor) -> "Sums":
        """The sums of a row, and the further scalars, all in one transfer."""
        numbers = torch.cat((total[-self.length :], torch.stack(more))).tolist()
        tail, rest = numbers[: self.length], numbers[self.length :]
        by_name = {quantity.name: tail[at] for at, (_, quantity) in enumerate(self._quantities)}
        return Sums(by_name, Timing(*tail[-3:-1]) if self._timing else NOT_TIMED, tail[-1] > 0, rest)


@dataclass(frozen=True, slots=True)
class Sums:
    """The numbers of a row: the quantities by name, the timing, whether a stop was requested, and further scalars."""

    by_name: Mapping[str, float]
    timing: Timing
    stop: bool
    more: Sequence[float]
