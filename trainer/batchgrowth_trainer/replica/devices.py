"""The device a replica computes on, and the process settings that make its results reproducible."""

import ctypes
import os
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from batchgrowth.contract.environment import ARENAS, MMAPPED_CHUNKS, TRIM_THRESHOLD_BYTES
from batchgrowth.spec import JobSpec
from torch import Tensor

from batchgrowth_trainer.blame import DeviceFault

# The parameters of mallopt(3).
_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4
_M_ARENA_MAX = -8


def make_device(spec: JobSpec) -> torch.device:
    """Return the device workload.device names; Auto is a GPU if one is visible.

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
        # Only warned, torch would compute attention by kernels that add in another order each time.
        torch.use_deterministic_algorithms(spec.deterministic is not False)
        # It would fill each new tensor, which takes a kernel more.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def _keep_memory() -> None:
    """Make glibc keep freed memory, as `worker_environment` does from the beginning, also for the first thread."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return  # another C library, with another allocator
    mallopt(_M_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES)
    mallopt(_M_MMAP_MAX, MMAPPED_CHUNKS)
    mallopt(_M_ARENA_MAX, ARENAS)


def autocast(spec: JobSpec, device: torch.device) -> AbstractContextManager[object]:
    """Return the arithmetic of spec.precision, for the block."""
    if spec.precision == "BFloat16":
        return torch.autocast(device.type, torch.bfloat16)
    return nullcontext()  # entering autocast takes several microseconds, even if it does nothing


def to_device(value: Any, device: torch.device) -> Any:
    """`value` with every tensor, also those in tuples, lists and dicts, moved to `device`.

    To a GPU a tensor is copied from pinned memory, so that the copy does not hold up the process.
    """
    if device.type == "cpu":
        return value
    if isinstance(value, Tensor):
        return _pinned(value, device).to(device, non_blocking=True)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(to_device(item, device) for item in value))
    if isinstance(value, (tuple, list)):
        return type(value)(to_device(item, device) for item in value)
    if isinstance(value, dict):
        return {key: to_device(item, device) for key, item in value.items()}
    return value


def _pinned(value: Tensor, device: torch.device) -> Tensor:
    """`value` in pinned memory if it must be copied to a GPU; torch keeps that memory until the copy has ended."""
    is_copied = device.type == "cuda" and value.device.type == "cpu" and value.layout is torch.strided
    return value.pin_memory() if is_copied and not value.is_pinned() else value
