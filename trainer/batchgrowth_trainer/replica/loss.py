"""The loss of a training shard, plain or as torch.compile makes it."""

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
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from batchgrowth_trainer.replica.devices import autocast
from batchgrowth_trainer.workload import Workload

# --- The workload's loss as torch.compile makes it: one kernel for many operations, the same in every worker ---
# Each size of shard is compiled for itself, so what is computed depends on the shard alone: not on what the process has
# computed before, and not on which shapes it has seen.

MOST_OTHER_REASONS = 64
"""How often a function is compiled again beyond the sizes that a shard can have; torch then fell back in silence."""

_LIMIT: ContextVar[int] = ContextVar("_LIMIT", default=0)  # like torch's settings, of which each task of Dask has own


class Compiled:
    """`function` compiled, without a fallback to the interpreter."""

    def __init__(self, function: Callable[..., Any], spec: JobSpec, device: torch.device) -> None:
        """Raises WorkloadError if this machine has no compiler for the device."""
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
        """What the function returns. Raises WorkloadError if it must be compiled too often, and what it raises."""
        from torch._dynamo import config
        from torch._dynamo.exc import FailOnRecompileLimitHit

        if _LIMIT.get() != self._most:
            config.recompile_limit, config.accumulated_recompile_limit = self._most, 2 * self._most
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
    """What is missing to compile for the device; empty if nothing is."""
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


# --- The loss of a training shard: what the workload's functions make of its examples ---


class Loss:
    """Computes the loss of a shard, in the arithmetic of spec.precision, compiled if spec.compile says so."""

    def __init__(self, spec: JobSpec, workload: Workload, model: nn.Module, device: torch.device) -> None:
        self._spec, self._workload, self._model, self._device = spec, workload, model, device
        self._values = Compiled(workload.values, spec, device) if spec.compile else workload.values
        self._modules = tuple(model.modules())
        self._norms = [m for m in self._modules if isinstance(m, _BatchNorm)]

    def begin(self) -> None:
        """Put the model into training mode, unless all of it is: to look takes less time than to do it."""
        if not all(module.training for module in self._modules):
            self._model.train()

    def __call__(self, inputs: Any, target: Any, count: int) -> Tensor:
        """The losses of the `count` examples of a shard, floats of shape (count,), with their graph.

        Raises WorkloadError if the workload returns something else than one loss per example.
        """
        workload = self._workload
        inputs = workload.augmented(inputs)
        # One example has no variance, so batch norm uses its running statistics.
        resting = [norm for norm in self._norms if norm.training] if count == 1 else []
        for norm in resting:
            norm.eval()
        with autocast(self._spec, self._device):
            losses = workload.checked(self._values(self._model, inputs, target), target, count)
        for norm in resting:
            norm.train()
        return losses

    def differentiate(self, losses: Tensor) -> Tensor:
        """Add the gradient of the sum of the losses to the parameters' own; the sum, of no dimensions, without a graph.

        To differentiate the losses themselves takes less time, but makes torch import sympy: .4 s, and tens of MiB of
        each process.
        """
        total = (losses.float() if losses.dtype is torch.bfloat16 else losses).sum()
        total.backward()  # type: ignore[no-untyped-call]
        return total.detach()
