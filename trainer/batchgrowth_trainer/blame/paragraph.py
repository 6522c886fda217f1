"""Describes errors of users' code in one paragraph: what raised, its file and line, and what would help."""

import logging
import re
import sysconfig
import traceback
from functools import partial
from inspect import unwrap
from pathlib import Path
from types import FrameType
from typing import Any

from batchgrowth.errors import BatchGrowthError, WorkloadError
from torch import nn

from batchgrowth_trainer.blame.advice import advice_for
from batchgrowth_trainer.blame.faults import FAULTS, DeviceFault, is_asserted, is_of_the_device

_LOG = logging.getLogger(__name__)
_OURS = Path(__file__).parents[1]
_BY_DEFAULT = "call the model, then the loss, with a few examples in Python to see the whole traceback"
_CALLS = ("forward", "_call_impl")  # not __init__: the module must be whole
_LONGEST_LAYER = 100  # characters
_FOR_OTHERS = re.compile(r"\nSearch for `cuda|, but you set 'torch.use_deterministic")
"""Where torch's advice begins to those who write kernels, or set what the trainer sets."""
_begun: list[str] = []
"""Where the function of the workload is that this process loaded last."""


class reported_as_workload_error:  # noqa: N801
    """Turn exceptions that the workload raises inside the block into WorkloadErrors; our own errors pass unchanged.

    `remedy` is what their text says at the end, by default what helps against that exception.
    A class, like contextlib.suppress, since it is entered several times in each update: a generator costs 4 µs.
    """

    __slots__ = ("_remedy", "_what")

    def __init__(self, what: str, remedy: str | None = None) -> None:
        self._what, self._remedy = what, remedy

    def __enter__(self) -> None:
        """Nothing is prepared."""

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        """Raise the WorkloadError, a DeviceFault for an error of the device.

        Other exceptions than FAULTS pass, such as KeyboardInterrupt.
        """
        if isinstance(error, FAULTS) and not isinstance(error, BatchGrowthError):
            raise workload_error(self._what, error, self._remedy) from error


class reported_as_device_fault(reported_as_workload_error):  # noqa: N801
    """Turn errors of the device that are raised inside the block into what `workload_error` makes of them.

    Others pass unchanged.
    """

    __slots__ = ()

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """Raise the DeviceFault, or the WorkloadError."""
        if is_of_the_device(error):
            super().__exit__(kind, error, traceback)


def workload_error(what: str, error: BaseException, remedy: str | None = None) -> WorkloadError:
    """The WorkloadError for an exception of `what`; a DeviceFault if the device raised it, and may not elsewhere."""
    text = described(what, error, remedy)
    passing = is_of_the_device(error) and not is_asserted(error)
    return DeviceFault(text, type(error).__name__) if passing else WorkloadError(text)


def described(what: str, error: BaseException, remedy: str | None = None) -> str:
    """One paragraph: `what` ran, the exception, the innermost line of the user's own code, and the remedy.

    If no line is the user's, and no remedy is given, it names the line of the workload's function.
    """
    text = f"{what} raised {reason(error)}; {remedy or advice_for(error) or _BY_DEFAULT}"
    users = _line_of_syntax(error) or any(
        _is_users(frame.filename) for frame in traceback.extract_tb(error.__traceback__)
    )
    return text if users or remedy else text + seen_at(None)


def reason(error: BaseException) -> str:
    """The exception, and where it was raised: in the user's file, or in a layer of the model."""
    _LOG.debug("an error of the workload", exc_info=error)
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    lines = [line for _, line in traceback.walk_tb(error.__traceback__)]
    users = [at for at, frame in enumerate(frames) if _is_users(frame.f_code.co_filename)]
    last = users[-1] if users else -1
    parts = [_line_of_syntax(error)]
    if users and not parts[0]:
        parts.append(f"{frames[last].f_code.co_filename}:{lines[last]}, in {frames[last].f_code.co_name}")
    parts.append(_layer(frames, last))
    at = "; ".join(filter(None, parts))
    text = error.msg if isinstance(error, SyntaxError) and parts[0] else _FOR_OTHERS.split(str(error))[0]
    return " ".join(f"{type(error).__name__}: {text}{at and f' ({at})'}".split())


def seen_at(function: Any) -> str:
    """`; see FILE:LINE, in NAME` for a function or a method of the user's, by default for the workload's function."""
    while isinstance(function, partial):
        function = function.func
    if isinstance(function, nn.Module):
        function = type(function).forward
    code = getattr(unwrap(function), "__code__", None) if callable(function) else None
    if code is None or not _is_users(code.co_filename):
        return "".join(_begun)
    return f"; see {code.co_filename}:{code.co_firstlineno}, in {code.co_name}"


def begin(function: Any) -> None:
    """Remember the function of the workload, which errors name that have no line of their own in the user's code."""
    _begun.clear()
    _begun[:] = [seen_at(function)]


def _line_of_syntax(error: BaseException) -> str:
    """Where a file cannot be parsed; no frame has that line."""
    return f"{error.filename}:{error.lineno}" if isinstance(error, SyntaxError) and error.filename else ""


def _layer(frames: list[FrameType], after: int) -> str:
    """The innermost layer of a library that was being called after the user's innermost frame, by its name."""
    modules = [(at, frame.f_locals.get("self")) for at, frame in enumerate(frames) if frame.f_code.co_name in _CALLS]
    called = [(at, module) for at, module in modules if isinstance(module, nn.Module)]
    if not called or called[-1][0] <= after:
        return ""
    layer = called[-1][1]
    names = [name for _, outer in called for name, module in outer.named_modules() if module is layer and name]
    return f"in {f'layer {names[0]}: ' if names else ''}{layer!r:.{_LONGEST_LAYER}}"


def _is_users(filename: str) -> bool:
    path = Path(filename)
    library = "site-packages" in path.parts or filename.startswith(("<", sysconfig.get_path("stdlib")))
    return not library and _OURS not in path.parents
