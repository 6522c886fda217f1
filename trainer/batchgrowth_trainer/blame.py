"""Describes errors of users' code in one paragraph that names their file and line."""

import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from batchgrowth.errors import BatchGrowthError, WorkloadError

_HERE = Path(__file__).parent


@contextmanager
def reported_as_workload_error(what: str) -> Iterator[None]:
    """Turn exceptions that the workload raises inside the block into WorkloadErrors; our own errors pass unchanged."""
    try:
        yield
    except BatchGrowthError:
        raise
    except Exception as error:
        raise WorkloadError(described(what, error)) from error


def described(what: str, error: BaseException) -> str:
    """One paragraph: `what` ran, the exception, and the innermost line of the user's own code."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_users(frame.filename)]
    at = f" ({frames[-1].filename}:{frames[-1].lineno}, in {frames[-1].name})" if frames else ""
    return " ".join(f"{what} raised {type(error).__name__}: {error}{at}".split())


def _is_users(filename: str) -> bool:
    path = Path(filename)
    library = "site-packages" in path.parts or filename.startswith(("<", sysconfig.get_path("stdlib")))
    return not library and path.parent != _HERE and path.parent.parent != _HERE
