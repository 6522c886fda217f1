"""Servers that outlive the command that started them, each with a process-id file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from cluster.processes import Argument, Server, start


@dataclass(frozen=True, slots=True)
class Daemons:
    """The servers whose logs and process-id files are in a folder."""

    folder: Path

    def start(self, name: str, argv: Sequence[Argument]) -> Server:
        """Start a server in a new session and record its process id and start time; stop it if that fails."""
        server = start(name, argv, self.folder / f"{name}.log")
        note = self.folder / f"{name}.pid"
        try:
            note.write_text(_identity(psutil.Process(server.process.pid)))
        except OSError:  # the disk is full
            server.process.kill()
            server.process.wait()
            note.unlink(missing_ok=True)
            raise
        return server

    def names(self) -> list[str]:
        """Return the names of all servers that were started."""
        return sorted(path.stem for path in self.folder.glob("*.pid"))

    def process(self, name: str) -> psutil.Process | None:
        """Return the server's process; None if it has ended."""
        note = self.folder / f"{name}.pid"
        identity = note.read_text() if note.exists() else ""
        if not identity:  # empty if the machine lost its power
            return None
        try:
            process = psutil.Process(int(identity.partition(" ")[0]))
            same = _identity(process) == identity and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return None
        return process if same else None


def _identity(process: psutil.Process) -> str:
    """Return its id and when it started, because ids are reused.

    The time is one since the machine's start, because whoever sets the clock moves both.
    """
    return f"{process.pid} {process.create_time() - psutil.boot_time():.2f}"
