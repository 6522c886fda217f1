"""The rows of an update: gradient, buffers and numbers, and the fixed tree along which they are added."""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf
from typing import Protocol

import torch
from batchgrowth.errors import WorkloadError
from batchgrowth.measuring import NOT_TIMED, Timing
from batchgrowth.schedule.plan import BatchDecision
from batchgrowth.schedule.stages import Step
from batchgrowth.shards import merge_order, shard_runs, subtrees, tree_sum
from batchgrowth.spec import JobSpec
from torch import Tensor

from batchgrowth_trainer.replica.flat import FlatParameters

# --- What an update is made of: the sums over shards, and its result ---


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
    decision: BatchDecision | None = None


def largest_shard(step: Step) -> int:
    """The number of examples of the update's largest shard; the others have at most one less."""
    return -(-step.examples // step.shards)


# --- The numbers at the end of a row, which are added along the same tree as the gradient ---


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


# --- Gradients in fewer bits: every node of the tree is rounded, wherever it is added, to what is sent without loss ---
# So the total has the same bits for any number of workers, and for one process that sends nothing.

BLOCK = 1024
"""Numbers that share a scale."""
_LARGEST = 127


class Coding(Protocol):
    """`width` is the number of bytes that a number takes, `block` how many numbers are coded together."""

    width: float
    block: int

    def round(self, vector: Tensor) -> None:
        """Replace the numbers, float32 of shape (n,), by the nearest that `pack` keeps."""

    def pack(self, vector: Tensor) -> Tensor:
        """Rounded numbers as bytes, of shape (size(n),)."""

    def unpack(self, packed: Tensor, vector: Tensor) -> None:
        """Write the numbers that were packed."""

    def size(self, length: int) -> int:
        """The bytes of `length` numbers."""


class BFloat16:
    """Numbers of eight significant bits."""

    width = 2.0
    block = 1

    def round(self, vector: Tensor) -> None:
        """See Coding."""
        vector.copy_(vector.bfloat16())

    def pack(self, vector: Tensor) -> Tensor:
        """See Coding."""
        return vector.bfloat16().view(torch.uint8)

    def unpack(self, packed: Tensor, vector: Tensor) -> None:
        """See Coding."""
        vector.copy_(packed.view(torch.bfloat16))

    def size(self, length: int) -> int:
        """See Coding."""
        return 2 * length


class Int8:
    """Whole numbers from -127 to 127, times a power of two for each block of 1,024.

    A power of two, so that a rounded block has the same numbers when it is packed, unpacked and packed again.
    """

    width = 1 + 4 / BLOCK
    block = BLOCK

    def round(self, vector: Tensor) -> None:
        """See Coding."""
        whole, scales = self._coded(vector)
        vector.copy_(_scaled(whole, scales)[: len(vector)])

    def pack(self, vector: Tensor) -> Tensor:
        """See Coding."""
        whole, scales = self._coded(vector)
        return torch.cat((whole.to(torch.int8).view(-1)[: len(vector)].view(torch.uint8), scales.view(torch.uint8)))

    def unpack(self, packed: Tensor, vector: Tensor) -> None:
        """See Coding."""
        scales = packed[len(vector) :].clone().view(torch.float32)
        whole = _in_blocks(packed[: len(vector)].view(torch.int8).float())
        vector.copy_(_scaled(whole, scales)[: len(vector)])

    def size(self, length: int) -> int:
        """See Coding."""
        return length + 4 * -(-length // BLOCK)

    def _coded(self, vector: Tensor) -> tuple[Tensor, Tensor]:
        """The whole numbers, shape (blocks, BLOCK), and the scales, shape (blocks,); infinite ones for such a block."""
        blocks = _in_blocks(vector)
        largest = blocks.abs().amax(dim=1)
        parts, exponents = torch.frexp(largest / _LARGEST)
        scales = torch.ldexp(torch.ones_like(largest), exponents - (parts == 0.5).int())  # the power of two not below
        scales = torch.where(torch.isfinite(largest), scales, largest)
        return (blocks / scales.unsqueeze(1)).round_(), scales


def _in_blocks(vector: Tensor) -> Tensor:
    missing = -len(vector) % BLOCK
    return torch.nn.functional.pad(vector, (0, missing)).view((len(vector) + missing) // BLOCK, BLOCK)


def _scaled(whole: Tensor, scales: Tensor) -> Tensor:
    return (whole * scales.unsqueeze(1)).view(-1)


_CODINGS: dict[str, Coding] = {"BFloat16": BFloat16(), "Int8": Int8()}


def coding_of(spec: JobSpec) -> Coding | None:
    """The coding of exchange.compression."""
    return _CODINGS[spec.exchange.compression] if spec.exchange.compression else None


# --- The fixed tree as a table: the nodes of each member, and the order in which all nodes are added ---


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
    """The layout of an update of `shards` shards over `members` members."""
    return lay_out_runs(shards, shard_runs(shards, members))


def lay_out_runs(shards: int, runs: Sequence[tuple[int, int]]) -> Layout:
    """The layout of adjacent runs, in order, of an update of `shards` shards."""
    nodes = tuple(subtrees(lo, hi, shards) for lo, hi in runs)
    slots = [node for some in nodes for node in some]
    into = subtrees(runs[0][0], runs[-1][1], shards)
    begins = {lo: slot for slot, (lo, _) in enumerate(slots)}
    return Layout(tuple(runs), nodes, merge_order(slots, shards, into), tuple(begins[lo] for lo, _ in into))


def add_up(rows: Sequence[Tensor], layout: Layout, coding: Coding | None = None, room: Tensor | None = None) -> Tensor:
    """The total of all nodes' rows, given in order; overwrites the rows.

    It is in `room` if the last addition can write there, else in the first row.
    """
    if room is None or coding is not None or not layout.order:
        [total] = add_parts(rows, layout, coding)
        return total
    *others, (left, right) = layout.order
    _add(rows, others, None)
    return torch.add(rows[left], rows[right], out=room)


def add_parts(rows: Sequence[Tensor], layout: Layout, coding: Coding | None = None) -> list[Tensor]:
    """The sums of the nodes that the layout's runs cover; overwrites the rows, given in order, and returns some.

    Each sum is rounded by the coding.
    """
    _add(rows, layout.order, coding)
    return [rows[slot] for slot in layout.sums]


def _add(rows: Sequence[Tensor], order: Sequence[tuple[int, int]], coding: Coding | None) -> None:
    for left, right in order:
        rows[left].add_(rows[right])
        if coding is not None:
            coding.round(rows[left])


# The rows that an update's sums are made in: kept from update to update, and added at the nodes of the fixed tree.

_MEASURE_SECONDS = 1.0  # between two nodes whose rounding is measured, which takes half as long as rounding


class Rows:
    """Rows of shape (L,) on the parameters' device; at each node `coding`, if any, rounds the gradient.

    `rounding_error` is the norm of what that changed at the last node that was measured, divided by the norm of the
    gradient; None before the first.
    """

    def __init__(self, length: int, parameters: FlatParameters, tail: Tail, coding: Coding | None) -> None:
        self._length, self._parameters, self._tail, self._coding = length, parameters, tail, coding
        self._free: list[Partial] = []
        self.rounding_error: float | None = None
        self._measured_at = -_MEASURE_SECONDS

    def blank(self, shard: int) -> Partial:
        """Zeros for the sum of one shard."""
        if not self._free:
            row = torch.zeros(self._length, device=self._parameters.vector.device)
            gradient, views = row[: self._parameters.length], self._parameters.gradient_views(row)
            return Partial(shard, shard + 1, row, gradient, views, self._tail.places(row))
        kept = self._free.pop()
        kept.lo, kept.hi = shard, shard + 1
        kept.row.zero_()
        return kept

    def sums(self, nodes: Sequence[tuple[int, int]], shard: Callable[[int], Partial]) -> list[Partial]:
        """The sums of these subtrees, in order, of the shards that `shard` computes."""
        return [tree_sum(lo, hi, shard, self.add) for lo, hi in nodes]

    def add(self, left: Partial, right: Partial) -> Partial:
        """`left` with `right`, the subtree after it, added; `right` is released."""
        left.row.add_(right.row)
        self.round(left)
        left.hi = right.hi
        self._free.append(right)
        return left

    def round(self, node: Partial) -> None:
        """Round the gradient of a node as it would travel."""
        if self._coding is None:
            return
        gradient = node.gradient
        if time.monotonic() - self._measured_at < _MEASURE_SECONDS:
            self._coding.round(gradient)
            return
        self._measured_at, before = time.monotonic(), gradient.clone()
        self._coding.round(gradient)
        size = float(before.norm())
        changed = float(before.sub_(gradient).norm())
        if 0 < size < math.inf and math.isfinite(changed):
            self.rounding_error = changed / size

    def release(self, partials: Iterable[Partial]) -> None:
        """Take rows back for the next update."""
        self._free.extend(partials)

    @property
    def free(self) -> int:
        """The number of rows that wait for an update."""
        return len(self._free)
