"""The way to a Dask scheduler that somebody else runs: it may not be there yet, and it may go away."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from batchgrowth.errors import ClusterError, Interrupted
from distributed import Client

from batchgrowth_trainer.worker.addresses import KNOCK_SECONDS, PAUSE_SECONDS, host_and_port

_CONNECT_SECONDS = 10.0
_CLOSE_SECONDS = 5.0

LOST = (
    "the connection to the Dask scheduler was lost; look whether the scheduler still runs, "
    "then --resume goes on from the last checkpoint"
)


class SchedulerLost(ClusterError):
    """The scheduler went away, and with it every task of this run."""


def connect(address: str, patience: float, stop_requested: Callable[[], bool], tell: Callable[[str], None]) -> Client:
    """A client of the scheduler at `address`, as soon as it answers; `tell` hears what is being waited for.

    Raises ClusterError where it does not answer within `patience` seconds or the address is none, and Interrupted
    where a stop is asked for meanwhile.
    """
    began, trouble = time.monotonic(), "nothing listens there"
    try:
        host, port = host_and_port(address)
        while not stop_requested():
            try:
                socket.create_connection((host, port), timeout=KNOCK_SECONDS).close()
                return Client(address, timeout=_CONNECT_SECONDS)
            except OSError as error:
                trouble = str(error)
            if time.monotonic() - began > patience:
                raise _no_answer(address, trouble)
            tell(f"the Dask scheduler at {address}")
            time.sleep(PAUSE_SECONDS)
    except ValueError as error:
        raise _no_answer(address, str(error)) from error
    raise Interrupted(f"stopped while waiting for the Dask scheduler at {address} ({trouble})")


@contextmanager
def connection(
    address: str, patience: float, stop_requested: Callable[[], bool], tell: Callable[[str], None]
) -> Iterator[Client]:
    """The client that `connect` makes, closed at the end; a scheduler that does not answer holds nobody up for long."""
    client = connect(address, patience, stop_requested, tell)
    try:
        yield client
    finally:
        with suppress(TimeoutError):
            client.close(timeout=_CLOSE_SECONDS)


def _no_answer(address: str, trouble: str) -> ClusterError:
    return ClusterError(
        f"--scheduler {address}: no Dask scheduler answers there ({trouble}); "
        "give its address, for example tcp://10.0.0.1:8786 or tls://…"
    )
