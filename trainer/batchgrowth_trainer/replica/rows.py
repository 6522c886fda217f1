"""The rows of an update, and the fixed tree along which they are added.

A row has, one behind the other: the gradient of all parameters (`FlatParameters.length` numbers), the change of all
buffers (`FlatBuffers.length`), and the tail (`Tail.length`): the quantities, then, if the growth looks at a clock, two
numbers of timing, and last 1 where a member requests a stop.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf

import torch
from batchgrowth.errors import WorkloadError
from batchgrowth.looks import NOT_TIMED, Timing
from batchgrowth.plan import Step
from batchgrowth.shards import merge_order, shard_runs, subtrees
from torch import Tensor

from batchgrowth_trainer.replica.flat import FlatParameters


@dataclass(slots=True)
class Partial:
    """The sum over the shards [lo, hi), a node of the fixed tree, in a row of shape (L,).

    The others are views of the row, kept since making them takes as long as using them: the gradient, the gradient of
    each parameter, the change of the buffers, and the places of the quantities.
    """

    lo: int
    hi: int
    row: Tensor
    gradient: Tensor
    of_parameters: list[Tensor]
    buffers: Tensor
    quantities: list[Tensor]


def largest_shard(step: Step) -> int:
    """Return the number of examples of the update's largest shard; the others have at most one less."""
    return -(-step.examples // step.shards)


# The numbers at the end of a row, which are added along the same tree as the gradient.


@dataclass(frozen=True, slots=True)
class Quantity:
    """One number: `write(place, summed loss, summed gradient, weight)` writes a shard's summand to its place, a scalar
    view of the row; `weight` is the number of examples of the update's largest shard over that of this one.
    """

    name: str
    write: Callable[[Tensor, Tensor, Tensor, float], object]


def _write_loss(place: Tensor, loss: Tensor, _gradient: Tensor, _weight: float) -> None:
    place.copy_(loss)


def _write_square(place: Tensor, _loss: Tensor, gradient: Tensor, weight: float) -> None:
    torch.dot(gradient, gradient, out=place)
    if weight != 1:  # a division that most shards are spared: it takes longer than the product
        place.mul_(weight)


LOSS = Quantity("loss", _write_loss)
SHARD_SQUARES = Quantity("shard squares", _write_square)


@dataclass(frozen=True, slots=True)
class Sums:
    """The numbers in the tail of a total: the quantities by name, the timing, and whether a stop was requested."""

    by_name: Mapping[str, float]
    timing: Timing
    stop: bool


class Tail:
    """The last numbers of a row: the quantities, the timing of an earlier update if the growth looks at a clock, and 1
    where a member requests a stop after the update.
    """

    def __init__(self, quantities: Sequence[Quantity], *, clock: bool) -> None:
        self._timing = 2 if clock else 0
        self.length = len(quantities) + self._timing + 1
        self.quantities = tuple(quantities)

    def places(self, row: Tensor) -> list[Tensor]:
        """Return scalar views of the row, one per quantity."""
        return list(row[-self.length :][: len(self.quantities)].unbind())

    def write_timing(self, row: Tensor, timing: Timing) -> None:
        """Write the timing, of which one member's is enough; do nothing if the growth does not look at a clock."""
        if self._timing:
            row[-3] = timing.seconds
            row[-2] = timing.load

    def request_stop(self, row: Tensor) -> None:
        """Mark the row as that of a member that requests a stop."""
        row[-1] = 1.0

    def take_stop(self, total: Tensor) -> bool:
        """Return whether a stop was requested, and take the request out of the total."""
        requested = bool(total[-1] > 0)
        total[-1] = 0.0
        return requested

    def read(self, total: Tensor, scalar: Tensor) -> tuple[Sums, float]:
        """Return the sums at the end of a total, and the further scalar, all in one transfer from a GPU."""
        if total.is_cpu:  # where each is read in less time than it takes to put them together
            tail = total if total.numel() == self.length else total[-self.length :]
            numbers = tail.tolist()
            further = scalar.item()
        else:
            *numbers, further = torch.cat((total[-self.length :], scalar.view(1))).tolist()
        by_name = {}
        for at, quantity in enumerate(self.quantities):
            by_name[quantity.name] = numbers[at]
        timing = Timing(*numbers[-3:-1]) if self._timing else NOT_TIMED
        return Sums(by_name, timing, numbers[-1] > 0), further


def check_finite(step: Step, learning_rate: float, loss: float, norm: float) -> None:
    """Raise WorkloadError if the summed loss of an update, or the norm of its gradient, is not finite."""
    if abs(loss) < inf and norm < inf:
        return
    raise WorkloadError(
        f"update {step.position.update + 1} (epoch {step.position.epoch + 1}, batch {step.batch_size}, learning rate "
        f"{learning_rate:g}) is not finite: loss {loss / step.examples:g}, gradient norm {norm:g}. "
        "The weights are unchanged; lower learningRate.initial, warm up, or look for a log or a division by zero "
        "in the loss."
    )


class Rows:
    """The rows that an update's sums are made in, on the parameters' device, kept from update to update."""

    def __init__(self, parameters: FlatParameters, buffers: int, tail: Tail) -> None:
        """`buffers` is the length of the buffers' part of a row."""
        self.length = parameters.length + buffers + tail.length
        self._parameters = parameters
        self._buffers = slice(parameters.length, parameters.length + buffers)
        self._tail = tail
        self._free: list[Partial] = []

    def blank(self, shard: int) -> Partial:
        """Return zeros for the sum of one shard."""
        if self._free:
            kept = self._free.pop()
            kept.lo = shard
            kept.hi = shard + 1
            kept.row.zero_()
            return kept
        row = torch.zeros(self.length, device=self._parameters.vector.device)
        return Partial(
            lo=shard,
            hi=shard + 1,
            row=row,
            gradient=row[: self._parameters.length],
            of_parameters=self._parameters.gradient_views(row),
            buffers=row[self._buffers],
            quantities=self._tail.places(row),
        )

    def release(self, partials: Iterable[Partial]) -> None:
        """Take rows back for the next update."""
        self._free.extend(partials)

    @property
    def free(self) -> int:
        """The number of rows that wait for an update."""
        return len(self._free)


# The fixed tree as a table: the nodes of each member, and the order in which all nodes are added.

Quantize = Callable[[Tensor], None]
"""Rounds the sum of a node in place."""


@dataclass(frozen=True, slots=True)
class Layout:
    """`runs[m]` are member m's shards, `nodes[m]` the subtrees that cover them, `order` the in-place additions.

    The additions end in the slots `sums`: one, unless the runs are only a part of all shards.
    """

    runs: tuple[tuple[int, int], ...]
    nodes: tuple[tuple[tuple[int, int], ...], ...]
    order: tuple[tuple[int, int], ...]
    sums: tuple[int, ...]


@lru_cache(maxsize=256)
def lay_out(shards: int, members: int) -> Layout:
    """Return the layout of an update of `shards` shards over `members` members."""
    return lay_out_runs(shards, shard_runs(shards, members))


def lay_out_runs(shards: int, runs: Sequence[tuple[int, int]]) -> Layout:
    """Return the layout of adjacent runs, in order, of an update of `shards` shards."""
    nodes = tuple(subtrees(lo, hi, shards) for lo, hi in runs)
    slots = [node for some in nodes for node in some]
    into = subtrees(runs[0][0], runs[-1][1], shards)
    begins = {lo: slot for slot, (lo, _) in enumerate(slots)}
    return Layout(tuple(runs), nodes, merge_order(slots, shards, into), tuple(begins[lo] for lo, _ in into))


def add_up(
    rows: Sequence[Tensor], layout: Layout, quantize: Quantize | None = None, room: Tensor | None = None
) -> Tensor:
    """Return the total of all nodes' rows, given in order; overwrites the rows.

    The total is in `room` if the last addition can write there, else in the first row.
    """
    if room is None or quantize is not None or not layout.order:
        [total] = add_parts(rows, layout, quantize)
        return total
    *others, (left, right) = layout.order
    for into, other in others:
        rows[into].add_(rows[other])
    return torch.add(rows[left], rows[right], out=room)


def add_parts(rows: Sequence[Tensor], layout: Layout, quantize: Quantize | None = None) -> list[Tensor]:
    """Return the sums of the nodes that the layout's runs cover; overwrites the rows, given in order.

    Each sum is quantized, and is in one of the rows.
    """
    for left, right in layout.order:
        rows[left].add_(rows[right])
        if quantize is not None:
            quantize(rows[left])
    return [rows[slot] for slot in layout.sums]
