"""What in a process decides the bits of a replica's results: device, precision, settings and compiled code.

Its seeds are in seeds.py.
"""

import ctypes
import os
import shutil
import stat
import sysconfig
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch
from batchgrowth.contract.environment import ARENAS, MMAPPED_CHUNKS, TRIM_THRESHOLD_BYTES
from batchgrowth.errors import WorkloadError
from batchgrowth.spec import JobSpec

from batchgrowth_trainer.user_errors import DeviceFault

ALONE = threading.RLock()
"""Held by a thread while it uses the modules, threads and generators of the process as a run needs them.

A run that trains in this process holds it until its end, so that another run, or a model that is loaded, waits.
"""

# The parameters of mallopt(3).
_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4
_M_ARENA_MAX = -8


# --- The device, and the settings of the process ---


def make_device(spec: JobSpec) -> torch.device:
    """Return the device that workload.device names; Auto is a GPU if one is visible.

    Raises DeviceFault if CUDA is missing.
    """
    wanted = spec.workload.device
    if wanted == "CUDA" and not torch.cuda.is_available():
        raise DeviceFault("workload.device: CUDA was requested but no CUDA device is visible; use Auto or CPU")
    return torch.device("cuda" if wanted != "CPU" and torch.cuda.is_available() else "cpu")


def prepare_process(spec: JobSpec) -> None:
    """Set threads, deterministic kernels and the allocator, which decide the bits and the speed of the results."""
    torch.set_num_threads(spec.workers.threads)
    _keep_memory()
    if torch.cuda.is_available():
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.backends.cudnn.benchmark = False
        torch.backends.cuda.matmul.allow_tf32 = spec.precision == "TensorFloat32"
        torch.backends.cudnn.allow_tf32 = spec.precision == "TensorFloat32"
        # Not with warn_only: torch would then compute attention by kernels that add in another order each time.
        torch.use_deterministic_algorithms(spec.deterministic is not False)
        # Deterministic mode would also fill each new tensor, which takes a kernel more.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def _keep_memory() -> None:
    """Make glibc keep freed memory in a process that was not started with the variables of `worker_environment`."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return  # another C library, with another allocator
    mallopt(_M_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES)
    mallopt(_M_MMAP_MAX, MMAPPED_CHUNKS)
    mallopt(_M_ARENA_MAX, ARENAS)


def autocast(spec: JobSpec, device: torch.device) -> AbstractContextManager[object]:
    """Return a context in which torch computes with spec.precision."""
    if spec.precision == "BFloat16":
        return torch.autocast(device.type, torch.bfloat16)
    return nullcontext()  # entering autocast takes several microseconds, even if it does nothing


MOST_OTHER_REASONS = 64
"""The most compilations of a function beyond one for each size that a shard can have; torch alone would then silently
fall back to the interpreter.
"""


_LIMIT: ContextVar[int] = ContextVar("_LIMIT", default=0)  # as torch's settings: each task of Dask has its own


class Compiled:
    """A compiled `function`, which never falls back to the interpreter."""

    def __init__(self, function: Callable[..., Any], spec: JobSpec, device: torch.device) -> None:
        """Raise WorkloadError if there is no compiler for the device, or another user could change compiled code."""
        if lacking := _lacking(device):
            raise WorkloadError(
                f"compile: true needs {lacking}, which this machine does not have. Install it, in pods by an image "
                "FROM ours (docs/training.md), or remove compile from the spec."
            )
        _keep_cache_private()
        self._most = spec.shard + MOST_OTHER_REASONS
        options: dict[str, str | int | bool | Callable[..., Any]]
        options = {"compile_threads": 1, "cpp.threads": spec.workers.threads, "deterministic": True}
        self._call = torch.compile(function, dynamic=False, options=options)

    def __call__(self, *arguments: Any) -> Any:
        """Return the function's result. Raises its errors, and WorkloadError after too many recompilations."""
        from torch._dynamo import config
        from torch._dynamo.exc import FailOnRecompileLimitHit

        if _LIMIT.get() != self._most:
            config.recompile_limit = self._most
            config.accumulated_recompile_limit = 2 * self._most
            config.fail_on_recompile_limit_hit = True
            _LIMIT.set(self._most)
        try:
            return self._call(*arguments)
        except FailOnRecompileLimitHit as error:
            raise WorkloadError(
                f"compile: the workload was compiled {self._most} times, as something other than the number of "
                "examples differs from shard to shard, such as the length of the longest. Pad to a few lengths, keep "
                f"numbers that change in tensors, or remove compile from the spec. torch says: {error}"
            ) from error


def _keep_cache_private() -> None:
    """Make torch's cache of compiled code a private folder, unless a variable names another.

    Its default name is the same for each process of a user and lies in a folder to which everybody may write, so
    another user can make it first. Raises WorkloadError if another user owns it or may write to it.
    """
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    folder = Path(default_cache_dir())
    if "TORCHINDUCTOR_CACHE_DIR" in os.environ:
        return
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700, parents=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & stat.S_IWOTH:
        raise WorkloadError(
            f"compile: {folder}, where torch keeps compiled code, belongs to another user, or others may write to it, "
            "and that code would run as you. Name a folder of your own by the variable TORCHINDUCTOR_CACHE_DIR"
        )


def _lacking(device: torch.device) -> str:
    """Return the name of the tool that is missing to compile for the device; empty if none is."""
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler
    from torch.utils._triton import has_triton

    if device.type == "cuda":
        compilers = os.environ.get("CC", ""), "gcc", "clang"
        has_compiler = any(shutil.which(name) for name in compilers if name)
        return "" if has_triton() and has_compiler else "Triton and a C compiler (gcc; CC names another)"
    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        return "a C++ compiler (g++; CXX names another)"
    header = Path(sysconfig.get_path("include")) / "Python.h"
    return "" if header.exists() else f"Python's headers (python3-dev; {header})"
