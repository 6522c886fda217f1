"""Servers that outlive the command that started them: a file per server says which process it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from cluster.processes import Argument, Server, start


@dataclass(frozen=True, slots=True)
class Daemons:
    """The servers whose logs and process files are in a folder."""

    folder: Path

    def start(self, name: str, argv: Sequence[Argument]) -> Server:
        """A server in a session of its own, written down before anything else happens."""
        server = start(name, argv, self.folder / f"{name}.log")
        # With the time of its start, for process ids come again.
        begun = psutil.Process(server.process.pid).create_time()
        (self.folder / f"{name}.pid").write_text(f"{server.process.pid} {begun}")
        return server

    def names(self) -> list[str]:
        """Every server that was started."""
        return sorted(path.stem for path in self.folder.glob("*.pid"))

    def process(self, name: str) -> psutil.Process | None:
        """The server's process, if it is still there."""
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

    def stop(self, seconds: float = 5) -> None:
        """Ends them all at once: politely, then by force."""
        there = [process for name in self.names() if (process := self.process(name))]
        for process in there:
            process.terminate()
        _, alive = psutil.wait_procs(there, timeout=seconds)
        for process in alive:
            process.kill()
        psutil.wait_procs(alive, timeout=seconds)
