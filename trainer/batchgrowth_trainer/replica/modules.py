"""Users' modules: copies of them, and which of their tensors share memory.

`b.weight.data = a.weight.data` or a slice makes tensors share elements. Flat vectors hold copies of tensors, and must
share these elements too, or the tensors would silently differ after the first update.
"""

from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import TypeVar

import torch
from batchgrowth.errors import WorkloadError
from torch import Tensor, nn

from batchgrowth_trainer.user_errors import reported_as_workload_error, seen_at

# --- Copies ---

Parts = TypeVar("Parts")
_REMEDY = "keep out of the model what Python cannot copy, such as a lock, an open file or a connection"


def copied(parts: Parts, modules: Iterable[nn.Module | None]) -> Parts:
    """Return a deep copy of objects that hold these modules. Raises WorkloadError if they cannot be copied.

    Torch cannot copy a tensor that a call has computed, such as the weight of a layer with `weight_norm`, or the last
    output that a model remembers; the copy gets only its values.
    """
    layers = {layer for module in modules if module is not None for layer in module.modules()}
    held = [value for layer in layers for value in vars(layer).values()]
    computed = [value for value in held if isinstance(value, Tensor) and value.grad_fn is not None]
    with reported_as_workload_error("copying the model", _REMEDY):
        return deepcopy(parts, {id(tensor): tensor.detach().clone() for tensor in computed})


Modules = Mapping[str, nn.Module]
"""What is trained, by the prefix of its tensors' names: the model, "", and perhaps its loss, "loss."."""


# --- Tensors that share memory ---


@dataclass(frozen=True, slots=True)
class View:
    """A tensor's shape and strides, and the index of its first element in a region."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def of(self, memory: Tensor) -> Tensor:
        """Return the tensor as a view of a region, shape (length,)."""
        return memory.as_strided(self.shape, self.stride, memory.storage_offset() + self.offset)


@dataclass(frozen=True, slots=True)
class Region:
    """A run of `length` elements that tensors share: `owners`, which a flat vector holds, and other `followers`."""

    owners: dict[str, View]
    followers: dict[str, View]
    length: int

    def memory_of(self, first: Tensor) -> Tensor:
        """Return the region itself, shape (length,), of which `first` is the first owner."""
        start = first.storage_offset() - next(iter(self.owners.values())).offset
        return first.detach().as_strided((self.length,), (1,), start)


def regions_of(owners: Mapping[str, Tensor], others: Mapping[str, Tensor], loose: Mapping[str, Tensor]) -> list[Region]:
    """Return the regions in which owners share elements with each other, with `others` or with `loose` tensors.

    Tensors side by side in one memory, such as the parts of a split matrix, share none. A loose tensor follows if it
    lies in a region. Raises WorkloadError if one of the others lies only partly in a region.
    """
    every = {**owners, **others, **loose}
    found = []
    for cluster in _clusters(every):
        owned = [name for name in owners if name in cluster]
        if not owned or not _overlap(every[name] for name in cluster):
            continue
        first = min(_extent(owners[name])[0] for name in owned)
        end = max(_extent(owners[name])[1] for name in owned)
        size = owners[owned[0]].element_size()
        views = {}
        for name in (name for name in every if name in cluster):
            begin, stop = _extent(every[name])
            if first <= begin and stop <= end:
                views[name] = View(tuple(every[name].shape), every[name].stride(), (begin - first) // size)
            elif name not in loose:
                raise WorkloadError(
                    f"model.{name} and model.{owned[0]} share some of their memory; give one of them its own by "
                    f"clone(), or register the tensor that holds both, and slice it where it is used{seen_at(None)}"
                )
        followers = {name: view for name, view in views.items() if name not in owners}
        found.append(Region({name: views[name] for name in owned}, followers, (end - first) // size))
    return found


def _clusters(tensors: Mapping[str, Tensor]) -> Iterator[set[str]]:
    """Yield the names of tensors whose extents overlap, directly or by way of others, if there are several."""
    by_memory: dict[object, list[str]] = {}
    for name, tensor in tensors.items():
        if _has_memory(tensor):
            by_memory.setdefault((tensor.untyped_storage().data_ptr(), tensor.dtype), []).append(name)
    for names in by_memory.values():
        cluster: set[str] = set()
        end = 0
        for name in sorted(names, key=lambda each: _extent(tensors[each])):
            begin, stop = _extent(tensors[name])
            if begin >= end:
                if len(cluster) > 1:
                    yield cluster
                cluster = set()
            cluster.add(name)
            end = max(end, stop)
        if len(cluster) > 1:
            yield cluster


def _has_memory(tensor: Tensor) -> bool:
    """Return whether the tensor has elements with addresses; a tensor that wraps other tensors has none."""
    try:
        return tensor.layout is torch.strided and tensor.numel() > 0 and tensor.data_ptr() != 0
    except (NotImplementedError, RuntimeError):
        return False


def _extent(tensor: Tensor) -> tuple[int, int]:
    """Return the address of the tensor's first byte, and that of the first byte after its last element."""
    elements = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + elements * tensor.element_size()


def _overlap(tensors: Iterable[Tensor]) -> bool:
    """Return whether two of these tensors of one dtype have an element in common."""
    known = list(tensors)
    first = min(_extent(tensor)[0] for tensor in known)
    size = known[0].element_size()
    taken = torch.zeros((max(_extent(tensor)[1] for tensor in known) - first) // size, dtype=torch.bool)
    for tensor in known:
        mine = taken.as_strided(tensor.shape, tensor.stride(), (tensor.data_ptr() - first) // size)
        if mine.any():
            return True
        mine.fill_(True)
    return False


def repeats_elements(tensor: Tensor) -> bool:
    """Return whether elements of the tensor share memory with each other, as those of an expanded tensor do."""
    if not _has_memory(tensor):
        return False
    begin, stop = _extent(tensor)
    return (stop - begin) // tensor.element_size() < tensor.numel()


@dataclass(frozen=True, slots=True)
class Place:
    """A place where a module holds a tensor: a parameter, a buffer or, if not `is_registered`, a plain attribute."""

    owner: nn.Module
    key: str
    is_registered: bool

    @property
    def tensor(self) -> Tensor:
        """Return the tensor that the module has there now."""
        held: Tensor = getattr(self.owner, self.key)
        return held


def places_of(modules: Modules) -> dict[str, Place]:
    """Return the places of all tensors of these modules, by name; a tensor that has several has the first."""
    found: dict[str, Place] = {}
    known: set[int] = set()
    seen: set[nn.Module] = set()
    for prefix, root in modules.items():
        for path, module in root.named_modules(memo=seen):
            registered = (*module._parameters.items(), *module._buffers.items())
            for key, tensor in (*registered, *vars(module).items()):
                # A tensor that a call has computed is left out: the next call computes it again.
                if isinstance(tensor, Tensor) and tensor.grad_fn is None and id(tensor) not in known:
                    known.add(id(tensor))
                    name = f"{prefix}{path}.{key}" if path else f"{prefix}{key}"
                    found[name] = Place(module, key, any(key == each for each, _ in registered))
    return found
