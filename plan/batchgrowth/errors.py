"""The errors a user can meet, each with the exit code that the command line gives it.

    BatchGrowthError         1   the root of the tree
    ├── SpecError            2   the manifest cannot be accepted; also a ValueError
    │   └── PodLimitError    2   its pods exceed the limits of the installation
    ├── PlanError            2   the manifest is well formed but has no sensible plan; also a ValueError
    ├── WorkloadError        3   the user's code raised, returned the wrong thing or produced NaN
    ├── DataError            4   the data is missing or not as declared
    ├── CheckpointError      5   a checkpoint cannot be written or read, or belongs to another job
    │   └── StorageError    75   retry: the disk is full, fails, or is locked by another run
    ├── PortError            6   a port is taken
    ├── ClusterError        75   retry: workers or the scheduler were lost or never connected
    │   └── Superseded      75   a later start of the job's trainer took over; this one has written nothing since
    └── Interrupted        130   stopped by the user; the checkpoint is written

75 is EX_TEMPFAIL of sysexits.h and 130 is 128 + SIGINT, so that a Kubernetes Job or a shell can tell which failures
are worth a retry.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong with a manifest: where, what was given there, and what would do."""

    path: str
    given: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.path}: {self.given}; {self.remedy}"


class BatchGrowthError(Exception):
    """The root of the tree; its text is one paragraph that a user can act on."""

    exit_code: ClassVar[int] = 1

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows in place of a traceback: the text names the user's own line if there is one."""
        return [f"{type(self).__name__}: {self}"]


class SpecError(BatchGrowthError, ValueError):
    """The manifest cannot be accepted; `faults` lists everything wrong with it, one line each."""

    exit_code = 2

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(map(str, self.faults)))


class PodLimitError(SpecError):
    """The workers' pods or their account exceed what the installation allows."""


class PlanError(BatchGrowthError, ValueError):
    """The manifest is well formed but has no sensible plan."""

    exit_code = 2


class WorkloadError(BatchGrowthError):
    """The user's code raised, returned the wrong thing or produced NaN."""

    exit_code = 3


class DataError(BatchGrowthError):
    """The data is missing or not as declared."""

    exit_code = 4


class CheckpointError(BatchGrowthError):
    """A checkpoint cannot be written or read, or belongs to another job."""

    exit_code = 5


class StorageError(CheckpointError):
    """The storage of checkpoints and results is full, fails, or is locked by another run; a retry may help."""

    exit_code = 75


class PortError(BatchGrowthError):
    """A port is taken."""

    exit_code = 6


class ClusterError(BatchGrowthError):
    """Workers or the scheduler were lost or never connected; a retry may help."""

    exit_code = 75


class Superseded(ClusterError):
    """A later start of the job's trainer has taken over, so this one ends and writes nothing more."""


class Interrupted(BatchGrowthError):
    """The user stopped the run; its checkpoint is written."""

    exit_code = 130
