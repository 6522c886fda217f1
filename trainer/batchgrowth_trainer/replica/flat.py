"""The flat vectors of a replica: its parameters, its buffers, and the rows that hold the sums of an update.

All parameters are views of one vector, and all buffers of one dtype are views of another. So an update needs one
broadcast, one checkpoint tensor and one optimizer step instead of a call per tensor.

A row has L = `Rows.length` float32 numbers, in three parts:
    gradient   of all parameters, `FlatParameters.length` numbers
    change     of all buffers, `FlatBuffers.length` numbers
    tail       for each parameter the number of examples without a gradient of it, the quantities, two numbers of timing
               if the growth looks at a clock, and a member's request to stop
Rows are added along one fixed tree (batchgrowth/shards.py), so every number in them has the same bits for any number
of members.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import dataclass
from itertools import pairwise

import torch
from batchgrowth.errors import WorkloadError
from batchgrowth.looks import NOT_TIMED, Timing
from batchgrowth.plan import Step
from torch import Tensor, nn

from batchgrowth_trainer.replica.modules import Modules, Region, View, places_of, regions_of, repeats_elements
from batchgrowth_trainer.user_errors import reported_as_workload_error, seen_at

_ALIGNMENT = 16  # elements (64 bytes of float32), so that kernels take the same code path for every view


@dataclass(frozen=True, slots=True)
class Span:
    """The position of one tensor, or of a region that several share, in its flat vector."""

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


@dataclass(frozen=True, slots=True)
class _Tied:
    """The position of a tensor in a region that it shares with others."""

    name: str
    region: Span
    view: View

    def of(self, flat: Tensor) -> Tensor:
        """Return the tensor's view of `flat`."""
        return self.view.of(self.region.of(flat).view(-1))


class _FlatLayout:
    """The positions of tensors in a flat vector; those that share memory share a region, which has one span.

    `of` has the position of each tensor, and of each follower of a region, by name.
    """

    def __init__(self, named: Mapping[str, Tensor], regions: Sequence[Region]) -> None:
        region_of = {name: region for region in regions for name in region.owners}
        units: dict[str, Tensor] = {}
        for name, tensor in named.items():
            region = region_of.get(name)
            if region is None or (len(region.owners) == 1 and tensor.is_contiguous()):
                units[name] = tensor
            elif name == next(iter(region.owners)):
                units[name] = region.memory_of(tensor)
        self.spans, self.length = _lay_out_spans(list(units.items()))
        self._units = units
        self.of: dict[str, Span | _Tied] = {span.name: span for span in self.spans}
        self.tied: list[list[str]] = []
        """For each region that several tensors share, their names."""
        for region in regions:
            first, *others = region.owners
            if others:
                self.tied.append([first, *others])
            if first in self.of:
                whole = next(span for span in self.spans if span.name == first)
                for name, view in (region.owners | region.followers).items():
                    if len(region.owners) > 1 or name != first or not named[first].is_contiguous():
                        self.of[name] = _Tied(name, whole, view)

    def copy_into(self, flat: Tensor) -> None:
        """Copy the tensors to their positions."""
        for span in self.spans:
            span.of(flat).copy_(self._units[span.name])


LOSS_PREFIX = "loss."
"""Prefix of the names of the tensors of a module that computes the loss."""


def modules_of(model: nn.Module, loss: nn.Module | None = None) -> Modules:
    """Return what is trained, by the prefix of its names: the model, and the loss if that is a module."""
    return {"": model} if loss is None else {"": model, LOSS_PREFIX: loss}


def named_parameters(modules: Modules) -> dict[str, nn.Parameter]:
    """Return the parameters of these modules by name, each once."""
    known: set[int] = set()
    found = {}
    for prefix, module in modules.items():
        for name, parameter in module.named_parameters():
            if id(parameter) not in known:
                known.add(id(parameter))
                found[f"{prefix}{name}"] = parameter
    return found


class GradientLost(Exception):
    """A parameter's gradient is not where backward should have left it; the text is the parameter's name."""


class FlatParameters:
    """All trained parameters as one float32 leaf, `vector`, shape (length,); the modules' parameters are views of it.

    Frozen parameters are left out, so that weight decay does not change them. Parameters that share memory share it in
    the vector too, where their gradients are added.
    """

    def __init__(
        self,
        model: nn.Module,
        device: torch.device,
        is_last: Callable[[str, Tensor], bool] = lambda *_: False,
        loss: nn.Module | None = None,
    ) -> None:
        """Raise WorkloadError if elements of a parameter share memory, or a registered tensor lies partly in it."""
        modules = modules_of(model, loss)
        trained = {name: p for name, p in named_parameters(modules).items() if p.requires_grad}
        for name, parameter in trained.items():
            if repeats_elements(parameter):
                raise WorkloadError(
                    f"elements of the parameter {name} share memory with each other, so no optimizer can move them; "
                    f"give it memory of its own, as in nn.Parameter(tensor.clone()){seen_at(None)}"
                )
        last = {name: p for name, p in trained.items() if is_last(name, p)}
        ordered = {name: p for name, p in trained.items() if name not in last} | last
        layout = _FlatLayout(ordered, self._regions(modules, ordered))
        self.spans = layout.spans
        self.length = layout.length
        self.tied = layout.tied
        self._layout = layout
        late = [span.start for span in self.spans if span.name in last]
        self.last_from = late[0] if late else self.length
        """The start of the parameters for which `is_last` is true; they lie behind the others."""
        self._starts = [*(span.start for span in self.spans), self.length]
        self.lengths = [end - start for start, end in pairwise(self._starts)]
        """The number of elements from each parameter's start to the next one's; elements between two are 0."""
        self.vector = nn.Parameter(torch.zeros(self.length, dtype=torch.float32, device=device), requires_grad=True)
        layout.copy_into(self.vector.data)
        self._names = list(ordered)
        self.followers = layout.of.keys() - ordered.keys()
        """The names of other tensors that lie in the memory of a parameter."""
        self._adopt(modules)

    @staticmethod
    def _regions(modules: Modules, trained: Mapping[str, Tensor]) -> list[Region]:
        known = {id(parameter) for parameter in trained.values()}
        others: dict[str, Tensor] = {}
        loose: dict[str, Tensor] = {}
        for name, place in places_of(modules).items():
            if id(place.tensor) not in known:
                (others if place.is_registered else loose)[name] = place.tensor
        return regions_of({name: parameter.data for name, parameter in trained.items()}, others, loose)

    def _adopt(self, modules: Modules) -> None:
        """Make these modules' parameters views of the vector."""
        parameters = named_parameters(modules)
        self.members = [(parameters[name], self._layout.of[name]) for name in self._names]
        for parameter, span in self.members:
            parameter.data = span.of(self.vector.data)
        if not self.followers:
            return
        places = places_of(modules)
        for name in self.followers & places.keys():
            tensor = places[name].tensor
            if tensor.device == self.vector.device:
                tensor.data = self._layout.of[name].of(self.vector.data)

    def of_copy(self, model: nn.Module, loss: nn.Module | None = None, *, shared: bool) -> "FlatParameters":
        """Return the parameters of a copy of the modules, as views of the same vector if `shared`, else of a copied
        vector.
        """
        other = copy(self)
        if not shared:
            other.vector = nn.Parameter(self.vector.data.clone())
        other._adopt(modules_of(model, loss))
        return other

    def gradient_views(self, row: Tensor) -> list[Tensor]:
        """Return views of `row`, one per trained parameter, for backward to accumulate into."""
        return [span.of(row) for _, span in self.members]

    def collect_into(self, views: list[Tensor]) -> None:
        """Make the next backward accumulate into `views`, which must be zero."""
        for (parameter, _), view in zip(self.members, views, strict=True):
            parameter.grad = view

    def missed_in(self, done: "Partial") -> list[int]:
        """Return the indices of the parameters that backward has not reached since the last call.

        Raises GradientLost if a call of the user's code has moved the gradient of a parameter elsewhere.
        """
        missed = []
        for index, ((parameter, span), view) in enumerate(zip(self.members, done.of_parameters, strict=True)):
            if parameter.grad is not view:
                raise GradientLost(span.name)
            version = view._version
            if version == done.versions[index]:
                missed.append(index)
            done.versions[index] = version
        return missed

    def unreached(self, without: Sequence[float], examples: int) -> list[int]:
        """Return the indices of the spans that got a gradient from none of the `examples`; see `Sums.without`."""
        reached = {
            span.region.name if isinstance(span, _Tied) else span.name
            for (_, span), number in zip(self.members, without, strict=True) if number != examples
        }  # fmt: skip
        return [index for index, span in enumerate(self.spans) if span.name not in reached]

    def cuts(self, parts: int) -> list[int]:
        """Cut the parameters into `parts` parts of about equal length: return the index of each part's first parameter,
        then the number of parameters.
        """
        wanted = [self.length * part / parts for part in range(parts + 1)]
        starts = self._starts
        return [min(range(len(starts)), key=lambda number: abs(starts[number] - each)) for each in wanted]

    def places(self, cuts: Sequence[int]) -> list[slice]:
        """Return the slices of the vector from each of the `cuts`, which are indices of parameters, to the next."""
        return [slice(self._starts[lo], self._starts[hi]) for lo, hi in pairwise(cuts)]


Start = dict[torch.dtype, Tensor]
"""Copies of the vectors of buffers, by dtype."""

_LARGEST = 1e37
"""A number of this size stands for infinity: an observer's minimum may begin at the largest float, and a change from
there, times the examples of a shard, would overflow.
"""
_TINY = 1e-30  # the change that stands for "finite now, and 0": a change of 0 would mean "unchanged"


@dataclass(frozen=True, slots=True)
class _Slot:
    """A place where a module holds a buffer; a model may replace the buffer there instead of writing into it."""

    name: str
    owner: nn.Module
    key: str
    view: Tensor
    shape: tuple[int, ...]
    elements: int


def _has_begun(vector: Tensor) -> Tensor:
    """Return a mask of the numbers other than the infinity, or the largest number, with which an observer begins."""
    if not vector.is_floating_point():
        return torch.isfinite(vector)
    return vector.abs() < _LARGEST


class FlatBuffers:
    """All buffers, one flat vector per dtype; the changes that shards make are summed and averaged like gradients.

    So batch norm's running statistics are the same for any number of workers: each shard starts from the same buffers
    (`restore`), and `advance` moves them by the mean change. Buffers that share memory share it in the vector too.
    """

    def __init__(
        self,
        model: nn.Module,
        device: torch.device,
        loss: nn.Module | None = None,
        without: Set[str] = frozenset(),
    ) -> None:
        """Leave out the buffers named in `without`, which lie in the memory of a parameter."""
        modules = modules_of(model, loss)
        self.vectors: dict[torch.dtype, Tensor] = {}
        self.spans: dict[torch.dtype, list[Span]] = {}
        self._slots: list[_Slot] = []
        tensors: dict[int, tuple[str, Tensor]] = {}
        holders: dict[int, list[tuple[nn.Module, str]]] = {}  # two modules may share a buffer, which is copied once
        seen: set[nn.Module] = set()
        for prefix, root in modules.items():
            for path, module in root.named_modules(memo=seen):
                for key, tensor in module._buffers.items():
                    name = f"{prefix}{path}.{key}" if path else f"{prefix}{key}"
                    if tensor is not None and name not in without:
                        tensors.setdefault(id(tensor), (name, tensor))
                        holders.setdefault(id(tensor), []).append((module, key))
        places = places_of(modules)
        loose = {name: place.tensor for name, place in places.items() if not place.is_registered}
        for dtype in sorted({tensor.dtype for _, tensor in tensors.values()}, key=str):
            named = {name: tensor for name, tensor in tensors.values() if tensor.dtype is dtype}
            layout = _FlatLayout(named, regions_of(named, {}, loose))
            flat = torch.zeros(layout.length, dtype=dtype, device=device)
            layout.copy_into(flat)
            for name, tensor in named.items():
                view = layout.of[name].of(flat)
                if tensor.device == device and not tensor.is_inference():
                    tensor.data = view  # the same object: the model may hold it elsewhere as well
                    view = tensor
                for owner, key in holders[id(tensor)]:
                    owner._buffers[key] = view
                    self._slots.append(_Slot(name, owner, key, view, tuple(view.shape), view.numel()))
            for name in layout.of.keys() - named.keys():
                if places[name].tensor.device == device:
                    places[name].tensor.data = layout.of[name].of(flat)
            self.vectors[dtype] = flat
            self.spans[dtype] = layout.spans
        self.length = sum(v.numel() for v in self.vectors.values())
        self._unbounded = {dtype for dtype, flat in self.vectors.items() if not _has_begun(flat).all()}

    def owner_of(self, name: str) -> nn.Module:
        """Return the module that has the buffer of that name."""
        return next(slot.owner for slot in self._slots if slot.name == name)

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

        A buffer that was infinite, or near the largest number, and is a smaller number now, as an observer's minimum
        may be, counts as started from 0.
        Raises WorkloadError for a buffer that was resized, or replaced by one of another shape or by fractions.
        """
        # Only what is in the vectors is averaged, so take over the values of buffers that the model has replaced.
        for slot in self._slots:
            held = slot.owner._buffers
            current = held[slot.key] if slot.key in held else None  # noqa: SIM401  (a scripted module's has no get)
            if slot.view.numel() != slot.elements:
                raise WorkloadError(
                    f"the buffer model.{slot.name}, of shape {slot.shape}, is resized to {tuple(slot.view.shape)} when "
                    "the model is called; give it the same shape in every call of the model, and in __init__, or call "
                    f"the model once before returning it{seen_at(slot.owner)}"
                )
            if current is not slot.view and current is not None:
                if current.is_floating_point() and not slot.view.is_floating_point():
                    raise WorkloadError(
                        f"the buffer model.{slot.name}, of {slot.view.dtype}, is replaced by one of {current.dtype} "
                        "when the model is called, whose fractions it cannot keep; register it with that dtype"
                        f"{seen_at(slot.owner)}"
                    )
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
            wide = dtype  # one in which the difference has a sign
            if not dtype.is_floating_point:
                wide = torch.int64
            part.copy_(flat.to(wide) - start[dtype].to(wide))
            if dtype in self._unbounded:  # an unchanged -inf gives NaN above, and must give 0
                begun = _has_begun(flat) & ~_has_begun(start[dtype])
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
                    flat.masked_fill_(~_has_begun(flat) & (part != 0), 0.0)
                flat.add_(part.to(dtype))
            else:
                flat.copy_(flat.long() + part.round().long())
            at += flat.numel()


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number in the tail of a row.

    `write(place, summed loss, summed gradient, step, examples)` writes the summand of a shard of so many examples to
    its place, a scalar view of the row.
    """

    name: str
    write: Callable[[Tensor, Tensor, Tensor, Step, int], object]


def _write_loss(place: Tensor, loss: Tensor, _gradient: Tensor, _step: Step, _examples: int) -> None:
    place.copy_(loss)


def _write_square(place: Tensor, _loss: Tensor, gradient: Tensor, step: Step, examples: int) -> None:
    torch.dot(gradient, gradient, out=place)
    largest = largest_shard(step)
    if largest != examples:  # most shards are of the largest size, and the product takes time
        place.mul_(largest / examples)


LOSS = Quantity("loss", _write_loss)
SHARD_SQUARES = Quantity("shard squares", _write_square)


def largest_shard(step: Step) -> int:
    """Return the number of examples of the update's largest shard; any other shard has at most one less."""
    return -(-step.examples // step.shards)


@dataclass(frozen=True, slots=True)
class Sums:
    """The numbers in the tail of a total: the quantities by name, the timing, and whether a stop was requested.

    `without` has for each parameter the number of examples in whose shards backward did not reach it.
    """

    without: Sequence[float]
    by_name: Mapping[str, float]
    timing: Timing
    stop: bool


class Tail:
    """The last numbers of a row.

    These are the numbers of examples without a gradient, by parameter; the quantities; the timing of an earlier update
    if the growth looks at a clock; and a 1 if a member requests a stop after the update.
    """

    def __init__(self, quantities: Sequence[Quantity], *, clock: bool, parameters: int = 0) -> None:
        self._parameters = parameters
        self._timing = 2 if clock else 0
        self.length = parameters + len(quantities) + self._timing + 1
        self.quantities = tuple(quantities)

    def without(self, row: Tensor) -> Tensor:
        """Return the place of the numbers of examples without a gradient, shape (parameters,)."""
        return row[-self.length :][: self._parameters]

    def places(self, row: Tensor) -> list[Tensor]:
        """Return scalar views of the row, one per quantity."""
        return list(row[-self.length :][self._parameters :][: len(self.quantities)].unbind())

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
            by_name[quantity.name] = numbers[self._parameters + at]
        timing = Timing(*numbers[-3:-1]) if self._timing else NOT_TIMED
        return Sums(numbers[: self._parameters], by_name, timing, numbers[-1] > 0), further


@dataclass(slots=True)
class Partial:
    """The sum over the shards [lo, hi), a node of the fixed tree, in a row of shape (L,).

    The other tensors are views of the row: the gradient, the gradient of each parameter, the change of the buffers, the
    numbers of examples without a gradient, and the places of the quantities. The views are kept with the row, because
    making them takes as long as using them. `versions` has torch's count of the writes to each parameter's gradient.
    """

    lo: int
    hi: int
    row: Tensor
    gradient: Tensor
    of_parameters: list[Tensor]
    buffers: Tensor
    without: Tensor
    quantities: list[Tensor]
    versions: list[int]


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
        row = torch.zeros(self.length, dtype=torch.float32, device=self._parameters.vector.device)
        of_parameters = [view.data for view in self._parameters.gradient_views(row)]  # with versions of their own
        return Partial(
            lo=shard,
            hi=shard + 1,
            row=row,
            gradient=row[: self._parameters.length],
            of_parameters=of_parameters,
            buffers=row[self._buffers],
            without=self._tail.without(row),
            quantities=self._tail.places(row),
            versions=[view._version for view in of_parameters],
        )

    def release(self, partials: Iterable[Partial]) -> None:
        """Keep these rows for the next update."""
        self._free.extend(partials)

    @property
    def free(self) -> int:
        """Return the number of rows that are free for the next update."""
        return len(self._free)
