"""The store in the driver through which the members of a generation with GPUs find each other, as NCCL needs one.

One per generation: closing it unblocks the members that still wait for one that has died.
"""

import socket
from datetime import timedelta
from typing import Any

from batchgrowth_trainer.exchange.group import c10d


class Rendezvous:
    """A TCPStore that listens on `host` only."""

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
        """Disconnect the members that still wait; groups that have formed go on."""
        self._store = None
