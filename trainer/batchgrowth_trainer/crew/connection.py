"""The connection to an existing Dask scheduler, which may start late and may be lost."""

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import dask
from batchgrowth.errors import ClusterError, Interrupted
from distributed import Client

from batchgrowth_trainer.worker import certificates
from batchgrowth_trainer.worker.addresses import CONNECT_SECONDS, RETRY_SECONDS, host_and_port

_CLIENT_SECONDS = 10.0
_CLOSE_SECONDS = 5.0
_PRELOAD = "distributed.client.preload"

LOST = (
    "the connection to the Dask scheduler was lost; check that the scheduler still runs, "
    "then --resume goes on from the last checkpoint"
)


class SchedulerLost(ClusterError):
    """The scheduler was lost, and with it every task of this run."""


def connect(address: str, patience: float, stop_requested: Callable[[], bool], report: Callable[[str], None]) -> Client:
    """A client of the scheduler at `address`, once it answers; `report` is called with what is waited for.

    Raises ClusterError if it does not answer within `patience` seconds or the address is malformed, and Interrupted if
    a stop is requested before.
    """
    began, trouble = time.monotonic(), "nothing listens there"
    try:
        host, port = host_and_port(address)
        while not stop_requested():
            try:
                socket.create_connection((host, port), timeout=CONNECT_SECONDS).close()
                with dask.config.set({_PRELOAD: [*dask.config.get(_PRELOAD), certificates.__name__]}):
                    return Client(address, timeout=_CLIENT_SECONDS)
            except OSError as error:
                trouble = str(error)
            if time.monotonic() - began > patience:
                raise _no_answer(address, trouble)
            report(f"the Dask scheduler at {address}")
            time.sleep(RETRY_SECONDS)
    except ValueError as error:
        raise _no_answer(address, str(error)) from error
    raise Interrupted(f"stopped while waiting for the Dask scheduler at {address} ({trouble})")


@contextmanager
def connection(
    address: str, patience: float, stop_requested: Callable[[], bool], report: Callable[[str], None]
) -> Iterator[Client]:
    """The client that `connect` makes; see `closed_in_time`."""
    with closed_in_time(connect(address, patience, stop_requested, report)) as client:
        yield client


@contextmanager
def closed_in_time(client: Client) -> Iterator[Client]:
    """The client, which is closed at the end; closing it times out soon if the scheduler does not answer."""
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
