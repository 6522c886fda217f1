"""Describes errors of users' code in one paragraph that names their file and line."""

import sysconfig
import traceback
from pathlib import Path

from batchgrowth.errors import BatchGrowthError, WorkloadError

from batchgrowth_trainer.faults import DeviceFault, is_of_the_device

_HERE = Path(__file__).parent


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

        Other exceptions than Exception pass, such as KeyboardInterrupt.
        """
        if isinstance(error, Exception) and not isinstance(error, BatchGrowthError):
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
