"""The errors a user can meet, with their exit codes, and how texts show counts, times and secrets.

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
    └── Interrupted        130   stopped by the user; a resume goes on from the last checkpoint, if any

75 is EX_TEMPFAIL of sysexits.h and 130 is 128 + SIGINT, so that a Kubernetes Job or a shell can tell which failures
are worth a retry. cli.py (`_run`) and the trainer's __main__.py end the process with the error's code.
"""

import re
import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong with a manifest: the field, the given value, and what would be valid."""

    path: str
    given: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.path}: {self.given}; {self.remedy}"


class BatchGrowthError(Exception):
    """The root of all errors that a user can meet; its text is one paragraph that a user can act on."""

    exit_code: ClassVar[int] = 1

    def _render_traceback_(self) -> list[str]:
        """Return the text that a notebook shows instead of a traceback; it names the user's own line, if any."""
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
    """The user stopped the run; a resume goes on from its last checkpoint, if it has written one."""

    exit_code = 130


# A job's status and events quote texts that others wrote: the output of a workload, an error of its libraries, an event
# about its pod. More people may read them than the logs, so whatever looks like a secret is replaced in them. A secret
# that looks like any other word is not recognized.

REDACTED = "[redacted]"

_END_OF_KEY = re.compile(r"-----END [A-Z ]{0,30}PRIVATE KEY-----")
"""The last line of a key; its beginning may be missing, since Kubernetes keeps only the end of a log."""
_OF_KEYS = string.ascii_letters + string.digits + "+/=" + string.whitespace
"""The characters of a key."""

_NAMED = (
    r"password|passwd|passphrase|pwd|secret|token|api[_-]?key|access[_-]?key|account[_-]?key|private[_-]?key|"
    r"client[_-]?secret|credentials?|authorization|signature|sig"
)
_KNOWN = (
    r"-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----[^-]*(?:-----END [A-Z ]{0,30}PRIVATE KEY-----)?",
    r"eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*",  # a JSON web token, such as a service account's
    r"(?:AKIA|ASIA)[0-9A-Z]{16}",
    r"gh[opsur]_\w{30,}|github_pat_\w{30,}|glpat-[\w-]{20,}",
    r"hf_\w{30,}|sk-[\w-]{20,}|xox[abprs]-[\w-]{10,}|AIza[\w-]{35}",
)
_SECRETS = [
    *((re.compile(known), REDACTED) for known in _KNOWN),
    (re.compile(r"(://)[^\s/@\"']*:[^\s/@\"']*(@)"), rf"\1{REDACTED}\2"),
    (re.compile(r"\b((?:bearer|basic)\s+)[\w.~+/=-]{16,}", re.IGNORECASE), rf"\1{REDACTED}"),
    (
        re.compile(rf"((?:{_NAMED})[\"']?\s*[:=]\s*[\"']?)(?!\[redacted)(?:[^\s\"',;&)\]}}]{{6,}})", re.IGNORECASE),
        rf"\1{REDACTED}",
    ),
]


def redacted(text: str) -> str:
    """Return the text with everything that looks like a password, a token or a key replaced by REDACTED."""
    for pattern, instead in _SECRETS:
        text = pattern.sub(instead, text)
    # The end of a key whose beginning was cut off: no pattern above knows it, so all characters of a key before it go.
    end = _END_OF_KEY.search(text)
    if end is None:
        return text
    return redacted(f"{text[: end.start()].rstrip(_OF_KEYS)} {REDACTED}{text[end.end() :]}")


def counted(number: int, noun: str) -> str:
    """Return the number with its noun: 1 stage, 2 stages."""
    if number == 1:
        return f"1 {noun}"
    return f"{number:,} {noun}s"


_MINUTE = 60
_HOUR = 3600
"""Lengths of time in seconds."""


def duration(seconds: float) -> str:
    """Return the time as text: `12.3 s`, `4 min 05 s` or `2 h 07 min`."""
    if seconds < _MINUTE:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < _HOUR:
        return f"{whole // _MINUTE} min {whole % _MINUTE:02d} s"
    return f"{whole // _HOUR} h {whole % _HOUR // _MINUTE:02d} min"
