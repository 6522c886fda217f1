"""Running programs, in the foreground and in the background."""

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
    """A program in the background and its log."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def check(self) -> None:
        """Raise HarnessError with the end of the log if the program has ended."""
        if self.process.poll() is not None:
            raise HarnessError(
                f"{self.name} ended with code {self.process.returncode}; its log ends:\n{tail(self.log)}"
            )


def run(
    argv: Sequence[Argument], *, given: str | None = None, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program with `given` on its standard input; return its output, whatever its exit code."""
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
    """Return a program's standard output. Raises HarnessError with its error output if it fails."""
    done = run(argv, given=given, environment=environment)
    if done.returncode:
        error = (done.stderr or done.stdout).strip()
        raise HarnessError(f"{' '.join(map(str, argv[:4]))} … ended with code {done.returncode}: {error[-4000:]}")
    return done.stdout


def logged(argv: Sequence[Argument], log: Path, *, folder: Path, environment: Mapping[str, str] | None = None) -> None:
    """Run a long command with its output in a log. Raises HarnessError with the end of the log if it fails.

    Makes the log's folder, since users may remove the cache.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
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


def start(name: str, argv: Sequence[Argument], log: Path, *, group: int | None = None) -> Server:
    """Start a program in a process group, or without one in a new session, which outlives this process."""
    with log.open("ab") as sink:
        process = subprocess.Popen(  # noqa: S603
            [str(word) for word in argv],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            process_group=group,
            start_new_session=group is None,
        )
    return Server(name, process, log)


def until(what: str, ready: Callable[[], bool], server: Server, *, seconds: float = 60) -> None:
    """Return when `ready()` is true. Raises HarnessError with the log if the server ends or the wait times out."""
    end = monotonic() + seconds
    while not ready():
        server.check()
        if monotonic() > end:
            raise HarnessError(
                f"{what}: not within {seconds:.0f} s; the log of {server.name} ends:\n{tail(server.log)}"
            )
        sleep(0.05)


def tail(log: Path, lines: int = 30) -> str:
    """Return the last lines of a log, and its path."""
    text = log.read_text(errors="replace") if log.exists() else ""
    return "\n".join([*text.splitlines()[-lines:], f"({log})"])
