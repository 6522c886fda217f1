"""Workloads that are functions of a notebook or a script: pickled, and identified by a digest of all that they use."""

import builtins
import dis
import hashlib
import io
import json
import os
import pickle
import platform
import re
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FunctionType, MappingProxyType, ModuleType
from typing import Any

import cloudpickle
import numpy as np
import torch
from batchgrowth.errors import DataError, WorkloadError
from batchgrowth.manifest.files import read_regular
from torch import Tensor

from batchgrowth_trainer.record.storage import storage_error

# --- What a function of a notebook computes, as digests: of its code and of all that its code names ---
# The same source gives the same digests in another kernel, whatever its cell's number; a line number or a comment does
# not count.

_LOADS = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"}
_OF_NO_ACCOUNT = {
    "__dict__", "__weakref__", "__doc__", "__module__", "__firstlineno__", "__static_attributes__", "__qualname__",
    "__annotate__", "__annotate_func__", "__annotations_cache__", "__annotations__", "_abc_impl",
}  # fmt: skip
_CODE = (
    "co_code", "co_names", "co_varnames", "co_freevars", "co_cellvars", "co_argcount", "co_kwonlyargcount",
    "co_posonlyargcount", "co_flags",
)  # fmt: skip


def parts_of(function: Callable[..., Any]) -> dict[str, str]:
    """Return the digests of the function, under "", and of every global that it uses, directly or not, by name.

    An object that a module defines counts by its name. Raises what cloudpickle raises for an object that it cannot
    take apart.
    """
    parts: dict[str, str] = {}
    waiting: list[tuple[str, Any]] = [("", function)]
    while waiting:
        name, value = waiting.pop()
        if name not in parts:
            walk = _Walk()
            parts[name] = walk.digest(value)
            waiting.extend(walk.named.items())
    return dict(sorted(parts.items()))


def digest_of(parts: Mapping[str, str]) -> str:
    """Return one digest of the parts: 16 hexadecimal digits."""
    return _hashed(json.dumps(dict(parts), sort_keys=True).encode())[:16]


def importable_name(value: Any) -> str | None:
    """Return the "module:name" under which any process imports the function or class; None if there is none."""
    module = getattr(value, "__module__", None)
    name = getattr(value, "__qualname__", "")
    if not isinstance(module, str) or module == "__main__" or not name.isidentifier():
        return None
    if getattr(sys.modules.get(module), name, None) is not value:
        return None
    return f"{module}:{name}" if is_importable(module) else None


def is_importable(module: str) -> bool:
    """Return whether any process finds the module; one that is loaded may be nowhere on the path."""
    top = module.partition(".")[0]
    return any(finder.find_spec(top, None) for finder in sys.meta_path)


class _Walk:
    """Computes the digest of a value. Globals that its functions use count by name; `named` collects these globals."""

    def __init__(self) -> None:
        self.named: dict[str, Any] = {}
        self._seen: dict[int, int] = {}
        self._kept: list[Any] = []  # so that no other object gets the id of one that was seen

    def digest(self, value: Any) -> str:
        return _hashed(repr(self._form(value)).encode())

    def _form(self, value: Any) -> Any:
        if value is None or value is Ellipsis or isinstance(value, bool | int | float | complex | str | bytes):
            return type(value).__name__, repr(value)
        if isinstance(value, ModuleType):
            return "module", value.__name__
        if id(value) in self._seen:
            return "seen", self._seen[id(value)]
        self._seen[id(value)] = len(self._seen)
        self._kept.append(value)
        return self._form_of_new(value)

    def _form_of_new(self, value: Any) -> Any:
        if isinstance(value, CodeType):
            return self._code(value)
        if isinstance(value, type | FunctionType) and (name := importable_name(value)):
            return "named", name
        if isinstance(value, FunctionType):
            return self._function(value)
        if isinstance(value, type):
            return self._class(value)
        if isinstance(value, Tensor):
            plain = value.detach().cpu().contiguous()
            return (
                "tensor",
                str(plain.dtype),
                tuple(plain.shape),
                _hashed(plain.flatten().view(torch.uint8).numpy().tobytes()),
            )
        if isinstance(value, np.ndarray) and value.dtype != object:
            return "array", str(value.dtype), value.shape, _hashed(np.ascontiguousarray(value).tobytes())
        return self._container(value)

    def _container(self, value: Any) -> Any:
        if type(value) in (tuple, list):
            return type(value).__name__, [self._form(item) for item in value]
        if type(value) in (dict, MappingProxyType):
            return "dict", [(self._form(key), self._form(item)) for key, item in value.items()]
        if type(value) in (set, frozenset):
            # A set has no order, so no item may count what another has seen: each has a walk of its own.
            return type(value).__name__, sorted(_Walk().digest(item) for item in value)
        if isinstance(value, staticmethod | classmethod):
            return type(value).__name__, self._form(value.__func__)
        if isinstance(value, property):
            return "property", [self._form(part) for part in (value.fget, value.fset, value.fdel)]
        try:
            reduced = value.__reduce_ex__(4)
        except (TypeError, NotImplementedError):  # cloudpickle may have a way of its own
            return "pickled", _hashed(cloudpickle.dumps(value))
        parts = (reduced,) if isinstance(reduced, str) else reduced
        return "object", [self._form(list(part) if hasattr(part, "__next__") else part) for part in parts]

    def _function(self, function: FunctionType) -> Any:
        for name in globals_in(function.__code__):
            if name in function.__globals__:
                self.named.setdefault(name, function.__globals__[name])
            elif not hasattr(builtins, name):
                # Not bound yet. Once it is, the function computes something else, and has another digest.
                self.named.setdefault(name, None)
        cells = [_content(cell) for cell in function.__closure__ or ()]
        rest = (function.__defaults__, function.__kwdefaults__, cells)
        return "function", self._form(function.__code__), [self._form(part) for part in rest]

    def _class(self, kind: type) -> Any:
        own = {name: value for name, value in vars(kind).items() if name not in _OF_NO_ACCOUNT}
        slots = [name for name, value in own.items() if type(value).__name__ == "member_descriptor"]
        members = [(name, self._form(value)) for name, value in own.items() if name not in slots]
        return "class", kind.__name__, [self._form(base) for base in kind.__bases__], slots, members

    def _code(self, code: CodeType) -> Any:
        names = [*_CODE, "co_exceptiontable"] if code.co_exceptiontable else _CODE
        return "code", [repr(getattr(code, name)) for name in names], [self._form(const) for const in code.co_consts]


def globals_in(code: CodeType) -> list[str]:
    """Return the names of globals that the code, or a function in it, reads."""
    names = [str(step.argval) for step in dis.get_instructions(code) if step.opname in _LOADS]
    for const in code.co_consts:
        if isinstance(const, CodeType):
            names += globals_in(const)
    return list(dict.fromkeys(names))


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return "empty"  # a name that the enclosing function binds later


def _hashed(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# --- A workload that is a function of a notebook or a script: it has no module, so it is sent, and kept, as it is ---
# Its entrypoint is `__notebook__.f` and a digest of what it computes, then its name; the run's folder has the function.
# A process finds it by that entrypoint once it has received it.

FUNCTION_FILE = "workload.pkl"
LARGEST_BYTES = 64 << 20
_MODULE = "__notebook__"
_PYTHON = ".".join(platform.python_version_tuple()[:2])
NAMED = re.compile(rf"\b{_MODULE}\.f[0-9a-f]{{16}}:(\w+)")
"""Pattern of the entrypoints of functions in a text; the group is the function's name."""
_RECEIVED: dict[str, Callable[..., Any]] = {}
_UNPICKLED: set[str] = set()
"""The entrypoints in `_RECEIVED` whose functions came from another process."""


def is_function(entrypoint: str) -> bool:
    """Return whether this entrypoint names a function that was sent instead of a module."""
    return entrypoint.startswith(f"{_MODULE}.")


def packed(function: Callable[..., Any]) -> tuple[str, bytes]:
    """Return the entrypoint of a function without a module, and its pickle; this process can find it from now on.

    Raises WorkloadError if it cannot be sent, or holds more than LARGEST_BYTES.
    """
    name = str(getattr(function, "__name__", ""))
    try:
        parts = parts_of(function)
    except Exception as error:
        raise _unsendable(name, error) from error
    entrypoint = entrypoint_of(name, parts)
    data = pickled(function, entrypoint, parts)
    _RECEIVED[entrypoint] = function
    return entrypoint, data


def entrypoint_of(name: str, parts: Mapping[str, str]) -> str:
    """Return the entrypoint of a function of that name with these parts."""
    name = name if name.isidentifier() and name.isascii() else "workload"
    return f"{_MODULE}.f{digest_of(parts)}:{name}"


def pickled(function: Callable[..., Any], entrypoint: str, parts: Mapping[str, str], most: int | None = None) -> bytes:
    """Return the function's pickle, for `receive`.

    Raises WorkloadError if that fails, or it has more than `most` bytes, by default LARGEST_BYTES.
    """
    name = entrypoint.partition(":")[2]
    most = LARGEST_BYTES if most is None else most
    try:
        body: bytes = cloudpickle.dumps(function)
    except Exception as error:
        raise _unsendable(name, error) from error
    if len(body) > most:
        raise WorkloadError(
            f"{name}: the function takes {len(body) >> 20} MiB with the values that it uses, and at most "
            f"{most >> 20} MiB can be sent; read the data inside the function"
        )
    header = {"entrypoint": entrypoint, "python": _PYTHON, "parts": dict(parts)}
    return json.dumps(header).encode() + b"\n" + body


def _unsendable(name: str, error: Exception) -> WorkloadError:
    return WorkloadError(
        f"{name}: the function cannot be sent to the workers ({' '.join(str(error).split())}); make what it uses "
        "inside the function, rather than before it"
    )


@contextmanager
def lent(entrypoint: str, function: Callable[..., Any]) -> Iterator[None]:
    """Let this process find the function by its entrypoint inside the block, and forget it afterwards."""
    _UNPICKLED.discard(entrypoint)  # of an earlier run that was loaded; `forget_received` must leave it
    _RECEIVED[entrypoint] = function
    try:
        yield
    finally:
        del _RECEIVED[entrypoint]


def receive(data: bytes) -> None:
    """Unpickle the function that `packed` wrote, unless this process has it.

    Raises DataError if the data is damaged, and WorkloadError if unpickling fails.
    """
    header = _header(data)
    entrypoint = header["entrypoint"]
    if entrypoint in _RECEIVED:
        return
    name = entrypoint.partition(":")[2]
    if header["python"] != _PYTHON:  # its bytecode could crash the interpreter
        raise WorkloadError(
            f"{name}: the function was sent or kept by Python {header['python']}, and this is Python {_PYTHON}; use "
            "the same"
        )
    try:
        _RECEIVED[entrypoint] = pickle.loads(data[data.index(b"\n") + 1 :])  # noqa: S301  (it is the user's own code)
        _UNPICKLED.add(entrypoint)
    except ModuleNotFoundError as error:
        raise WorkloadError(
            f"{name}: the function needs the module {error.name!r}, which is not here; install it, or start in its "
            "folder"
        ) from error
    except Exception as error:
        raise WorkloadError(
            f"{name}: the function cannot be read back ({type(error).__name__}: {error}); train again, with the same "
            "versions of all packages"
        ) from error


def forget_received() -> None:
    """Forget the functions that came from another process, since the modules that they use may be others now."""
    for entrypoint in _UNPICKLED:
        _RECEIVED.pop(entrypoint, None)
    _UNPICKLED.clear()


def found(entrypoint: str, field: str) -> Callable[..., Any]:
    """Return the function of this entrypoint. Raises WorkloadError if this process does not have it."""
    try:
        return _RECEIVED[entrypoint]
    except KeyError:
        raise WorkloadError(
            f"{field}: {entrypoint} is a function that was given from Python, not a module; only its run's folder has "
            f"it, as {FUNCTION_FILE}. Train in that folder, or put the function into a module and name that"
        ) from None


def function_in(folder: Path, entrypoint: str) -> bytes:
    """Return the pickled function of the run in `folder`; b"" if the run's entrypoint names a module.

    Raises DataError if it is missing, damaged or another function, or another user may have written it, and
    CheckpointError if it cannot be read.
    """
    if not is_function(entrypoint):
        return b""
    path = folder / FUNCTION_FILE
    try:
        _check_owner(path)
        data = read_regular(path)
    except FileNotFoundError:
        raise DataError(
            f"{folder}: there is no {FUNCTION_FILE} here, which has the workload {entrypoint.partition(':')[2]}; it "
            "was written with the run, so copy the whole folder"
        ) from None
    except OSError as error:
        raise storage_error(f"{path} cannot be read ({error.strerror}); try again", error) from error
    given = _header(data)["entrypoint"]
    if given != entrypoint:
        raise DataError(f"{path}: this is the function {given}, not {entrypoint}; copy the whole folder of the run")
    return data


def _check_owner(path: Path) -> None:
    """Raise DataError if somebody else may have put the file there, because its code will run as this user."""
    found = path.stat()
    owners = {0, os.geteuid(), path.parent.stat().st_uid}
    if found.st_uid not in owners or found.st_mode & stat.S_IWOTH:
        raise DataError(
            f"{path}: another user owns this file or may write to it, and it holds code that would run as you; "
            "copy the run's folder, if you trust its files, and name the copy"
        )


def changes(before: bytes, now: bytes) -> list[str]:
    """Return the names of the globals that differ between two functions, and the function's own name if its code
    differs.
    """
    there = _header(before)
    here = _header(now)
    names = sorted(
        name for name in there["parts"].keys() | here["parts"].keys()
        if there["parts"].get(name) != here["parts"].get(name)
    )  # fmt: skip
    return [name or here["entrypoint"].partition(":")[2] for name in names]


def _header(data: bytes) -> Mapping[str, Any]:
    try:
        header = json.loads(io.BytesIO(data).readline())
        return {"entrypoint": str(header["entrypoint"]), "python": header["python"], "parts": dict(header["parts"])}
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{FUNCTION_FILE}: damaged; train again, or copy the run's folder again") from error
