"""Servers that live as long as a `with` block, or as the process around it."""

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
    """A temporary folder and a process group; both are gone at the end, and also when this process is killed."""

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
        """A server in the group, its log beside the others."""
        server = start(name, argv, self.folder / f"{name}.log", group=self._watchdog.pid)
        self._started.append(server)
        return server

    def stop(self, server: Server, number: int = signal.SIGTERM, seconds: float = 10) -> None:
        """Ends one server: politely, then by force."""
        if server.process.poll() is None:
            server.process.send_signal(number)
        try:
            server.process.wait(seconds)
        except subprocess.TimeoutExpired:
            server.process.kill()
            server.process.wait()

    def close(self) -> None:
        """Ends them all, the last one first. Their data is thrown away, so nobody is asked politely."""
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
    """What runs on servers of its own for as long as the `with` block; nothing is left where it does not come up."""

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
        """Start the servers; returns when they are ready."""
