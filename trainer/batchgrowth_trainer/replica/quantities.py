"""The numbers at the end of a row, which are added along the same tree as the gradient."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
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
    """The last numbers of a row: those of the quantities, and 1 where a member requests a stop after the update."""

    def __init__(self, quantities: Sequence[Quantity]) -> None:
        self.length = len(quantities) + 1
        self._quantities = [(index - self.length, quantity) for index, quantity in enumerate(quantities)]

    def write(self, row: Tensor, loss: Tensor, gradient: Tensor, examples: int) -> None:
        """Write a shard's numbers to the end of its row."""
        for at, quantity in self._quantities:
            row[at] = quantity.of_shard(loss, gradient, examples)

    def request_stop(self, row: Tensor) -> None:
        """Mark the row as that of a member that requests a stop."""
        row[-1] = 1.0

    def read(self, total: Tensor, *more: Tensor) -> tuple[dict[str, float], bool, list[float]]:
        """The sums by name, whether a stop was requested, and the further scalars, all in one transfer."""
        numbers = torch.cat((total[-self.length :], torch.stack(more))).tolist()
        sums = {quantity.name: numbers[at] for at, (_, quantity) in enumerate(self._quantities)}
        return sums, numbers[self.length - 1] > 0, numbers[self.length :]
