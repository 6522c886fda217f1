"""The connection to an existing Dask scheduler, which may start late and may be lost, and its event loop."""

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import dask
from batchgrowth.errors import ClusterError, Fault, Interrupted, SpecError
from distributed import Client
from distributed.comm import CommClosedError

from batchgrowth_trainer.worker import certificates
from batchgrowth_trainer.worker.addresses import CONNECT_SECONDS, RETRY_SECONDS, host_and_port

_CLIENT_SECONDS = 10.0
_CLOSE_SECONDS = 5.0
_PRELOAD = "distributed.client.preload"
HUNG_SECONDS = 300.0
"""The silence after which an event loop counts as hung; Dask waits as long for a silent worker."""

LOST = (
    "the connection to the Dask scheduler was lost; check that the scheduler still runs, "
    "then --resume goes on from the last checkpoint"
)

_REMEDY = "give its address, for example tcp://10.0.0.1:8786 or tls://…"

log = logging.getLogger(__name__)


class LoopWatch:
    """Tells the trainer's liveness probe whether the event loop of the connection to Dask still runs.

    Each probe asks the loop for a sign of life. It asks only that loop, because without it the driver waits
    forever, and nothing slow runs on it. The driver's own thread may take any time to load data, evaluate, or wait
    for storage.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asked_at: float | None = None  # None once the loop has answered
        self._logged = False

    @contextmanager
    def watching(self, loop: asyncio.AbstractEventLoop) -> Iterator[None]:
        """Watch this event loop inside the block."""
        self._asked_at = None
        self._loop = loop
        self._logged = False
        try:
            yield
        finally:
            self._loop = None

    def trouble(self) -> str:
        """Return a line about a hanging loop; empty if none hangs. Log it once, so that the pod's log shows it."""
        # Copies, since the loop and the driver change both at any moment.
        loop = self._loop
        asked_at = self._asked_at
        now = time.monotonic()
        if loop is None:
            return ""
        if asked_at is None:
            self._asked_at = now
            with suppress(RuntimeError):  # a closed loop does not answer either
                loop.call_soon_threadsafe(self._answer)
            return ""
        if now - asked_at < HUNG_SECONDS:
            return ""
        trouble = f"the event loop of the connection to Dask has not turned for {now - asked_at:.0f} s"
        if not self._logged:
            self._logged = True
            log.error("%s; the liveness probe ends this trainer", trouble)
        return trouble

    def _answer(self) -> None:
        self._asked_at = None


class SchedulerLost(ClusterError):
    """The scheduler was lost, and with it every task of this run."""


def connect(address: str, patience: float, stop_requested: Callable[[], bool], report: Callable[[str], None]) -> Client:
    """Return a client of the scheduler at `address` once it answers; `report` gets a line about the wait.

    Raises ClusterError if it does not answer within `patience` seconds, SpecError if the address is malformed, and
    Interrupted if a stop is requested before.
    """
    began = time.monotonic()
    trouble = "nothing listens there"
    try:
        host, port = host_and_port(address)
        while not stop_requested():
            try:
                # A client backs off after each failure, so it would find a scheduler that starts late much later.
                socket.create_connection((host, port), timeout=CONNECT_SECONDS).close()
                with dask.config.set({_PRELOAD: [*dask.config.get(_PRELOAD), certificates.__name__]}):
                    return Client(address, timeout=_CLIENT_SECONDS)
            except OSError as error:
                trouble = str(error)
            if time.monotonic() - began > patience:
                raise ClusterError(f"--scheduler {address}: no Dask scheduler answers there ({trouble}); {_REMEDY}")
            report(f"the Dask scheduler at {address}")
            time.sleep(RETRY_SECONDS)
    except ValueError as error:
        raise SpecError([Fault("--scheduler", f"{address!r} is no address ({error})", _REMEDY)]) from error
    raise Interrupted(f"stopped while waiting for the Dask scheduler at {address} ({trouble})")


@contextmanager
def connection(
    address: str, patience: float, stop_requested: Callable[[], bool], report: Callable[[str], None]
) -> Iterator[Client]:
    """Yield the client that `connect` makes, and close it in time at the end."""
    with closed_in_time(connect(address, patience, stop_requested, report)) as client:
        yield client


@contextmanager
def closed_in_time(client: Client) -> Iterator[Client]:
    """Yield the client and close it at the end; closing times out soon if the scheduler does not answer."""
    try:
        yield client
    finally:
        with suppress(TimeoutError):
            client.close(timeout=_CLOSE_SECONDS)


@contextmanager
def closed_is_lost(client: Client) -> Iterator[None]:
    """Raise CommClosedError, an OSError, for whatever the block raises while the client is not connected.

    A client that cannot reconnect closes, and then its calls raise ClosedClientError, RuntimeError or AttributeError,
    depending on how far each has come.
    """
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        if client.status == "running":
            raise
        raise CommClosedError(f"the client is {client.status}: {error!r}") from error
