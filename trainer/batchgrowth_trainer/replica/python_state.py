"""The Python state that users' code can reach: attributes, containers, generators, and tensors that nobody registered.

Updates depend on none of it by contract, but code can break that contract. `PythonState` remembers all that it finds
from the places where users' code runs, says what has changed since, and puts it back.
"""

import dis
import os
import random
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from inspect import unwrap
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from batchgrowth_trainer.record.functions import globals_in
from batchgrowth_trainer.user_errors import is_users, seen_at

_MOST_OBJECTS = 20_000
_MOST_ITEMS = 1_000  # of a container whose items are looked at
_MOST_REMEMBERED = 10_000  # items of a container that is remembered
LARGEST_BYTES = 1 << 20
"""The most bytes of a tensor or array that is copied. Of a larger tensor only the version is remembered, of a larger
array nothing.
"""
_ATOMS = (bool, int, float, complex, str, bytes, type(None))
_OF_MODULES = frozenset(vars(nn.Module()))
"""Attributes that each module has; its layers, parameters and buffers are among them."""
_OURS = (
    "batchgrowth", "batchgrowth_trainer", "dask", "distributed",
    "logging", "threading", "multiprocessing", "concurrent", "asyncio",
)  # fmt: skip
"""Packages whose objects hold no state of the user's."""


class _Missing:
    """Stands for an attribute or an item that is not there."""

    def __repr__(self) -> str:
        return "nothing"


MISSING = _Missing()


@dataclass(frozen=True, slots=True)
class Change:
    """Something that changed: its name as a user would write it, and its values before and now.

    `seen_at()` names the line that writes it, `restore()` puts the value before back, and `write(value)` another one.
    """

    path: str
    before: Any
    now: Any
    is_generator: bool
    seen_at: Callable[[], str]
    restore: Callable[[], None]
    write: Callable[[Any], None]

    def is_attribute_of(self, name: str) -> bool:
        """Return whether this is an attribute of the object of that name, and not something in an attribute."""
        return self.path.startswith(f"{name}.") and self.path[len(name) + 1 :].isidentifier()

    @property
    def is_built(self) -> bool:
        """Return whether there is an object now, and there was nothing or None before."""
        return (self.before is None or self.before is MISSING) and not isinstance(self.now, _ATOMS)

    @property
    def is_opened(self) -> bool:
        """Return whether an object that is no data, such as an open file, is where nothing or None was."""
        data = (Tensor, np.ndarray, np.generic, list, tuple, set, dict, deque)
        return self.is_built and not isinstance(self.now, data)


class _Attributes:
    """A mapping that is remembered item by item: the attributes of an object, a dictionary, the globals of a module."""

    def __init__(
        self,
        path: str,
        items: MutableMapping[Any, Any],
        owner: Any,
        keys: Iterable[str] | None = None,
        *,
        form: str = "{}.{}",
    ) -> None:
        self._path = path
        self._items = items
        self._owner = owner
        self._keys = None if keys is None else tuple(keys)
        self._form = form
        self._saved = self._present()

    def _present(self) -> dict[Any, Any]:
        if self._keys is None:
            return dict(self._items)
        return {key: self._items[key] for key in self._keys if key in self._items}

    def changes(self) -> Iterator[Change]:
        present = self._present()
        for key in dict.fromkeys((*self._saved, *present)):  # in the order in which they were written
            before = self._saved.get(key, MISSING)
            now = present.get(key, MISSING)
            # A module's mode is set by the trainer, for each evaluation.
            if key != "training" and not _is_unchanged(before, now):
                write = partial(self._write, key)
                name = self._form.format(self._path, key) if self._path else str(key)
                line = partial(_line_of, self._owner, key)
                yield Change(name, before, now, False, line, partial(write, before), write)

    def _write(self, key: Any, value: Any) -> None:
        if value is MISSING:
            self._items.pop(key, None)
        else:
            self._items[key] = value


class _ClassAttributes(MutableMapping[str, Any]):
    """The attributes of a class as a mapping that can be written."""

    def __init__(self, kind: type) -> None:
        self._kind = kind

    def __getitem__(self, name: str) -> Any:
        return vars(self._kind)[name]

    def __setitem__(self, name: str, value: Any) -> None:
        setattr(self._kind, name, value)

    def __delitem__(self, name: str) -> None:
        delattr(self._kind, name)

    def __iter__(self) -> Iterator[str]:
        return (name for name in vars(self._kind) if not name.startswith("__"))

    def __len__(self) -> int:
        return sum(1 for _ in self)


class _SlotAttributes(MutableMapping[str, Any]):
    """The attributes of an object whose class has __slots__, as a mapping that can be written."""

    def __init__(self, owner: Any, names: Iterable[str]) -> None:
        self._owner = owner
        self._names = tuple(names)

    def __getitem__(self, name: str) -> Any:
        return getattr(self._owner, name)

    def __setitem__(self, name: str, value: Any) -> None:
        object.__setattr__(self._owner, name, value)

    def __delitem__(self, name: str) -> None:
        object.__delattr__(self._owner, name)

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._names if hasattr(self._owner, name))

    def __len__(self) -> int:
        return len(self._names)


class _Whole:
    """A value that is remembered as a whole, by functions that read it, and write it back."""

    def __init__(
        self,
        path: str,
        read: Callable[[], Any],
        write: Callable[[Any], None],
        line: Callable[[], str],
        *,
        is_generator: bool = False,
    ) -> None:
        self._path = path
        self._read = read
        self._write = write
        self._line = line
        self._is_generator = is_generator
        self._saved = read()

    def changes(self) -> Iterator[Change]:
        now = self._read()
        if not _is_unchanged(self._saved, now):
            restore = partial(self._write, self._saved)
            yield Change(self._path, self._saved, now, self._is_generator, self._line, restore, self._write)


class PythonState:
    """Remembers the Python state that is reachable from `places`, a dictionary of objects by name.

    Tensors in `registered`, such as the model's parameters and buffers, are left out. The search is bounded: it ends
    after 20,000 objects, looks into no container of more than 1,000 items, and leaves out one of more than 10,000.
    `attributes` maps an object's name to some of its attributes and to the object whose source is searched for the
    lines that write them; tensors among these attributes are not copied. With `environment`, the process's environment
    variables are remembered too. `copied_bytes` is the size of the copied tensors and arrays.
    """

    def __init__(
        self,
        places: Mapping[str, Any],
        registered: Iterable[Tensor] = (),
        attributes: Mapping[str, tuple[MutableMapping[str, Any], Any]] | None = None,
        *,
        environment: bool = False,
    ) -> None:
        self._kept: list[Any] = []  # so that no other object gets the id of one that was seen
        self._seen: set[int] = set()
        self._remembered: list[_Attributes | _Whole] = []
        self.copied_bytes = 0
        self._storages = {tensor.untyped_storage().data_ptr() for tensor in registered}
        if environment:
            self._remembered.append(_Attributes("os.environ", os.environ, None, form="{}[{!r}]"))
        waiting = deque((name, place, place) for name, place in places.items() if place is not None)
        for name, (mapping, owner) in (attributes or {}).items():
            self._remembered.append(_Attributes(name, mapping, owner))
            found = ((f"{name}.{key}", value, owner) for key, value in mapping.items())
            waiting.extend(one for one in found if not isinstance(one[1], Tensor))
        while waiting and len(self._kept) < _MOST_OBJECTS:
            path, value, owner = waiting.popleft()
            if isinstance(value, _ATOMS) or id(value) in self._seen:
                continue
            self._seen.add(id(value))
            self._kept.append(value)
            with suppress(AttributeError, RuntimeError, TypeError, ValueError):  # a proxy may refuse to be looked at
                waiting.extend(self._visit(path, value, owner))

    def changes(self) -> list[Change]:
        """Return what has changed, outer places first."""
        return [change for one in self._remembered for change in one.changes()]

    def restore(self, keep: Callable[[Change], bool] = lambda _: False) -> None:
        """Put everything back, apart from the changes to `keep`."""
        for change in self.changes():
            if not keep(change):
                change.restore()

    def _visit(self, path: str, value: Any, owner: Any) -> Iterable[tuple[str, Any, Any]]:
        """Remember one object, and return those that it refers to."""
        if isinstance(value, Tensor):
            self._remember_tensor(path, value, owner)
            return ()
        if isinstance(value, np.ndarray):
            if value.dtype != object and value.nbytes <= LARGEST_BYTES:
                self.copied_bytes += value.nbytes
                self._whole(path, value.copy, partial(np.copyto, value), owner)
            return ()
        if generator := _of_generator(value):
            self._whole(path, *generator, owner, is_generator=True)
            return ()
        if isinstance(value, list | set | deque | dict):
            return self._container(path, value, owner)
        if isinstance(value, tuple):
            return [(f"{path}[{at}]", item, owner) for at, item in enumerate(value[:_MOST_ITEMS])]
        if isinstance(value, FunctionType | MethodType | partial | _CACHED):
            return self._function(path, value)
        if isinstance(value, type):
            return self._class(path, value)
        return self._object(path, value)

    def _whole(
        self,
        path: str,
        read: Callable[[], Any],
        write: Callable[[Any], Any],
        owner: Any,
        *,
        is_generator: bool = False,
    ) -> None:
        self._remembered.append(_Whole(path, read, write, partial(_line_of, owner, ""), is_generator=is_generator))

    def _remember_tensor(self, path: str, tensor: Tensor, owner: Any) -> None:
        if tensor.layout is not torch.strided or tensor.is_inference():
            return
        if tensor.untyped_storage().data_ptr() in self._storages:
            return
        # The version of a large tensor tells of a change, which cannot be undone.
        if tensor.numel() * tensor.element_size() > LARGEST_BYTES:
            self._whole(path, lambda: tensor._version, lambda _: None, owner)
        else:
            plain = tensor.detach()
            self.copied_bytes += tensor.numel() * tensor.element_size()
            self._whole(path, plain.clone, plain.copy_, owner)

    def _container(self, path: str, value: Any, owner: Any) -> Iterable[tuple[str, Any, Any]]:
        if len(value) > _MOST_REMEMBERED:
            return ()
        if isinstance(value, dict):
            self._remembered.append(_Attributes(path, value, owner, form="{}[{!r}]"))
            items: Iterable[tuple[Any, Any]] = value.items()
        else:
            self._whole(path, partial(list, value), partial(_refill, value), owner)
            items = enumerate(() if isinstance(value, set) else value)
        if len(value) > _MOST_ITEMS:
            return ()
        return [(f"{path}[{key!r}]", item, owner) for key, item in items]

    def _function(self, path: str, value: Any) -> Iterable[tuple[str, Any, Any]]:
        """Follow a function into its closure, its defaults and the globals that its code names."""
        if isinstance(value, MethodType):
            return [(path, value.__self__, value.__self__), (path, value.__func__, value)]
        if isinstance(value, partial):
            return [(path, part, value) for part in (value.func, value.args, value.keywords)]
        if not isinstance(value, FunctionType):  # such as lru_cache's, whose results are no state
            return [(path, unwrap(value), value)]
        if not is_users(value.__code__.co_filename):
            wrapped = getattr(value, "__wrapped__", None)
            return [] if wrapped is None else [(path, wrapped, value)]
        return list(self._parts_of(path, value))

    def _parts_of(self, path: str, function: FunctionType) -> Iterator[tuple[str, Any, Any]]:
        self._remembered.append(_Attributes(path, function.__dict__, function))
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            if id(cell) not in self._seen:
                self._seen.add(id(cell))
                self._kept.append(cell)
                self._whole(name, partial(_content, cell), partial(_fill, cell), function)
            yield name, _content(cell), function
        yield from ((path, part, function) for part in (function.__defaults__, function.__kwdefaults__))
        names = globals_in(function.__code__)
        self._remembered.append(_Attributes("", function.__globals__, function, names))
        for name in names:
            value = function.__globals__.get(name)
            if isinstance(value, ModuleType):
                if is_users(getattr(value, "__file__", None) or "<built in>"):
                    inside = [key for key in function.__code__.co_names if key in vars(value)]
                    self._remembered.append(_Attributes(name, vars(value), function, inside))
                    yield from ((f"{name}.{key}", vars(value)[key], function) for key in inside)
            else:
                yield name, value, function

    def _class(self, path: str, kind: type) -> Iterable[tuple[str, Any, Any]]:
        if not _is_users_class(kind):
            return ()
        attributes = _ClassAttributes(kind)
        self._remembered.append(_Attributes(kind.__qualname__, attributes, kind))
        found = [(f"{kind.__qualname__}.{name}", value, kind) for name, value in attributes.items()]
        return [*found, *((path, base, kind) for base in kind.__bases__)]

    def _object(self, path: str, value: Any) -> Iterable[tuple[str, Any, Any]]:
        kind = type(value)
        if isinstance(value, ModuleType | BuiltinFunctionType):
            return ()
        if kind.__module__.partition(".")[0] in _OURS and not isinstance(value, nn.Module):
            return ()
        if isinstance(value, staticmethod | classmethod):
            return [(path, value.__func__, value)]
        if isinstance(value, property):
            return [(path, part, value) for part in (value.fget, value.fset) if part is not None]
        found: list[tuple[str, Any, Any]] = [(path, one, value) for one in kind.__mro__ if _is_users_class(one)]
        is_users_own = bool(found)
        attributes = getattr(value, "__dict__", None)
        if isinstance(value, nn.Module):
            self._remembered.append(_Attributes(path, value._buffers, value))
            for held in (value._modules, value._parameters, value._buffers):
                found += [(f"{path}.{name}", one, value) for name, one in held.items() if one is not None]
            found += [
                (path, hook, value)
                for name in _OF_MODULES
                if name.endswith("hooks")
                for hook in (vars(value).get(name) or {}).values()
            ]
        if isinstance(attributes, dict):
            # What a library keeps in its own objects is its business; generators are looked for in there all the same.
            if is_users_own or isinstance(value, nn.Module | Dataset):
                self._remembered.append(_Attributes(path, attributes, value))
            skipped = _OF_MODULES if isinstance(value, nn.Module) else ()
            found += [(f"{path}.{name}", held, value) for name, held in attributes.items() if name not in skipped]
        slots = [name for one in kind.__mro__ if _is_users_class(one) for name in _slots_of(one)]
        if slots:
            in_slots = _SlotAttributes(value, slots)
            self._remembered.append(_Attributes(path, in_slots, value))
            found += [(f"{path}.{name}", item, value) for name, item in in_slots.items()]
        return found


def _of_generator(value: Any) -> tuple[Callable[[], Any], Callable[[Any], Any]] | None:
    """Return functions that read and write the state of a user's own generator of random numbers.

    None if the value is no generator, or one that the trainer seeds.
    """
    if isinstance(value, torch.Generator):
        if value is torch.default_generator:
            return None
        return value.get_state, value.set_state
    if isinstance(value, np.random.Generator):
        return _of_generator(value.bit_generator)
    if isinstance(value, np.random.BitGenerator):
        return lambda: value.state, lambda state: setattr(value, "state", state)
    if isinstance(value, np.random.RandomState):
        if value is np.random.mtrand._rand:
            return None
        return value.get_state, value.set_state
    if isinstance(value, random.Random) and not isinstance(value, random.SystemRandom):
        return None if value is random._inst else (value.getstate, value.setstate)
    return None


def _refill(container: Any, items: list[Any]) -> None:
    """Give a list, a set or a deque these items."""
    container.clear()
    if isinstance(container, set):
        container.update(items)
    else:
        container.extend(items)


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


def _fill(cell: CellType, content: Any) -> None:
    if content is MISSING:
        del cell.cell_contents
    else:
        cell.cell_contents = content


def _slots_of(kind: type) -> tuple[str, ...]:
    slots = vars(kind).get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    return tuple(name for name in names if not name.startswith("__"))


@lru_cache(maxsize=4096)
def _is_users_class(kind: type) -> bool:
    """Return whether the user wrote this class."""
    if kind.__module__.partition(".")[0] in (*_OURS, "builtins", "torch", "numpy"):
        return False
    module = sys.modules.get(kind.__module__)
    if is_users(getattr(module, "__file__", None) or "<built in>"):
        return True
    return any(
        isinstance(value, FunctionType) and is_users(value.__code__.co_filename) for value in vars(kind).values()
    )


_CACHED = type(_is_users_class)
"""The type of a function that `lru_cache` has wrapped."""


def _is_unchanged(before: Any, now: Any) -> bool:
    """Return whether a value is still the same object, or, if it is no module, alike."""
    return before is now or (not isinstance(before, nn.Module) and is_alike(before, now))


def is_alike(one: Any, other: Any, *, unknown: bool = False) -> bool:
    """Return whether two values have one type and equal contents; `unknown` for objects of a kind that is not compared.

    NaN equals NaN, and 0.0 equals -0.0; but numpy arrays of numbers are compared by their bytes, so 0.0 differs from
    -0.0 there. Tensors may be on different devices.
    """
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        if one.layout is not torch.strided or one.is_quantized or one.is_nested or one.is_meta or other.is_meta:
            return unknown
        if (one.shape, one.dtype) != (other.shape, other.dtype):
            return False
        if one.device != other.device:  # such as a constant that the first shard moved to the GPU
            one, other = one.cpu(), other.cpu()
        # NaN equals no number, not even itself, and is the same value all the same.
        return bool(((one == other) | ((one != one) & (other != other))).all())
    if isinstance(one, np.ndarray):
        if (one.shape, one.dtype) != (other.shape, other.dtype):
            return False
        if one.dtype.hasobject:
            return is_alike(one.tolist(), other.tolist(), unknown=unknown)
        return bool(one.tobytes() == other.tobytes())
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(is_alike(one[key], other[key], unknown=unknown) for key in one)
    if isinstance(one, list | tuple | deque):
        pairs = zip(one, other, strict=False)
        return len(one) == len(other) and all(is_alike(*pair, unknown=unknown) for pair in pairs)
    if isinstance(one, (*_ATOMS, set, frozenset, range, slice, torch.dtype, torch.device, np.generic)):
        return bool(one == other) or bool(one != one and other != other)
    return unknown


def _line_of(owner: Any, name: Any) -> str:
    """Return `; see FILE:LINE, in FUNCTION` for the line of the owner's class, or function, that writes this name.

    If no line does, name the method of the class that is called for a shard, or else use `seen_at`.
    """
    kind = owner if isinstance(owner, type) else type(owner)
    functions = [owner]
    is_object = not isinstance(owner, FunctionType | MethodType | partial)
    if is_object:
        functions = [f for one in kind.__mro__ if _is_users_class(one) for f in vars(one).values()]
    for function in functions:
        code = getattr(unwrap(function) if callable(function) else function, "__code__", None)
        # What __init__ writes was there before anything was computed.
        if code is None or code.co_name == "__init__":
            continue
        for step in dis.get_instructions(code):
            if step.opname.startswith("STORE_") and step.argval == name and step.positions is not None:
                return f"; see {code.co_filename}:{step.positions.lineno}, in {code.co_name}"
    if is_object:  # the method that is called for a shard
        for method in ("forward", "__call__", "__getitem__", "__getitems__", "step"):
            for one in kind.__mro__:
                if _is_users_class(one) and method in vars(one):
                    return seen_at(vars(one)[method])
    return seen_at(owner)
