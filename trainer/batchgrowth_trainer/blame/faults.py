"""Tells which errors of users' code, of their data or of a device may pass.

What may pass, by itself or on another worker, is no reason to end a job.
"""

import errno
import io

import torch
from batchgrowth.errors import BatchGrowthError, DataError, WorkloadError

FAULTS = (Exception, SystemExit)
"""What counts as a fault of the workload if its code raises it: an exit would end the trainer as if all were done."""

_LASTING_KINDS = (
    FileExistsError, FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError, io.UnsupportedOperation,
)  # fmt: skip
_LASTING = {errno.ELOOP, errno.ENAMETOOLONG, errno.EROFS}

_DEVICE_KINDS = (MemoryError, torch.OutOfMemoryError, torch.AcceleratorError)
_DEVICE_WORDS = (
    "CUDA error", "CUDA out of memory", "CUBLAS_STATUS_", "CUDNN_STATUS_", "cuDNN error", "NCCL error", "ECC error",
    "DefaultCPUAllocator: can't allocate memory",
)  # fmt: skip
_ASSERTED = "device-side assert"


class WorkerFault(BatchGrowthError):
    """An error that another worker may not have; its exit code counts once it recurs.

    `what` names the fault: two workers that raise the same at the same update have a common cause.
    """

    def __init__(self, text: str, what: str = "") -> None:
        super().__init__(text)
        self.what = what or text


class ReadFault(WorkerFault, DataError):
    """Data cannot be read at the moment, or on this worker."""


class DeviceFault(WorkerFault, WorkloadError):
    """The device or the memory of a worker failed."""


def is_of_the_device(error: BaseException | None) -> bool:
    """Whether torch or Python reports with this error that a device failed, or that memory ran out."""
    says_so = isinstance(error, RuntimeError) and any(word in str(error) for word in _DEVICE_WORDS)
    return says_so or isinstance(error, _DEVICE_KINDS)


def is_asserted(error: BaseException) -> bool:
    """Whether a kernel of a GPU refused what it was given, such as a class that is out of range, as all others would.

    Afterwards the process cannot use its GPU any more.
    """
    return isinstance(error, RuntimeError) and _ASSERTED in str(error)


def may_pass(error: BaseException | None) -> bool:
    """Whether this is an OSError that a retry may not meet: not one of a missing file or a missing right."""
    return isinstance(error, OSError) and not isinstance(error, _LASTING_KINDS) and error.errno not in _LASTING
