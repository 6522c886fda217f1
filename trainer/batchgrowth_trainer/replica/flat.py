"""A model's parameters as views of one flat vector, and its buffers as views of one per dtype.

An update then needs one broadcast, one checkpoint tensor and one optimizer step instead of a call per tensor.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from copy import copy
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from batchgrowth_trainer.blame import reported_as_workload_error, seen_at

_ALIGNMENT = 16  # elements (64 bytes of float32), so that kernels take the same code path for every view


def _aligned(count: int) -> int:
    return -(-count // _ALIGNMENT) * _ALIGNMENT


@dataclass(frozen=True, slots=True)
class Span:
    """The position of one tensor in its flat vector."""

    name: str
    shape: tuple[int, ...]
    start: int

    @property
    def place(self) -> slice:
        """The tensor's elements in the flat vector."""
        return slice(self.start, self.start + torch.Size(self.shape).numel())

    def of(self, flat: Tensor) -> Tensor:
        """Return the tensor's view of `flat`."""
        return flat[self.place].view(self.shape)


def _lay_out(named: Sequence[tuple[str, Tensor]]) -> tuple[list[Span], int]:
    spans = []
    end = 0
    for name, tensor in named:
        spans.append(Span(name, tuple(tensor.shape), end))
        end += _aligned(tensor.numel())
    return spans, end


@dataclass(frozen=True, slots=True)
class _Slot:
    """A buffer's place in its module, for models that replace a buffer instead of writing into it."""

    name: str
    owner: nn.Module
    key: str
    view: Tensor

    def copy_replacement(self) -> None:
        """Copy a tensor that replaced the buffer into the view, and put the view back.

        Raises WorkloadError if their shapes differ.
        """
        current = self.owner._buffers[self.key]
        if current is not self.view and current is not None:
            with reported_as_workload_error(
                f"replacing the buffer model.{self.name}, of shape {tuple(self.view.shape)}, by one of shape "
                f"{tuple(current.shape)}",
                f"give it the same shape in every call of the model, and in __init__{seen_at(self.owner)}",
            ):
                self.view.copy_(current)
            self.owner._buffers[self.key] = self.view

    def put_back(self) -> None:
        """Put the view back, without the value of a replacement."""
        self.owner._buffers[self.key] = self.view


class FlatParameters:
    """All trained parameters as one float32 leaf, `vector`, shape (length,); the module's own are views of it.

    Frozen parameters are left out, so that weight decay does not change them.
    """

    def __init__(
        self, model: nn.Module, device: torch.device, is_last: Callable[[str, Tensor], bool] = lambda *_: False
    ) -> None:
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        last = [one for one in named if is_last(*one)]
        self.spans, self.length = _lay_out([*(one for one in named if not is_last(*one)), *last])
        self.last_from = self.spans[-len(last)].start if last else self.length
        """Where those for which `is_last` is true begin; they lie behind the others."""
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
        """Those of a copy of the model: views of the same vector if `shared`, else of a copy of it."""
        other = copy(self)
        if not shared:
            other.vector = nn.Parameter(self.vector.data.clone())
        other._adopt(dict(model.named_parameters()))
        return other

    def gradient_views(self, row: Tensor) -> list[Tensor]:
        """Return views of `row`, one per trained parameter, for backward to accumulate into."""
        return [span.of(row) for _, span in self.members]

    def places(self, cuts: Sequence[int]) -> list[slice]:
        """Return the elements from each of these parameters, by number, to the next."""
        return [slice(self._starts[lo], self._starts[hi]) for lo, hi in pairwise(cuts)]

    def cuts(self, parts: int) -> list[int]:
        """Return the numbers of the parameters at which N parts of about equal length begin, and the number of all."""
        wanted = [self.length * part / parts for part in range(parts + 1)]
        starts = self._starts
        return [min(range(len(starts)), key=lambda number: abs(starts[number] - each)) for each in wanted]

    def collect_into(self, views: list[Tensor]) -> None:
        """Make the next backward accumulate into `views`, which must be zero."""
        for (parameter, _), view in zip(self.members, views, strict=True):
            parameter.grad = view


_Home = tuple[str, Tensor, list[tuple[nn.Module, str]]]
"""A buffer: its name, its tensor, and the (module, key) pairs that hold it."""
_TINY = 1e-30  # the change that stands for "finite now, and 0": a change of 0 would mean "unchanged"


Start = dict[torch.dtype, Tensor]
"""Copies of the vectors of buffers, by dtype."""


class FlatBuffers:
    """All buffers, one flat vector per dtype; the changes by shards are summed and averaged like gradients."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self.vectors: dict[torch.dtype, Tensor] = {}
        self.spans: dict[torch.dtype, list[Span]] = {}
        self._slots: list[_Slot] = []
        homes: dict[int, _Home] = {}
        for name, owner, key, tensor in _buffers(model):
            homes.setdefault(id(tensor), (name, tensor, []))[2].append((owner, key))
        for dtype in sorted({tensor.dtype for _, tensor, _ in homes.values()}, key=str):
            self._adopt(dtype, [home for home in homes.values() if home[1].dtype is dtype], device)
        self.length = sum(v.numel() for v in self.vectors.values())
        self._unbounded = {dtype for dtype, flat in self.vectors.items() if not torch.isfinite(flat).all()}

    def _adopt(self, dtype: torch.dtype, homes: list[_Home], device: torch.device) -> None:
        spans, length = _lay_out([(name, tensor) for name, tensor, _ in homes])
        flat = torch.zeros(length, dtype=dtype, device=device)
        for (_, tensor, owners), span in zip(homes, spans, strict=True):
            view = span.of(flat)
            view.copy_(tensor)
            for owner, key in owners:
                owner._buffers[key] = view
                self._slots.append(_Slot(span.name, owner, key, view))
        self.vectors[dtype] = flat
        self.spans[dtype] = spans

    def clone(self) -> Start:
        """Return a copy of every vector: the state each shard starts from."""
        return {dtype: flat.clone() for dtype, flat in self.vectors.items()}

    def kept(self) -> AbstractContextManager[Start]:
        """Return a copy of every vector, to which they are reset after the block.

        An error inside it stays the one that is raised if a GPU has failed and so can reset nothing.
        """
        return self._kept() if self._slots else nullcontext({})

    @contextmanager
    def _kept(self) -> Iterator[Start]:
        start = self.clone()
        try:
            yield start
        except BaseException:
            with suppress(torch.AcceleratorError):
                self.restore(start)
            raise
        self.restore(start)

    def restore(self, start: Start) -> None:
        """Reset the vectors to `start`, and put their views back into modules that replaced them."""
        for slot in self._slots:
            slot.put_back()
        for dtype, flat in self.vectors.items():
            flat.copy_(start[dtype])

    def change_since(self, start: Start, examples: int, out: Tensor) -> None:
        """Write (now - start) * examples into `out`, shape (length,); an unchanged buffer gives exact zeros.

        Raises WorkloadError for a buffer that was replaced by one of another shape.
        A buffer that was infinite and is finite now, as an observer's minimum may be, counts as started from 0.
        """
        for slot in self._slots:
            slot.copy_replacement()
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

    def follow(self, sums: Tensor, examples: int) -> None:
        """Advance by the mean of a change that was summed over these examples, the first of `sums`; overwrites it."""
        if self.length:
            self.advance(self.clone(), sums[: self.length].div_(examples))

    def advance(self, start: Start, mean_change: Tensor) -> None:
        """Set every vector to start + mean change; integers and flags are rounded."""
        at = 0
        for dtype, flat in self.vectors.items():
            part = mean_change[at : at + flat.numel()]
            if dtype is torch.bool:
                flat.copy_((start[dtype].float() + part).round() != 0)
            elif dtype.is_floating_point:
                began = start[dtype]
                if dtype in self._unbounded:
                    began = began.masked_fill(~torch.isfinite(began) & (part != 0), 0.0)
                torch.add(began, part.to(dtype), out=flat)
            else:
                torch.add(start[dtype], part.round().to(dtype), out=flat)
            at += flat.numel()


def _buffers(model: nn.Module) -> Iterator[tuple[str, nn.Module, str, Tensor]]:
    for prefix, module in model.named_modules():
        for key, tensor in module._buffers.items():
            if tensor is not None:
                yield f"{prefix}.{key}" if prefix else key, module, key, tensor
