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
        """Start a server in a new session and record its process id and start time."""
        server = start(name, argv, self.folder / f"{name}.log")
        # With its start time, because process ids are reused.
        begun = psutil.Process(server.process.pid).create_time()
        (self.folder / f"{name}.pid").write_text(f"{server.process.pid} {begun}")
        return server

    def names(self) -> list[str]:
        """Return the names of all servers that were started."""
        return sorted(path.stem for path in self.folder.glob("*.pid"))

    def process(self, name: str) -> psutil.Process | None:
        """Return the server's process; None if it has ended."""
        path = self.folder / f"{name}.pid"
        if not path.exists():
            return None
        pid, begun = path.read_text().split()
        try:
            process = psutil.Process(int(pid))
            same = abs(process.create_time() - float(begun)) < 1 and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return None
        return process if same else None
