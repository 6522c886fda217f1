"""The one place that starts programs."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep

from cluster.errors import HarnessError

Argument = str | Path


@dataclass(frozen=True, slots=True)
class Server:
    """A program in the background, and where it writes."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def check(self) -> None:
        """HarnessError with the end of its log if it has ended."""
        if self.process.poll() is not None:
            raise HarnessError(
                f"{self.name} ended with code {self.process.returncode}; its log ends:\n{tail(self.log)}"
            )


def run(
    argv: Sequence[Argument], *, given: str | None = None, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """What a program said, whatever its exit code."""
    return subprocess.run(  # noqa: S603
        [str(word) for word in argv],
        input=given,
        stdin=subprocess.DEVNULL if given is None else None,
        capture_output=True,
        check=False,
        text=True,
        env=None if environment is None else os.environ | environment,
    )


def output(argv: Sequence[Argument], *, given: str | None = None, environment: Mapping[str, str] | None = None) -> str:
    """Standard output of a program; HarnessError with what it said if it fails."""
    done = run(argv, given=given, environment=environment)
    if done.returncode:
        told = (done.stderr or done.stdout).strip()
        raise HarnessError(f"{' '.join(map(str, argv[:4]))} … ended with code {done.returncode}: {told[-4000:]}")
    return done.stdout


def logged(argv: Sequence[Argument], log: Path, *, folder: Path, environment: Mapping[str, str] | None = None) -> None:
    """Runs a long command with everything it says in a file; HarnessError with the file's end if it fails."""
    with log.open("ab") as sink:
        code = subprocess.run(  # noqa: S603
            [str(word) for word in argv],
            cwd=folder,
            env=os.environ | (environment or {}),
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            check=False,
        ).returncode
    if code:
        raise HarnessError(f"{' '.join(map(str, argv[:3]))} … ended with code {code}; its log ends:\n{tail(log)}")


def start(
    name: str,
    argv: Sequence[Argument],
    log: Path,
    *,
    group: int | None = None,
    environment: Mapping[str, str] | None = None,
) -> Server:
    """A program in the background: in the given process group, or in a session of its own that outlives this one."""
    with log.open("ab") as sink:
        process = subprocess.Popen(  # noqa: S603
            [str(word) for word in argv],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            env=os.environ | (environment or {}),
            process_group=group,
            start_new_session=group is None,
        )
    return Server(name, process, log)


def until(what: str, ready: Callable[[], bool], server: Server, *, seconds: float = 60) -> None:
    """Returns when it is ready; HarnessError with the server's log if the server ends or the time is over."""
    end = monotonic() + seconds
    while not ready():
        server.check()
        if monotonic() > end:
            raise HarnessError(
                f"{what}: not within {seconds:.0f} s; the log of {server.name} ends:\n{tail(server.log)}"
            )
        sleep(0.05)


def tail(log: Path, lines: int = 30) -> str:
    """The last lines of a log, and where the rest is."""
    text = log.read_text(errors="replace") if log.exists() else ""
    return "\n".join([*text.splitlines()[-lines:], f"({log})"])
