"""AllReduce: the members add the gradients of an update, and each takes the same step.

`Reduction` adds the partial sums of all members to one total, in the order of batchgrowth/shards.py; other exchanges
use it too. The gradients of a large model are added in buckets, by a thread, as soon as the backward pass has computed
them.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Self

import torch
from batchgrowth.contract.metrics import ExchangeFigures
from batchgrowth.plan import Step
from batchgrowth.shards import Layout, lay_out, lay_out_runs
from torch import Tensor

from batchgrowth_trainer.exchange.compression import Coding, compression_in
from batchgrowth_trainer.exchange.connections import Grid
from batchgrowth_trainer.exchange.group import Group, PeerLost
from batchgrowth_trainer.exchange.strategy import NO_FIGURES, Round, Setting
from batchgrowth_trainer.exchange.streaming import Stream, stream_of
from batchgrowth_trainer.replica.data import run_of
from batchgrowth_trainer.replica.decisions import Stopwatch
from batchgrowth_trainer.replica.flat import Partial
from batchgrowth_trainer.replica.replica import ComputeShard

# --- The sum over all members ---

SHORT_BYTES = 64 << 10
"""Size in bytes up to which rows are sent whole: a second round trip would cost more than the bytes it saves."""
EMPTY = slice(0, 0)
Quantize = Callable[[Tensor], None]
"""Rounds the sum of a node in place."""


def length_of(span: slice) -> int:
    """Return the number of elements in a slice."""
    return int(span.stop - span.start)


def num_slices(grid: Grid, nbytes: int) -> int:
    """Return the number of slices into which a row of the grid divides the sums."""
    return min(grid.width, -(-nbytes // SHORT_BYTES) or 1) if SHORT_BYTES else grid.width


def spans_of(length: int, slices: int, block: int = 1) -> list[slice]:
    """Return the slices of a vector; each but the last consists of whole blocks."""
    blocks = -(-length // block)
    cuts = [min(blocks * place // slices * block, length) for place in range(slices + 1)]
    return [slice(cuts[place], cuts[place + 1]) for place in range(slices)]


@lru_cache(maxsize=256)
def lay_out_grid(shards: int, grid: Grid) -> tuple[tuple[Layout, ...], Layout]:
    """Return the layout within each row of the grid, and the one layout across its rows."""
    runs = lay_out(shards, grid.size).runs
    rows = tuple(lay_out_runs(shards, runs[row.start : row.stop]) for row in grid.rows)
    return rows, lay_out_runs(shards, [(runs[row[0]][0], runs[row[-1]][1]) for row in grid.rows])


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
    """Add the rows, given in order, and return the sums of the nodes that the layout's runs cover.

    Overwrites the rows; each sum is quantized and is in one of them.
    """
    for left, right in layout.order:
        rows[left].add_(rows[right])
        if quantize is not None:
            quantize(rows[left])
    return [rows[slot] for slot in layout.sums]


# Short rows, or those of two members, are sent to every member, and each adds them up: one round trip.
# Long rows are cut into one slice per member: each sends the others their slices, adds up its own along the tree, and
# sends the result to all: the bytes of a ring, 2 (P-1)/P of a row per member, and the same total for every P, since an
# element's sum does not depend on the member that computes it.
# In a grid, the slices of a row's sums are added up across the columns before they are sent to all of the row. A row of
# the grid has consecutive shards, so its sums are a few nodes of the same tree. No slice is so short that it would
# be sent whole, so short sums meet at the first member of each row.


@dataclass(frozen=True, slots=True)
class Reduced:
    """The `total` over all members, of the shape of a row, and `wait_seconds`, the time spent waiting for peers."""

    total: Tensor
    wait_seconds: float

    def put_into(self, room: Tensor) -> float:
        """Copy the total into `room`, unless `room` has it already; return the seconds spent waiting."""
        if self.total is not room:
            room.copy_(self.total)
        return self.wait_seconds


class Reduction:
    """Adds the rows of all members of a group, all of one length; reuses its receive buffers from update to update.

    With a coding, the rows and each sum are rounded, and they are sent in fewer bytes.
    """

    def __init__(self, group: Group, coding: Coding | None = None) -> None:
        self._group = group
        self._grid = group.grid
        self._is_mesh = group.grid.is_mesh
        self._coding = coding
        self._quantize = coding.quantize if coding else None
        self._buffers: dict[tuple[int, int, torch.dtype], Tensor] = {}

    def __call__(self, mine: Sequence[Tensor], shards: int, room: Tensor) -> Reduced:
        """Return the total over all shards; `mine` are the rows of this member's nodes, each of shape (L,), like
        `room`.

        Overwrites `mine`. The total, in `room` or in the place of a row, is valid until the next call. Raises PeerLost.
        """
        layout = lay_out(shards, self._group.size)
        if self._group.size == 1:
            return Reduced(mine[0] if len(mine) == 1 else add_up(mine, layout, self._quantize), 0.0)
        if self._is_mesh:
            return self._among(self._grid.rows[0], mine, layout, room)
        rows, across = lay_out_grid(shards, self._grid)
        row = self._grid.row(self._group.rank)
        slices = num_slices(self._grid, room.nbytes)
        return self._sliced(row, slices, mine, rows[self._grid.rows.index(row)], room, across)

    def _among(self, ranks: Sequence[int], mine: Sequence[Tensor], layout: Layout, room: Tensor) -> Reduced:
        """Return the total over members that are all connected with each other."""
        if len(ranks) > 2 and room.nbytes > SHORT_BYTES:
            return self._sliced(ranks, len(ranks), mine, layout, room, None)
        outgoing = {}
        if mine:
            outgoing = dict.fromkeys(ranks, self._packed(mine))
            del outgoing[self._group.rank]
        rows, waited = self._collect(ranks, outgoing, mine, layout, room)
        return Reduced(add_up(rows, layout, self._quantize, room), waited)

    def _sliced(
        self,
        ranks: Sequence[int],
        slices: int,
        mine: Sequence[Tensor],
        layout: Layout,
        room: Tensor,
        across: Layout | None,
    ) -> Reduced:
        """Let each of the first `slices` members add one slice and send its total to all `ranks`.

        `across` is the layout of the grid's rows if `ranks` are one of several: a slice is then added over all rows.
        """
        spans = spans_of(len(room), slices, self._coding.block if self._coding else 1)
        spans += [EMPTY] * (len(ranks) - slices)
        own = spans[ranks.index(self._group.rank)]
        sums, waited = self._own_sums(ranks, spans, mine, layout, room)
        if length_of(own):
            part = room[own]
            if across is None:
                part_total = Reduced(sums[0], 0.0)
            else:
                # The members of this column have added up the same slice, each of its own row of the grid.
                part_total = self._among(self._grid.column(self._group.rank), sums, across, part)
            waited += part_total.put_into(part)
        spreading = self._spread(ranks, spans, room)
        return Reduced(room, waited if length_of(own) else spreading)

    def reduce_scatter(self, mine: Sequence[Tensor], shards: int, spans: Sequence[slice], like: Tensor) -> Reduced:
        """Return the total of this member's slice; `spans` has the slice of each rank. All members are connected.

        Overwrites `mine`. `like` has the shape, dtype and device of a row. Raises PeerLost.
        """
        size = self._group.size
        sums, waited = self._own_sums(range(size), spans, mine, lay_out(shards, size), like)
        return Reduced(sums[0] if sums else like[spans[self._group.rank]], waited)

    def all_gather(self, vector: Tensor, spans: Sequence[slice]) -> None:
        """Fill `vector`, shape (L,), with every member's slice; `spans` has the slice of each rank. Raises PeerLost."""
        self._spread(range(self._group.size), spans, vector)

    def _own_sums(
        self, ranks: Sequence[int], spans: Sequence[slice], mine: Sequence[Tensor], layout: Layout, like: Tensor
    ) -> tuple[list[Tensor], float]:
        """Add up this member's slice, and return its sums, none if the slice is empty, and the seconds spent waiting.

        Each member receives its slice of the others' rows, and sends each of them its slice.
        """
        own = spans[ranks.index(self._group.rank)]
        outgoing = {}
        if mine:
            for peer, span in self._of_others(ranks, spans):
                outgoing[peer] = self._packed([row[span] for row in mine])
        if not length_of(own):
            self._swap(outgoing, {})
            return [], 0.0
        rows, waited = self._collect(ranks, outgoing, [row[own] for row in mine], layout, like[own])
        return add_parts(rows, layout, self._quantize), waited

    def _spread(self, ranks: Sequence[int], spans: Sequence[slice], total: Tensor) -> float:
        """Send this member's slice of `total`, receive the other members' slices, and return the seconds this took."""
        own = spans[ranks.index(self._group.rank)]
        outgoing = {}
        if length_of(own):
            outgoing = dict.fromkeys(ranks, self._packed([total[own]]))
            del outgoing[self._group.rank]
        return self._swap(outgoing, {peer: total[span] for peer, span in self._of_others(ranks, spans)})

    def _of_others(self, ranks: Sequence[int], spans: Sequence[slice]) -> list[tuple[int, slice]]:
        """Return the other members that have a non-empty slice, each with its slice."""
        return [(p, span) for p, span in zip(ranks, spans, strict=True) if p != self._group.rank and length_of(span)]

    def _collect(
        self, ranks: Sequence[int], outgoing: dict[int, Tensor], mine: Sequence[Tensor], layout: Layout, like: Tensor
    ) -> tuple[list[Tensor], float]:
        """Return the rows of all these members' nodes, in order, and the seconds spent waiting for them."""
        length = len(like)
        received: dict[int, Tensor] = {}
        for peer, nodes in zip(ranks, layout.nodes, strict=True):
            if peer != self._group.rank and nodes:
                key = (peer, len(nodes) * length, like.dtype)
                if key not in self._buffers:
                    self._buffers[key] = torch.empty(len(nodes) * length, dtype=like.dtype, device=like.device)
                received[peer] = self._buffers[key]
        waited = self._swap(outgoing, received, length)
        rows: list[Tensor] = []
        for peer in ranks:
            if peer == self._group.rank:
                rows += mine
            elif peer in received:
                rows += received[peer].view(-1, length)
        return rows, waited

    def _swap(self, outgoing: dict[int, Tensor], incoming: dict[int, Tensor], length: int = 0) -> float:
        """Send the packed rows and fill `incoming` with the peers' rows; return the seconds this took."""
        began = time.perf_counter()
        if self._coding is None:
            self._group.swap(outgoing, incoming)
            return time.perf_counter() - began
        landing: dict[int, Tensor] = {}
        for peer, tensor in incoming.items():
            rows = len(tensor) // length if length else 1
            size = self._coding.size(length or len(tensor))
            landing[peer] = torch.empty(rows, size, dtype=torch.uint8, device=tensor.device)
        self._group.swap(outgoing, {peer: packed.view(-1) for peer, packed in landing.items()})
        for peer, packed in landing.items():
            for row, vector in zip(packed, incoming[peer].view(len(packed), -1), strict=True):
                self._coding.unpack(row, vector)
        return time.perf_counter() - began

    def _packed(self, rows: Sequence[Tensor]) -> Tensor:
        """Return the rows in the form in which they are sent, concatenated."""
        packed = rows if self._coding is None else [self._coding.pack(row) for row in rows]
        return packed[0] if len(packed) == 1 else torch.cat(list(packed))


# --- The sum of a gradient in buckets ---


class BucketSums:
    """Adds the buckets of one update, in the order in which `give` gets them, in a thread beside the training.

    Leaving the block waits for running additions.
    """

    def __init__(self, reduction: Reduction, shards: int, total: Tensor) -> None:
        self._reduction = reduction
        self._shards = shards
        self._total = total
        self._thread = ThreadPoolExecutor(1, "exchange")
        self._under_way: list[Future[float]] = []
        self._is_broken = False

    def give(self, place: slice, rows: list[Tensor]) -> None:
        """Start to add all members' sums of that part of the gradient; `rows` are this member's."""
        self._under_way.append(self._thread.submit(self._add, place, rows))

    def wait(self) -> float:
        """Wait for all totals, and return the seconds for which the thread waited for peers. Raises PeerLost."""
        return sum(future.result() for future in self._under_way)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(cancel_futures=True)

    def _add(self, place: slice, rows: list[Tensor]) -> float:
        if self._is_broken:
            return 0.0
        try:
            part = self._total[place]
            return self._reduction(rows, self._shards, part).put_into(part)
        except BaseException:
            self._is_broken = True
            raise


# --- The strategy ---


class AllReduce:
    """The strategy of AllReduce.

    By default, whole rows are added at once. A compressed gradient is added separately from the rest of the row, and a
    large gradient in buckets during the backward pass.
    """

    def __init__(self, setting: Setting) -> None:
        replica = setting.replica
        group = setting.group
        self._replica = replica
        self._group = group
        self._watchdog = setting.watchdog
        self._compression = compression_in(replica)
        self.stream = stream_of(replica) if group.likes_buckets else None
        self._reduction = Reduction(group, self._compression.coding if self._compression else None)
        self._uncoded = Reduction(group)
        self._stopwatch = Stopwatch() if replica.growth.course.looks_at_clock else None
        self._run_of = partial(run_of, group.rank, group.size)
        self._gradient_length = replica.parameters.length
        # Where the total goes. When whole rows are added, the last addition may leave it in one of them instead.
        self._room = torch.empty(replica.length, dtype=torch.float32, device=replica.device)

    def round(self, stop_requested: Callable[[], bool]) -> Round:
        """Make one update: add this member's shards, reduce the sums over all members, and commit the total."""
        replica = self._replica
        group = self._group
        step = replica.plan.step_at(replica.position)
        run = self._run_of(step)  # the shards [lo, hi) of this member
        stop = stop_requested()
        began = time.perf_counter()
        if self.stream is not None:
            partials, computed, waited = self._reduce_in_buckets(self.stream, step, run, stop=stop)
            total = self._room
        else:
            with self._watchdog:
                partials = replica.partials(step, run, stop=stop, runs=self._run_of)
            if self._stopwatch:
                self._write_timing(partials)  # before the rows are added: the total brings it to all members
            computed = time.perf_counter()
            rows = [node.row for node in partials]
            if self._compression is None:
                reduced = self._reduction(rows, step.shards, self._room)
                total = reduced.total
                waited = reduced.wait_seconds
            else:
                total = self._room
                gradient = total[: self._gradient_length]
                reduced = self._reduction([row[: self._gradient_length] for row in rows], step.shards, gradient)
                waited = reduced.put_into(gradient) + self._reduce_rest(rows, step.shards)
        exchanged = time.perf_counter()
        committed = replica.commit(step, total)
        replica.rows.release(partials)  # not before: the total may be one of these rows
        now = time.perf_counter()
        if self._stopwatch:
            self._stopwatch.lap(step, group.size, now - began)
        figures = NO_FIGURES
        if self._compression is not None:
            figures = ExchangeFigures(compression_error=self._compression.error)
        return Round(
            done=((step, committed),),
            stop=committed.stop,
            compute_seconds=computed - began + now - exchanged,
            exchange_seconds=exchanged - computed - waited,
            wait_seconds=waited,
            figures=figures,
        )

    def _write_timing(self, partials: Sequence[Partial]) -> None:
        assert self._stopwatch
        if self._group.rank == 0:  # which has shard 0
            self._replica.tail.write_timing(partials[0].row, self._stopwatch.timing)

    def _reduce_rest(self, rows: Sequence[Tensor], shards: int) -> float:
        """Put the total of the rest of the row, after the gradient, into `_room` uncompressed; return the seconds spent
        waiting.
        """
        rest = self._room[self._gradient_length :]
        return self._uncoded([row[self._gradient_length :] for row in rows], shards, rest).put_into(rest)

    def _reduce_in_buckets(
        self, stream: Stream, step: Step, run: tuple[int, int], *, stop: bool
    ) -> tuple[list[Partial], float, float]:
        """Put the total into `_room`, adding its gradient during the backward pass of the last shard.

        Return this member's sums, the time at which they were computed, and the seconds spent waiting for peers
        since.
        """
        replica = self._replica
        with BucketSums(self._reduction, step.shards, self._room) as bucket_sums:

            def in_buckets(nodes: Sequence[tuple[int, int]], compute: ComputeShard) -> list[Partial]:
                return stream.sums(nodes, compute, bucket_sums.give)

            with self._watchdog:
                partials = replica.partials(step, run, stop=stop, runs=self._run_of, sum_nodes=in_buckets)
            if self._stopwatch:
                self._write_timing(partials)
            computed = time.perf_counter()
            waited = bucket_sums.wait()
        if stream.is_wrong:  # without this member no other one completes the rest or takes the step
            raise PeerLost("a gradient was sent before it was final; the next ones are sent later")
        waited += self._reduce_rest([node.row for node in partials], step.shards)
        return partials, computed, min(waited, time.perf_counter() - computed)
