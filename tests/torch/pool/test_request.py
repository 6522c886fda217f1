"""A request to a worker, and how it ends: with an answer, an error of the function, or the loss of the worker."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from queue import SimpleQueue
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
from batchgrowth.errors import DataError
from batchgrowth_trainer.pool.calls import Calls, WorkerRequest
from batchgrowth_trainer.pool.membership import Ended
from batchgrowth_trainer.worker import service
from batchgrowth_trainer.worker.messages import COMPUTE
from batchgrowth_trainer.worker.service import listen
from batchgrowth_trainer.worker.termination import Termination
from distributed.protocol import deserialize, serialize
from distributed.protocol.serialize import Serialize


@pytest.fixture
def worker() -> Any:
    """A worker with a thread, that listens."""
    with ThreadPoolExecutor(1) as thread:
        worker: Any = SimpleNamespace(executors={"default": thread}, handlers={})
        listen(worker)
        yield worker


def sent(message: Any) -> Any:
    """The message as Dask's connections deliver it."""
    if isinstance(message, dict):
        return {name: sent(part) for name, part in message.items()}
    return deserialize(*serialize(message.data)) if isinstance(message, Serialize) else message


def ended(worker: Any, function: Any, *arguments: Any) -> WorkerRequest:
    """The request for that function, after its end."""
    request = WorkerRequest()
    request.end(sent(asyncio.run(worker.handlers[COMPUTE]((function, arguments)))))
    return request


def test_it_ends_with_what_the_function_returns(worker: Any) -> None:
    request = ended(worker, divmod, 17, 5)
    assert (request.status, request.result, request.exception()) == ("finished", (3, 2), None)
    assert not Ended("a", 1, request).is_lost()


def refuse() -> None:
    raise DataError("there are 3 examples, and 4 are declared")


def leave() -> None:
    raise SystemExit(3)


@pytest.mark.parametrize(("function", "error"), [(refuse, DataError), (leave, SystemExit)])
def test_it_ends_with_what_the_function_raises(worker: Any, function: Any, error: type[BaseException]) -> None:
    """Also if user code would end the process, whose event loop must not see that."""
    request = ended(worker, function)
    assert request.status == "error"
    with pytest.raises(error, match="3"):
        Ended("a", 1, request).is_lost()


def test_it_is_lost_with_a_worker_that_closes(worker: Any) -> None:
    worker.executors["default"].shutdown()
    assert Ended("a", 1, ended(worker, divmod, 17, 5)).is_lost()


def test_it_is_lost_with_the_connection() -> None:
    request = WorkerRequest()
    request.lose()
    assert Ended("a", 1, request).is_lost()


def test_requests_are_told_apart() -> None:
    assert WorkerRequest().key != WorkerRequest().key


@contextmanager
def calls_that_raise(error: Exception) -> Iterator[Calls]:
    """Calls over a client whose every request raises the error."""

    async def answer(**_: Any) -> None:
        raise error

    loop = asyncio.new_event_loop()
    thread = Thread(target=loop.run_forever)
    thread.start()
    client: Any = SimpleNamespace(
        status="running", loop=SimpleNamespace(asyncio_loop=loop), rpc=lambda _: SimpleNamespace(**{COMPUTE: answer})
    )
    try:
        yield Calls(client)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.mark.parametrize(
    ("error", "status"), [(ConnectionResetError(), "lost"), (TimeoutError(), "lost"), (KeyError("default"), "error")]
)
def test_whatever_prevents_the_answer_ends_it(error: Exception, status: str) -> None:
    """What is not the connection's is raised, rather than waited for without end."""
    ends: SimpleQueue[WorkerRequest] = SimpleQueue()
    with calls_that_raise(error) as calls:
        request = calls.request("tcp://a", divmod, 17, 5, then=ends.put)
        assert request is ends.get(timeout=10)
    assert (status, error if status == "error" else None) == (request.status, request.exception())


def test_a_request_to_a_worker_that_has_abandoned_its_member_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """It closes, as one does whose scheduler is gone; from any other worker without the member it is an error."""
    over: list[bool] = []
    leave = Termination({}, lambda _: None, lambda: over.append(leave.is_over))
    monkeypatch.setattr(service, "TERMINATION", leave)

    def asked() -> Any:
        return service._answer(service.compute_gradients, ("gone", None, None, 0, 1))

    unknown = asked()
    leave.close()
    assert unknown["exception_text"].startswith("NoMember")
    assert over == [True], "no moment is left at which the member is gone and the worker does not close"
    assert asked() is None
