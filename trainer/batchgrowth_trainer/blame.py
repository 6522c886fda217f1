"""Describes errors of users' code in one paragraph that names their file and line."""

import sysconfig
import traceback
from pathlib import Path

from batchgrowth.errors import BatchGrowthError, WorkloadError

FAULTS = (Exception, SystemExit)
"""What counts as a fault of the workload if its code raises it: an exit would end the trainer as if all were done."""

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
        """Raise the WorkloadError. Other exceptions than FAULTS pass, such as KeyboardInterrupt."""
        if isinstance(error, FAULTS) and not isinstance(error, BatchGrowthError):
            raise WorkloadError(described(self._what, error)) from error


def described(what: str, error: BaseException) -> str:
    """One paragraph: `what` ran, the exception, and the innermost line of the user's own code."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_users(frame.filename)]
    at = f" ({frames[-1].filename}:{frames[-1].lineno}, in {frames[-1].name})" if frames else ""
    return " ".join(f"{what} raised {type(error).__name__}: {error}{at}".split())


def _is_users(filename: str) -> bool:
    path = Path(filename)
    library = "site-packages" in path.parts or filename.startswith(("<", sysconfig.get_path("stdlib")))
    return not library and path.parent != _HERE and path.parent.parent != _HERE
