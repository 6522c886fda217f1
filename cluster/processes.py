"""Running programs, in the foreground and in the background."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep

from cluster.errors import HarnessError
from cluster.network import RANGES

Argument = str | Path
# The sbin folders are not on every user's PATH, and the programs of a node look for others there.
SBIN = ("/usr/local/sbin", "/usr/sbin", "/sbin")
UMASK = 0o022
"""Of all programs, since pods run as other users: they must be able to read what a stricter one would hide."""


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
    """Run a program with `given` on its standard input; return its output, whatever its exit code.

    Raises HarnessError if there is no such program, as after a change of its version or without the cache.
    """
    with _missing(argv):
        return subprocess.run(  # noqa: S603
            [str(word) for word in argv],
            input=given,
            stdin=subprocess.DEVNULL if given is None else None,
            capture_output=True,
            check=False,
            text=True,
            env=_environment(environment or {}),
            umask=UMASK,
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
    with log.open("ab") as sink, _missing(argv):
        code = subprocess.run(  # noqa: S603
            [str(word) for word in argv],
            cwd=folder,
            env=_environment(environment or {}),
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            check=False,
            umask=UMASK,
        ).returncode
    if code:
        raise HarnessError(f"{' '.join(map(str, argv[:3]))} … ended with code {code}; its log ends:\n{tail(log)}")


def start(name: str, argv: Sequence[Argument], log: Path, *, group: int | None = None) -> Server:
    """Start a program in a process group, or without one in a new session, which outlives this process."""
    with log.open("ab") as sink, _missing(argv):
        process = subprocess.Popen(  # noqa: S603
            [str(word) for word in argv],
            env=_environment({}),
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            process_group=group,
            start_new_session=group is None,
            umask=UMASK,
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


@contextmanager
def _missing(argv: Sequence[Argument]) -> Iterator[None]:
    """Raise HarnessError if the program is not there."""
    try:
        yield
    except FileNotFoundError as error:
        raise HarnessError(f"{argv[0]} is missing; `python -m cluster build` builds the cluster's programs") from error


def _environment(more: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment, with all programs on PATH, no proxy to the cluster's addresses, and `more`."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *SBIN])
    direct = ",".join(filter(None, [os.environ.get("NO_PROXY") or os.environ.get("no_proxy"), *RANGES]))
    return {**os.environ, "PATH": path, "NO_PROXY": direct, "no_proxy": direct, **more}
