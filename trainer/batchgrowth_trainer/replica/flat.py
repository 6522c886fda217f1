"""The flat vectors of a replica: its parameters, its buffers, and the rows that hold the sums of an update.

All parameters are views of one vector, and all buffers of one dtype are views of another. So an update needs one
broadcast, one checkpoint tensor and one optimizer step instead of a call per tensor.

A row has L = `Rows.length` float32 numbers, in three parts:
    gradient   of all parameters, `FlatParameters.length` numbers
    change     of all buffers, `FlatBuffers.length` numbers
    tail       the quantities, two numbers of timing if the growth looks at a clock, and a member's request to stop
Rows are added along one fixed tree (batchgrowth/sum_tree.py), so every number in them has the same bits for any number
of members.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import dataclass
from itertools import pairwise

import torch
from batchgrowth.looks import NOT_TIMED, Timing
from batchgrowth.plan import Step
from torch import Tensor, nn

from batchgrowth_trainer.user_errors import reported_as_workload_error, seen_at

_ALIGNMENT = 16  # elements (64 bytes of float32), so that kernels take the same code path for every view


@dataclass(frozen=True, slots=True)
class Span:
    """The position of one tensor in its flat vector."""

    name: str
    shape: tuple[int, ...]
    start: int

    @property
    def place(self) -> slice:
        """Return the tensor's elements in the flat vector."""
        return slice(self.start, self.start + torch.Size(self.shape).numel())

    def of(self, flat: Tensor) -> Tensor:
        """Return the tensor's view of `flat`."""
        return flat[self.place].view(self.shape)


def _lay_out_spans(named: Sequence[tuple[str, Tensor]]) -> tuple[list[Span], int]:
    """Return adjacent spans for the tensors, and the length of the vector that holds them."""
    spans = []
    end = 0
    for name, tensor in named:
        spans.append(Span(name, tuple(tensor.shape), end))
        end += -(-tensor.numel() // _ALIGNMENT) * _ALIGNMENT
    return spans, end


class FlatParameters:
    """All trained parameters as one float32 leaf, `vector`, shape (length,); the module's parameters are views of it.

    Frozen parameters are left out, so that weight decay does not change them.
    """

    def __init__(
        self, model: nn.Module, device: torch.device, is_last: Callable[[str, Tensor], bool] = lambda *_: False
    ) -> None:
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        last = [one for one in named if is_last(*one)]
        self.spans, self.length = _lay_out_spans([*(one for one in named if not is_last(*one)), *last])
        self.last_from = self.spans[-len(last)].start if last else self.length
        """The start of the parameters for which `is_last` is true; they lie behind the others."""
        self._starts = [*(span.start for span in self.spans), self.length]
        self.lengths = [end - start for start, end in pairwise(self._starts)]
        """The elements from each parameter to the next; those between two are 0."""
        self.vector = nn.Parameter(torch.zeros(self.length, device=device), requires_grad=True)
        parameters = dict(named)
        for span in self.spans:
            span.of(self.vector.data).copy_(parameters[span.name].data)
        self._adopt(parameters)

    def _adopt(self, parameters: dict[str, nn.Parameter]) -> None:
        """Make these parameters views of the vector."""
        self.members = [(parameters[span.name], span) for span in self.spans]
        for parameter, span in self.members:
            parameter.data = span.of(self.vector.data)

    def of_copy(self, model: nn.Module, *, shared: bool) -> "FlatParameters":
        """Return the parameters of a copy of the model, as views of the same vector if `shared`, else of a copied
        vector.
        """
        other = copy(self)
        if not shared:
            other.vector = nn.Parameter(self.vector.data.clone())
        other._adopt(dict(model.named_parameters()))
        return other

    def gradient_views(self, row: Tensor) -> list[Tensor]:
        """Return views of `row`, one per trained parameter, for backward to accumulate into."""
        return [span.of(row) for _, span in self.members]

    def collect_into(self, views: list[Tensor]) -> None:
        """Make the next backward accumulate into `views`, which must be zero."""
        for (parameter, _), view in zip(self.members, views, strict=True):
            parameter.grad = view

    def cuts(self, parts: int) -> list[int]:
        """Cut the parameters into N parts of about equal length: return the index at which each begins, and the number
        of all.
        """
        wanted = [self.length * part / parts for part in range(parts + 1)]
        starts = self._starts
        return [min(range(len(starts)), key=lambda number: abs(starts[number] - each)) for each in wanted]

    def places(self, cuts: Sequence[int]) -> list[slice]:
        """Return the slices of the vector from each of these parameters, by index, to the next."""
        return [slice(self._starts[lo], self._starts[hi]) for lo, hi in pairwise(cuts)]


Start = dict[torch.dtype, Tensor]
"""Copies of the vectors of buffers, by dtype."""

_TINY = 1e-30  # the change that stands for "finite now, and 0": a change of 0 would mean "unchanged"


@dataclass(frozen=True, slots=True)
class _Slot:
    """A place where a module holds a buffer; a model may replace the buffer there instead of writing into it."""

    name: str
    owner: nn.Module
    key: str
    view: Tensor


class FlatBuffers:
    """All buffers, one flat vector per dtype; the changes that shards make are summed and averaged like gradients."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self.vectors: dict[torch.dtype, Tensor] = {}
        self.spans: dict[torch.dtype, list[Span]] = {}
        self._slots: list[_Slot] = []
        tensors: dict[int, tuple[str, Tensor]] = {}
        holders: dict[int, list[tuple[nn.Module, str]]] = {}  # two modules may share a buffer, which is copied once
        for prefix, module in model.named_modules():
            for key, tensor in module._buffers.items():
                if tensor is not None:
                    tensors.setdefault(id(tensor), (f"{prefix}.{key}" if prefix else key, tensor))
                    holders.setdefault(id(tensor), []).append((module, key))
        for dtype in sorted({tensor.dtype for _, tensor in tensors.values()}, key=str):
            named = [(name, tensor) for name, tensor in tensors.values() if tensor.dtype is dtype]
            spans, length = _lay_out_spans(named)
            flat = torch.zeros(length, dtype=dtype, device=device)
            for (_, tensor), span in zip(named, spans, strict=True):
                view = span.of(flat)
                view.copy_(tensor)
                for owner, key in holders[id(tensor)]:
                    owner._buffers[key] = view
                    self._slots.append(_Slot(span.name, owner, key, view))
            self.vectors[dtype] = flat
            self.spans[dtype] = spans
        self.length = sum(v.numel() for v in self.vectors.values())
        self._unbounded = {dtype for dtype, flat in self.vectors.items() if not torch.isfinite(flat).all()}

    def clone(self) -> Start:
        """Return a copy of every vector, the state from which each shard starts."""
        return {dtype: flat.clone() for dtype, flat in self.vectors.items()}

    @contextmanager
    def kept(self) -> Iterator[Start]:
        """Yield a copy of every vector, and reset the vectors to it after the block."""
        start = self.clone()
        try:
            yield start
        except BaseException:
            with suppress(torch.AcceleratorError):  # a GPU that has failed resets nothing; its first error is raised
                self.restore(start)
            raise
        self.restore(start)

    def restore(self, start: Start) -> None:
        """Reset the vectors to `start`, and put their views back into modules that replaced them."""
        for slot in self._slots:
            slot.owner._buffers[slot.key] = slot.view
        for dtype, flat in self.vectors.items():
            flat.copy_(start[dtype])

    def change_since(self, start: Start, examples: int, out: Tensor) -> None:
        """Write (now - start) * examples into `out`, shape (length,); an unchanged buffer gives exact zeros.

        A buffer that was infinite and is finite now, as an observer's minimum may be, counts as started from 0.
        Raises WorkloadError for a buffer that was replaced by one of another shape.
        """
        # Only what is in the vectors is averaged, so take over the values of buffers that the model has replaced.
        for slot in self._slots:
            current = slot.owner._buffers[slot.key]
            if current is not slot.view and current is not None:
                with reported_as_workload_error(
                    f"replacing the buffer model.{slot.name}, of shape {tuple(slot.view.shape)}, by one of shape "
                    f"{tuple(current.shape)}",
                    f"give it the same shape in every call of the model, and in __init__{seen_at(slot.owner)}",
                ):
                    slot.view.copy_(current)
                slot.owner._buffers[slot.key] = slot.view
        at = 0
        for dtype, flat in self.vectors.items():
            part = out[at : at + flat.numel()]
            part.copy_(flat.float() - start[dtype].float() if dtype is torch.bool else flat - start[dtype])
            if dtype in self._unbounded:  # an unchanged -inf gives NaN above, and must give 0
                begun = torch.isfinite(flat) & ~torch.isfinite(start[dtype])
                part.copy_(torch.where(begun, flat.masked_fill(flat == 0, _TINY), part))
                part.masked_fill_(flat == start[dtype], 0.0)
            part.mul_(examples)
            at += flat.numel()

    def advance(self, mean_change: Tensor) -> None:
        """Add the mean change, shape (length,), to the vectors; integers and flags are rounded."""
        at = 0
        for dtype, flat in self.vectors.items():
            part = mean_change[at : at + flat.numel()]
            if dtype is torch.bool:
                flat.copy_((flat.float() + part).round() != 0)
            elif dtype.is_floating_point:
                if dtype in self._unbounded:
                    flat.masked_fill_(~torch.isfinite(flat) & (part != 0), 0.0)
                flat.add_(part.to(dtype))
            else:
                flat.add_(part.round().to(dtype))
            at += flat.numel()


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number in the tail of a row.

    `write(place, summed loss, summed gradient, weight)` writes a shard's summand to its place, a scalar view of the
    row. `weight` is the size of the update's largest shard divided by the size of this shard.
    """

    name: str
    write: Callable[[Tensor, Tensor, Tensor, float], object]


def _write_loss(place: Tensor, loss: Tensor, _gradient: Tensor, _weight: float) -> None:
    place.copy_(loss)


def _write_square(place: Tensor, _loss: Tensor, gradient: Tensor, weight: float) -> None:
    torch.dot(gradient, gradient, out=place)
    if weight != 1:  # most shards have weight 1, and the product takes time
        place.mul_(weight)


LOSS = Quantity("loss", _write_loss)
SHARD_SQUARES = Quantity("shard squares", _write_square)


def largest_shard(step: Step) -> int:
    """Return the number of examples of the update's largest shard; any other shard has at most one less."""
    return -(-step.examples // step.shards)


@dataclass(frozen=True, slots=True)
class Sums:
    """The numbers in the tail of a total: the quantities by name, the timing, and whether a stop was requested."""

    by_name: Mapping[str, float]
    timing: Timing
    stop: bool


class Tail:
    """The last numbers of a row.

    These are the quantities, the timing of an earlier update if the growth looks at a clock, and a 1 if a member
    requests a stop after the update.
    """

    def __init__(self, quantities: Sequence[Quantity], *, clock: bool) -> None:
        self._timing = 2 if clock else 0
        self.length = len(quantities) + self._timing + 1
        self.quantities = tuple(quantities)

    def places(self, row: Tensor) -> list[Tensor]:
        """Return scalar views of the row, one per quantity."""
        return list(row[-self.length :][: len(self.quantities)].unbind())

    def write_timing(self, row: Tensor, timing: Timing) -> None:
        """Write this member's timing; the total needs one member's only. Do nothing if the growth looks at no clock."""
        if self._timing:
            row[-3] = timing.seconds
            row[-2] = timing.load

    def request_stop(self, row: Tensor) -> None:
        """Mark in the row that this member requests a stop."""
        row[-1] = 1.0

    def pop_stop(self, total: Tensor) -> bool:
        """Return whether a stop was requested, and remove the request from the total."""
        requested = bool(total[-1] > 0)
        total[-1] = 0.0
        return requested

    def read(self, total: Tensor, scalar: Tensor) -> tuple[Sums, float]:
        """Return the sums at the end of a total, and `scalar` as a float; a GPU sends both in one transfer."""
        if total.is_cpu:  # here reading each takes less time than putting them together
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


@dataclass(slots=True)
class Partial:
    """The sum over the shards [lo, hi), a node of the fixed tree, in a row of shape (L,).

    The other tensors are views of the row: the gradient, the gradient of each parameter, the change of the buffers, and
    the places of the quantities. The views are kept with the row, because making them takes as long as using them.
    """

    lo: int
    hi: int
    row: Tensor
    gradient: Tensor
    of_parameters: list[Tensor]
    buffers: Tensor
    quantities: list[Tensor]


class Rows:
    """The rows of a replica, on the parameters' device, kept from update to update."""

    def __init__(self, parameters: FlatParameters, buffers: int, tail: Tail) -> None:
        """Lay out a row; `buffers` is the length of the buffers' part of a row."""
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
            kept.row.zero_()  # now, and not when it is released: the total of an update may still be read then
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
        """Keep these rows for the next update."""
        self._free.extend(partials)

    @property
    def free(self) -> int:
        """Return the number of rows that are free for the next update."""
        return len(self._free)
