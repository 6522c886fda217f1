"""Where the members of a generation find each other: a store in the driver, one per generation.

One per generation, so that closing it breaks the wait of those who still look for a member that has died.
"""

from __future__ import annotations

import socket
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

from batchgrowth_trainer.exchange.group import c10d


class Rendezvous:
    """A TCPStore on `host`, and on nothing but `host`."""

    def __init__(self, host: str) -> None:
        self.host = host
        self._listener = socket.create_server((host, 0), backlog=256)
        self.port = int(self._listener.getsockname()[1])
        self._store: Any = c10d.TCPStore(
            host,
            self.port,
            is_master=True,
            wait_for_workers=False,
            timeout=timedelta(seconds=30),
            master_listen_fd=self._listener.detach(),
        )

    def close(self) -> None:
        """Turn away whoever still waits; groups that stand already are not touched."""
        self._store = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
