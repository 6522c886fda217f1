"""A workload that is a function of a notebook or a script: it has no module, so it is sent, and kept, as it is.

Its entrypoint is `__notebook__.f` and a digest of what it computes, then its name; the run's folder has the function.
A process finds it by that entrypoint once it has received it.
"""

import io
import json
import pickle
import platform
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import cloudpickle
from batchgrowth.errors import DataError, WorkloadError

from batchgrowth_trainer.record.fingerprint import digest_of, parts_of
from batchgrowth_trainer.record.storage import storage_error

FUNCTION_FILE = "workload.pkl"
LARGEST_BYTES = 64 << 20
_MODULE = "__notebook__"
_PYTHON = ".".join(platform.python_version_tuple()[:2])
NAMED = re.compile(rf"\b{_MODULE}\.f[0-9a-f]{{16}}:(\w+)")
"""The entrypoints of functions in a text; the group is the function's name."""
_RECEIVED: dict[str, Callable[..., Any]] = {}


def is_function(entrypoint: str) -> bool:
    """Whether this entrypoint names a function that was sent, and no module."""
    return entrypoint.startswith(f"{_MODULE}.")


def packed(function: Callable[..., Any]) -> tuple[str, bytes]:
    """The entrypoint of a function that has no module, and the function as bytes; this process has it from now on.

    Raises WorkloadError if it cannot be sent, or holds more than LARGEST_BYTES.
    """
    name = getattr(function, "__name__", "")
    name = name if name.isidentifier() and name.isascii() else "workload"
    try:
        body, parts = cloudpickle.dumps(function), parts_of(function)
    except Exception as error:
        raise WorkloadError(
            f"{name}: the function cannot be sent to the workers ({' '.join(str(error).split())}); make what it uses "
            "inside the function, rather than before it"
        ) from error
    if len(body) > LARGEST_BYTES:
        raise WorkloadError(
            f"{name}: the function takes {len(body) >> 20} MiB with the values that it uses, and at most "
            f"{LARGEST_BYTES >> 20} MiB can be sent; read the data inside the function"
        )
    entrypoint = f"{_MODULE}.f{digest_of(parts)}:{name}"
    _RECEIVED[entrypoint] = function
    header = {"entrypoint": entrypoint, "python": _PYTHON, "parts": parts}
    return entrypoint, json.dumps(header).encode() + b"\n" + body


def receive(data: bytes) -> None:
    """Have the function that `packed` wrote, unless this process has it. Raises WorkloadError if it cannot be read."""
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


def found(entrypoint: str, field: str) -> Callable[..., Any]:
    """The function of this entrypoint, which this process has received. Raises WorkloadError otherwise."""
    try:
        return _RECEIVED[entrypoint]
    except KeyError:
        raise WorkloadError(
            f"{field}: {entrypoint} is a function that was given from Python, not a module; only its run's folder has "
            f"it, as {FUNCTION_FILE}. Train in that folder, or put the function into a module and name that"
        ) from None


def function_in(folder: Path, entrypoint: str) -> bytes:
    """The function of the run in `folder`, as bytes; empty if its entrypoint names a module.

    Raises DataError if it is missing, and CheckpointError if it cannot be read.
    """
    if not is_function(entrypoint):
        return b""
    path = folder / FUNCTION_FILE
    try:
        data = path.read_bytes()
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


def changes(before: bytes, now: bytes) -> list[str]:
    """The names of what differs between two functions, of a run and of now: of globals, and the function's own."""
    there, here = _header(before), _header(now)
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
