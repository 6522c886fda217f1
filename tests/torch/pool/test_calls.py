"""Calls and tasks through the client of a scheduler that is lost, which Dask answers with errors of many classes."""

import asyncio
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from batchgrowth_trainer.pool import calls as calls_module
from batchgrowth_trainer.pool.calls import Calls, WorkerRequest, drop
from batchgrowth_trainer.pool.connection import SchedulerLost, closed_is_lost
from batchgrowth_trainer.pool.membership import Ready
from batchgrowth_trainer.pool.worker_pool import WorkerPool
from batchgrowth_trainer.record.arithmetic import Arithmetic
from batchgrowth_trainer.worker.messages import Prepared
from distributed import Client, LocalCluster
from distributed.client import ClosedClientError
from distributed.comm import CommClosedError


@pytest.mark.parametrize("error", [ClosedClientError("Client is closed"), CommClosedError("in <TLS>")])
def test_a_task_of_a_lost_scheduler_can_be_dropped(error: Exception) -> None:
    """As while the state is saved before this loss ends a run, when workers are found to be gone."""
    asked = []

    class Task:
        def cancel(self) -> None:
            asked.append(self)
            raise error

    task: Any = Task()
    drop(task)
    assert asked == [task]


@pytest.fixture(scope="module")
def lost() -> Iterator[Client]:
    """A client that could not reconnect."""
    with LocalCluster(n_workers=0, processes=False, dashboard_address=None) as cluster:
        client = Client(cluster.scheduler_address, timeout=0.5)
    for _ in range(600):
        if client.status == "closed":
            break
        threading.Event().wait(0.05)
    assert "closed" == client.status
    yield client
    client.close()


def test_a_request_is_lost_with_its_scheduler(lost: Client) -> None:
    """It is no error of the user's function, which would end the run instead of waiting for a scheduler."""
    ended = threading.Event()
    request = Calls(lost).request("tcp://127.0.0.1:9", int, then=lambda _: ended.set())
    assert ended.wait(60)
    assert isinstance(request, WorkerRequest)
    assert "lost" == request.status


@pytest.mark.parametrize("make", [
    lambda calls: calls.ask(int, workers=["tcp://127.0.0.1:9"]),
    lambda calls: calls.submit("tcp://127.0.0.1:9", int),
])  # fmt: skip
def test_every_other_call_says_that_the_scheduler_is_lost(lost: Client, make: Any) -> None:
    calls = Calls(lost)
    calls.registered.add("tcp://127.0.0.1:9")
    with pytest.raises(SchedulerLost, match="the Dask scheduler was lost"):
        make(calls)


def test_an_error_while_the_client_is_connected_stays_what_it_is() -> None:
    connected: Any = SimpleNamespace(status="running")
    with pytest.raises(RuntimeError, match="of the function"), closed_is_lost(connected):
        raise RuntimeError("of the function")


def test_a_large_state_may_be_on_its_way_for_longer(small_job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last state counted as lost with its worker, again and again, if it took longer than a call usually may."""
    monkeypatch.setattr(calls_module, "CALL_SECONDS", 0.05)
    with LocalCluster(n_workers=1, processes=False, dashboard_address=None) as cluster, Client(cluster) as client:
        pool = WorkerPool(client, "small-1", small_job().spec, ())
        [worker] = client.scheduler_info()["workers"]
        pool.registered.add(worker)

        async def state() -> str:
            await asyncio.sleep(0.5)
            return "a state"

        assert pool.calls.ask(state, workers=[worker]) == {}
        pool._preparing[worker] = client.submit(int)
        pool.follow(Ready(worker, Prepared("0", "here", "", ("127.0.0.1", 9), Arithmetic(), state_bytes=300_000_000)))
        assert pool.calls.ask(state, workers=[worker]) == {worker: "a state"}
