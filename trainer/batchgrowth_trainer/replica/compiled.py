"""The workload's loss as torch.compile makes it: one kernel for many operations, the same in every worker.

Each size of shard is compiled for itself, so what is computed depends on the shard alone: not on what the process has
computed before, and not on which shapes it has seen.
"""

import os
import shutil
import sysconfig
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch
from batchgrowth.errors import WorkloadError
from batchgrowth.spec import JobSpec

MOST_OTHER_REASONS = 64
"""How often a function is compiled again beyond the sizes that a shard can have; torch then fell back in silence."""

_LIMIT: ContextVar[int] = ContextVar("_LIMIT", default=0)  # like torch's settings, of which each task of Dask has own


class Compiled:
    """`function` compiled, without a fallback to the interpreter."""

    def __init__(self, function: Callable[..., Any], spec: JobSpec, device: torch.device) -> None:
        """Raise WorkloadError if this machine has no compiler for the device."""
        if lacking := _lacking(device):
            raise WorkloadError(
                f"compile: true needs {lacking}, which this machine does not have. Install it, in pods by an image "
                "FROM ours (docs/training.md), or remove compile from the spec."
            )
        self._most = spec.shard + MOST_OTHER_REASONS
        options: dict[str, str | int | bool | Callable[..., Any]]
        options = {"compile_threads": 1, "cpp.threads": spec.workers.threads, "deterministic": True}
        self._call = torch.compile(function, dynamic=False, options=options)

    def __call__(self, *arguments: Any) -> Any:
        """Return what the function returns.

        Raises WorkloadError if it must be compiled too often, and what it raises.
        """
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


def _lacking(device: torch.device) -> str:
    """Return what is missing to compile for the device; empty if nothing is."""
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
