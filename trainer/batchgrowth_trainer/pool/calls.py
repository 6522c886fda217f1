"""Calls and requests to workers, which fail as soon as the worker is gone.

Dask keeps connecting to a dead worker for half a minute, and its own calls block as long; the driver must go on with
the others. A request uses Dask's connections but not its scheduler: tasks take longer, and need their data scattered
before and their results gathered after.
"""

import asyncio
import concurrent.futures
import logging
import time
from collections.abc import Callable, Collection, Coroutine
from concurrent.futures import CancelledError
from contextlib import suppress
from itertools import count
from pickle import PicklingError
from typing import Any, Literal, TypeVar

from batchgrowth.errors import BatchGrowthError
from distributed import Client, Future
from distributed.client import ClosedClientError
from distributed.core import clean_exception
from distributed.protocol import to_serialize
from distributed.protocol.pickle import dumps, loads

from batchgrowth_trainer.pool.connection import LOST, SchedulerLost, closed_is_lost
from batchgrowth_trainer.user_errors import described
from batchgrowth_trainer.worker.messages import COMPUTE

CALL_SECONDS = 60.0
"""The default timeout of a call, in seconds, besides the time for a large state."""
_STATE_BYTES_PER_SECOND = 10_000_000  # an answer may have a state three times: with its weights, and the best ones
_POLL_SECONDS = 0.02
_RETRY_SECONDS = 1.0
_UNANSWERABLE = (AttributeError, NotImplementedError, PicklingError, TypeError, ValueError)
"""Errors that a live worker raises, also for an answer that cannot be sent; other errors count as a lost worker."""
_NUMBERS = count()

Answer = TypeVar("Answer")
Asked = Callable[[], dict[str, Any] | None]
"""Returns the answers to a call, without those that failed; None until they have come."""

log = logging.getLogger(__name__)


class WorkerRequest:
    """The driver's direct request that a worker's thread computes something.

    It looks like a Dask future to code that waits for its end; `result` is the answer once `status` is "finished".
    The status is "lost" if the worker or the connection was lost, and "error" if `exception()` was raised on the
    way or in the worker.
    """

    def __init__(self) -> None:
        self.key = f"request-{next(_NUMBERS)}"
        self.status: Literal["pending", "finished", "error", "lost"] = "pending"
        self.result: Any = None
        self._error: BaseException | None = None

    def end(self, answer: Any) -> None:
        """Store the answer of the worker's handler: see `service.listen`."""
        if answer is None:
            self.status = "lost"
        elif isinstance(answer, dict):
            self.fail(clean_exception(**answer)[1])
        else:
            self.result = answer
            self.status = "finished"

    def fail(self, error: BaseException | None) -> None:
        """Store the error of the function, or the error that prevented the call or its answer."""
        self._error = error
        self.status = "error"

    def lose(self) -> None:
        """Note that the worker or the answer was lost."""
        self.status = "lost"

    def exception(self) -> BaseException | None:
        """Return the error if the request's status is "error", else None."""
        return self._error


def drop(task: Future) -> None:
    """Cancel a task whose result nobody needs; if the scheduler was lost, so was the task."""
    with suppress(ClosedClientError, OSError):
        task.cancel()


class Calls:
    """Makes calls through the client; `registered` has the addresses of the workers that the scheduler knows.

    `check` raises if there is no longer any reason to wait.
    """

    def __init__(self, client: Client, check: Callable[[], None] = lambda: None) -> None:
        self._client = client
        self._check = check
        self._loop: asyncio.AbstractEventLoop = client.loop.asyncio_loop
        self.registered: set[str] = set()
        self._seconds = CALL_SECONDS
        self._under_way: set[concurrent.futures.Future[Any]] = set()

    def allow_for(self, state_bytes: int) -> None:
        """Let later calls take as long as a slow network needs for a state of this size."""
        self._seconds = max(self._seconds, CALL_SECONDS + state_bytes / _STATE_BYTES_PER_SECOND)

    def wait(self, work: Coroutine[Any, Any, Answer], workers: Collection[str], seconds: float) -> Answer | None:
        """Return the coroutine's result; None if one of these workers leaves first, or after `seconds`. Raises the
        errors of the coroutine and of the check.
        """
        running = asyncio.run_coroutine_threadsafe(work, self._loop)
        ends = time.monotonic() + seconds
        try:
            # Polled, because neither a worker that leaves nor a requested stop would wake a wait for the result.
            while not concurrent.futures.wait([running], timeout=_POLL_SECONDS).done:
                if time.monotonic() > ends or not self.registered.issuperset(workers):
                    return None
                self._check()
        finally:
            running.cancel()  # does nothing to one that is done
        return self._result(running)

    def _result(self, running: concurrent.futures.Future[Answer]) -> Answer:
        """Return the result of a coroutine that is done. Raises its error, and an OSError if the client has closed."""
        with closed_is_lost(self._client):
            return running.result()

    def start(self, work: Coroutine[Any, Any, Answer]) -> concurrent.futures.Future[Answer]:
        """Start the coroutine without waiting for it; its errors are dropped unless the caller takes its result."""
        running = asyncio.run_coroutine_threadsafe(work, self._loop)
        self._under_way.add(running)
        running.add_done_callback(self._end)
        return running

    def close(self) -> None:
        """Cancel the coroutines that are still under way."""
        for running in list(self._under_way):
            running.cancel()

    def _end(self, running: concurrent.futures.Future[Any]) -> None:
        self._under_way.discard(running)
        if not running.cancelled():
            running.exception()  # retrieved, so that the event loop does not log it

    def ask(
        self, function: Callable[..., Any], *arguments: Any, workers: list[str], seconds: float | None = None
    ) -> dict[str, Any]:
        """Call a coroutine function on the event loops of these workers, and return {address: answer}, without failed
        calls.

        Raises the BatchGrowthError that a worker raised, a new one if a worker cannot answer, and SchedulerLost if the
        connection to the scheduler is lost.
        """
        if not workers:
            return {}
        # Errors are returned, since those of one worker must not cost the answers of the others.
        asking = self._client._run(function, *arguments, workers=workers, on_error="return")
        longest = self._seconds if seconds is None else seconds
        return _usable(function, lambda: self.wait(asking, workers, longest))

    def begin(self, function: Callable[..., Any], *arguments: Any, worker: str) -> Asked:
        """Call a coroutine function on the event loop of this worker, and return an Asked for the answer.

        Taking the answer raises what `ask` does.
        """
        asking = self.start(self._client._run(function, *arguments, workers=[worker], on_error="return"))

        def answers() -> dict[str, Any] | None:
            return _usable(function, lambda: self._result(asking)) if asking.done() else None

        return answers

    def notify(self, function: Callable[..., Any], *arguments: Any, worker: str) -> None:
        """Call a coroutine function on the event loop of this worker, and do not wait for it."""
        self.start(self._client._run(function, *arguments, workers=[worker], on_error="ignore"))

    async def reach(self, function: Callable[..., Any], worker: str) -> None:
        """Call a coroutine function on this worker's event loop, repeatedly until it answers or leaves.

        A coroutine for the client's event loop.
        """
        while worker in self.registered and not await self._client._run(function, workers=[worker], on_error="ignore"):
            await asyncio.sleep(_RETRY_SECONDS)

    async def answer_of(self, function: Callable[..., Any], *arguments: Any, worker: str) -> Any | None:
        """Call a coroutine function on this worker's event loop; return its answer, None if there is none.

        A coroutine for the client's event loop.
        """
        answers = await self._client._run(function, *arguments, workers=[worker], on_error="ignore")
        return answers.get(worker)

    def fetch(self, future: Future, take: Callable[[Any | None], None]) -> None:
        """On the client's event loop, call `take` with the result of a finished task once it arrives, or with None if
        it is lost.

        Does not wait, so that the results of many workers are on their way at once.
        """

        async def fetched() -> None:
            # Called whatever happens, since the driver waits for it.
            answer = None
            try:
                [answer] = await self._client._gather([future], direct=True)
            finally:
                take(answer)

        self.start(fetched())

    def submit(self, address: str, function: Callable[..., Any], *arguments: Any) -> Future:
        """Start a task on exactly this worker and return its future; Dask does not retry it. Raises SchedulerLost."""
        # If it were `pure`, Dask would take a second call with the same arguments for the first.
        pinned = {"workers": [address], "allow_other_workers": False, "pure": False, "retries": 0}
        packed = dumps((function, arguments))
        try:
            with closed_is_lost(self._client):
                return self._client.submit(_unpacked(function.__name__), packed, **pinned)
        except OSError as error:
            raise SchedulerLost(f"{LOST} ({error})") from error

    def request(
        self, address: str, function: Callable[..., Any], *arguments: Any, then: Callable[[WorkerRequest], None]
    ) -> WorkerRequest:
        """Let the worker's thread call the function; when it ends, call `then` on the client's event loop.

        The worker must listen: see `service.listen`. This does not wait, and notices a leaving worker only by
        its lost connection.
        """
        request = WorkerRequest()

        async def requested() -> None:
            try:
                with closed_is_lost(self._client):
                    answer = await getattr(self._client.rpc(address), COMPUTE)(call=to_serialize((function, arguments)))
                request.end(answer)
            except (OSError, TimeoutError):
                request.lose()
            except Exception as error:  # noqa: BLE001  (`then` gets it)
                request.fail(error)
            then(request)

        self.start(requested())
        return request


def _unpacked(name: str) -> Callable[[bytes], Any]:
    """Return a function of this name, which unpickles (function, arguments) in a worker and calls the function.

    The scheduler unpickles tasks. A task that refers to our package would make it import torch, which takes seconds and
    half a gigabyte. The function is local, so that it is pickled by value: an existing scheduler may lack this package.
    """

    def call(packed: bytes) -> Any:
        function, arguments = loads(packed)
        return function(*arguments)

    call.__name__ = name
    return call


def _usable(function: Callable[..., Any], take: Callable[[], dict[str, Any] | None]) -> dict[str, Any]:
    """Take the answers to a call of the function by `take`, and return those that did not fail.

    Raises what `Calls.ask` does.
    """
    try:
        answers = take() or {}
    except (CancelledError, TimeoutError):
        return {}
    except OSError as error:
        raise SchedulerLost(f"{LOST} ({error})") from error
    for address, answer in answers.items():
        if isinstance(answer, BatchGrowthError):
            raise answer
        if isinstance(answer, _UNANSWERABLE):
            raise BatchGrowthError(described(f"worker {address}: {function.__name__}", answer)) from answer
    usable = {}
    for address, answer in answers.items():
        if isinstance(answer, BaseException):
            log.debug("worker %s did not answer %s: %r", address, function.__name__, answer)
        else:
            usable[address] = answer
    return usable
