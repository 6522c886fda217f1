"""Servers that stop at the end of a `with` block, or when the process is killed."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from cluster import watchdog
from cluster.processes import Argument, Server, start


class Servers:
    """A temporary folder and a process group; a watchdog removes both, even if this process is killed."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="batchgrowth-cluster-"))
        self._started: list[Server] = []
        self._watchdog = subprocess.Popen(  # noqa: S603
            [sys.executable, "-I", watchdog.__file__, str(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            process_group=0,
        )

    def start(self, name: str, argv: Sequence[Argument]) -> Server:
        """Start a server in the group, with its log in the folder."""
        server = start(name, argv, self.folder / f"{name}.log", group=self._watchdog.pid)
        self._started.append(server)
        return server

    def stop(self, server: Server, number: int = signal.SIGTERM, seconds: float = 10) -> None:
        """Stop one server with a signal, then with SIGKILL when it times out."""
        if server.process.poll() is None:
            server.process.send_signal(number)
        try:
            server.process.wait(seconds)
        except subprocess.TimeoutExpired:
            server.process.kill()
            server.process.wait()

    def close(self) -> None:
        """Kills all servers, the last one first: their data is discarded, so none needs to shut down cleanly."""
        for server in reversed(self._started):
            self.stop(server, signal.SIGKILL)
        assert self._watchdog.stdin is not None
        self._watchdog.stdin.close()
        self._watchdog.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Servers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Served(ABC):
    """Base of classes that run servers for the length of a `with` block, and stop all of them if one fails to start."""

    _servers: Servers

    def __enter__(self) -> Self:
        self._servers = Servers()
        try:
            self._start()
        except BaseException:
            self._servers.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._servers.close()

    @abstractmethod
    def _start(self) -> None:
        """Start the servers; return when they are ready."""
