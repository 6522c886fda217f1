"""A request to a worker, and how it ends: with an answer, an error of the function, or the loss of the worker."""

import asyncio
import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from queue import SimpleQueue
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
from batchgrowth.errors import ClusterError, DataError
from batchgrowth_trainer.pool.calls import Calls, WorkerRequest, _usable
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


def test_a_request_to_a_worker_that_has_released_its_member_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """It closes, as one does whose scheduler is gone; from any other worker without the member it is an error."""
    leaving: list[bool] = []
    termination = Termination({}, lambda _: None, lambda: leaving.append(termination.is_leaving))
    monkeypatch.setattr(service, "TERMINATION", termination)

    def asked() -> Any:
        return service._answer(service.compute_gradients, ("gone", None, None, 0, 1))

    unknown = asked()
    termination.close()
    assert unknown["exception_text"].startswith("NoMember")
    assert leaving == [True], "no moment is left at which the member is gone and the worker does not close"
    assert asked() is None


def error_without_a_member() -> Exception:
    with pytest.raises((service.NoMember, service.MemberReleased)) as raised:
        service.member_of("job-1")
    return raised.value


def failed(error: Exception) -> Ended:
    """The end of a task with that error, which has been pickled on its way."""
    task: Any = SimpleNamespace(status="error", exception=lambda: pickle.loads(pickle.dumps(error)))
    return Ended("a", 1, task)


def test_a_run_whose_member_another_run_has_dropped_ends_with_that() -> None:
    """A task and a call say so alike; a run that waited would wait for ever."""
    error = error_without_a_member()
    with pytest.raises(ClusterError, match="a worker has no member of job: another run uses the same cluster"):
        failed(error).is_lost()
    with pytest.raises(ClusterError, match="another run uses the same cluster"):
        _usable(service.how_far, lambda: {"a": error})


def test_a_member_that_leaves_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    termination = Termination({}, lambda _: None, lambda: None)
    monkeypatch.setattr(service, "TERMINATION", termination)
    termination.close()
    error = error_without_a_member()
    assert failed(error).is_lost()
    assert _usable(service.how_far, lambda: {"a": error}) == {}
