"""A model whose parameters and buffers are views of one flat vector per kind.

One vector means one broadcast, one checkpoint tensor, one optimizer step, and no call per tensor in an update.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

_ALIGNMENT = 16  # float32 elements: every view starts on a 64-byte line, so kernels take the same path everywhere


def _aligned(count: int) -> int:
    return -(-count // _ALIGNMENT) * _ALIGNMENT


@dataclass(frozen=True, slots=True)
class Span:
    """Where one tensor lies in its flat vector."""

    name: str
    shape: tuple[int, ...]
    start: int

    def of(self, flat: Tensor) -> Tensor:
        """The tensor's view of `flat`."""
        count = torch.Size(self.shape).numel()
        return flat[self.start : self.start + count].view(self.shape)


def _lay_out(named: Sequence[tuple[str, Tensor]]) -> tuple[list[Span], int]:
    spans, end = [], 0
    for name, tensor in named:
        spans.append(Span(name, tuple(tensor.shape), end))
        end += _aligned(tensor.numel())
    return spans, end


@dataclass(frozen=True, slots=True)
class _Slot:
    """A buffer's home in its module, so that code which replaces a buffer instead of writing into it still works."""

    owner: nn.Module
    key: str
    view: Tensor

    def settle(self) -> None:
        current = self.owner._buffers[self.key]
        if current is not self.view and current is not None:
            self.view.copy_(current)
            self.owner._buffers[self.key] = self.view

    def reseat(self) -> None:
        self.owner._buffers[self.key] = self.view


class FlatParameters:
    """All trained parameters as one float32 leaf, `vector`, shape (length,); the module's own are views of it.

    Frozen ones stay where and as they are: weight decay must not reach them, and every process builds the same.
    """

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        self.spans, self.length = _lay_out(named)
        self.vector = nn.Parameter(torch.zeros(self.length, device=device), requires_grad=True)
        self.members: list[tuple[nn.Parameter, Span]] = []
        for (_, parameter), span in zip(named, self.spans, strict=True):
            view = span.of(self.vector.data)
            view.copy_(parameter.data)
            parameter.data = view
            self.members.append((parameter, span))

    def gradient_views(self, row: Tensor) -> list[Tensor]:
        """Views of `row`, one per trained parameter, for backward to add into."""
        return [span.of(row) for _, span in self.members]

    def collect_into(self, views: list[Tensor]) -> None:
        """Let the next backward add into `views` (they must be zero)."""
        for (parameter, _), view in zip(self.members, views, strict=True):
            parameter.grad = view


_HARDLY_ANYTHING = 1e-30  # nought would say that a buffer stood still


class FlatBuffers:
    """All buffers, one flat vector per dtype; what a shard changed in them is summed and averaged like a gradient."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self.vectors: dict[torch.dtype, Tensor] = {}
        self.spans: dict[torch.dtype, list[Span]] = {}
        self._slots: list[_Slot] = []
        homes: dict[int, tuple[str, Tensor, list[tuple[nn.Module, str]]]] = {}
        for name, owner, key, tensor in _buffers(model):
            homes.setdefault(id(tensor), (name, tensor, []))[2].append((owner, key))
        for dtype in sorted({tensor.dtype for _, tensor, _ in homes.values()}, key=str):
            self._adopt(dtype, [home for home in homes.values() if home[1].dtype is dtype], device)
        self.length = sum(v.numel() for v in self.vectors.values())
        self._unbounded = {dtype for dtype, flat in self.vectors.items() if not torch.isfinite(flat).all()}

    def _adopt(
        self, dtype: torch.dtype, homes: list[tuple[str, Tensor, list[tuple[nn.Module, str]]]], device: torch.device
    ) -> None:
        spans, length = _lay_out([(name, tensor) for name, tensor, _ in homes])
        flat = torch.zeros(length, dtype=dtype, device=device)
        for (_, tensor, owners), span in zip(homes, spans, strict=True):
            view = span.of(flat)
            view.copy_(tensor)
            for owner, key in owners:
                owner._buffers[key] = view
                self._slots.append(_Slot(owner, key, view))
        self.vectors[dtype], self.spans[dtype] = flat, spans

    def clone(self) -> dict[torch.dtype, Tensor]:
        """A copy of every vector, the state a shard starts from."""
        return {dtype: flat.clone() for dtype, flat in self.vectors.items()}

    def restore(self, start: dict[torch.dtype, Tensor]) -> None:
        """Put the vectors back to `start`, and themselves into the modules that have replaced them."""
        for slot in self._slots:
            slot.reseat()
        for dtype, flat in self.vectors.items():
            flat.copy_(start[dtype])

    def change_since(self, start: dict[torch.dtype, Tensor], examples: int, out: Tensor) -> None:
        """Write (now - start) * examples into `out`, shape (length,); a buffer that stood still gives exact zeros.

        One that began at infinity, as an observer of a minimum does, and is finite now, counts as begun at nought.
        """
        for slot in self._slots:
            slot.settle()
        at = 0
        for dtype, flat in self.vectors.items():
            part = out[at : at + flat.numel()]
            part.copy_(flat.float() - start[dtype].float() if dtype is torch.bool else flat - start[dtype])
            if dtype in self._unbounded:  # a mask of -inf stands still too, though -inf - -inf is no number
                begun = torch.isfinite(flat) & ~torch.isfinite(start[dtype])
                part.copy_(torch.where(begun, flat.masked_fill(flat == 0, _HARDLY_ANYTHING), part))
                part.masked_fill_(flat == start[dtype], 0.0)
            part.mul_(examples)
            at += flat.numel()

    def advance(self, start: dict[torch.dtype, Tensor], mean_change: Tensor) -> None:
        """Set every vector to start + mean change (whole numbers and flags are rounded)."""
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
