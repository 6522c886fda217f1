"""Describes errors of users' code in one paragraph that names their file and line, and tells what may pass.

What may pass, by itself or on another worker, is no reason to end a job.
"""

import errno
import io
import sysconfig
import traceback
from pathlib import Path

import torch
from batchgrowth.errors import BatchGrowthError, DataError, WorkloadError

FAULTS = (Exception, SystemExit)
"""What counts as a fault of the workload if its code raises it: an exit would end the trainer as if all were done."""

_HERE = Path(__file__).parent
_LASTING_KINDS = (
    FileExistsError, FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError, io.UnsupportedOperation,
)  # fmt: skip
_LASTING = {errno.ELOOP, errno.ENAMETOOLONG, errno.EROFS}

_DEVICE_KINDS = (MemoryError, torch.OutOfMemoryError, torch.AcceleratorError)
_DEVICE_WORDS = (
    "CUDA error", "CUDA out of memory", "CUBLAS_STATUS_", "CUDNN_STATUS_", "cuDNN error", "NCCL error", "ECC error",
    "DefaultCPUAllocator: can't allocate memory",
)  # fmt: skip


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


def may_pass(error: BaseException | None) -> bool:
    """Whether this is an OSError that a retry may not meet: not one of a missing file or a missing right."""
    return isinstance(error, OSError) and not isinstance(error, _LASTING_KINDS) and error.errno not in _LASTING


class reported_as_workload_error:  # noqa: N801
    """Turn exceptions that the workload raises inside the block into WorkloadErrors; our own errors pass unchanged.

    A class, like contextlib.suppress, since it is entered several times in each update: a generator costs 4 µs.
    """

    __slots__ = ("_what",)

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        """Nothing is prepared."""

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        """Raise the WorkloadError, a DeviceFault for an error of the device.

        Other exceptions than FAULTS pass, such as KeyboardInterrupt.
        """
        if isinstance(error, FAULTS) and not isinstance(error, BatchGrowthError):
            raise workload_error(self._what, error) from error


class reported_as_device_fault(reported_as_workload_error):  # noqa: N801
    """Turn errors of the device that are raised inside the block into DeviceFaults; others pass unchanged."""

    __slots__ = ()

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """Raise the DeviceFault."""
        if is_of_the_device(error):
            super().__exit__(kind, error, traceback)


def workload_error(what: str, error: BaseException) -> WorkloadError:
    """The WorkloadError for an exception of `what`; a DeviceFault if the device raised it."""
    text = described(what, error)
    return DeviceFault(text, type(error).__name__) if is_of_the_device(error) else WorkloadError(text)


def described(what: str, error: BaseException) -> str:
    """One paragraph: `what` ran, the exception, and the innermost line of the user's own code."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_users(frame.filename)]
    at = f" ({frames[-1].filename}:{frames[-1].lineno}, in {frames[-1].name})" if frames else ""
    return " ".join(f"{what} raised {type(error).__name__}: {error}{at}".split())


def _is_users(filename: str) -> bool:
    path = Path(filename)
    library = "site-packages" in path.parts or filename.startswith(("<", sysconfig.get_path("stdlib")))
    return not library and path.parent != _HERE and path.parent.parent != _HERE
