"""Every worker is found whenever it registers, and no lost worker is counted on."""

import asyncio
import random
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from batchgrowth_trainer.pool import membership
from batchgrowth_trainer.pool.membership import Event
from batchgrowth_trainer.pool.worker_pool import WorkerPool
from batchgrowth_trainer.worker import service
from batchgrowth_trainer.worker.messages import Joined, Left
from distributed import Client, LocalCluster, Worker

MOMENTS = 60
SPREAD_SECONDS = 0.06  # about the time that a pool takes to open


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """A scheduler in this process, as are the workers that join and leave it."""
    nobody = {"n_workers": 0, "processes": False, "dashboard_address": None}
    with LocalCluster(**nobody, host="127.0.0.1", protocol="tcp") as here:
        yield here


@pytest.fixture
def pool_of(small_job: Any) -> Callable[[Client], WorkerPool]:
    """A function: a pool of a client, whose workers lack the workload."""
    spec = small_job().spec
    return lambda client: WorkerPool(client, uuid.uuid4().hex, spec, ())


async def worker(cluster: LocalCluster, after: float) -> Worker:
    await asyncio.sleep(after)
    return await Worker(cluster.scheduler_address, nthreads=1, dashboard=False, memory_limit=0)


def until(pool: WorkerPool, seen: Callable[[], bool]) -> None:
    """Return once `seen` is true; polls the pool as its driver does."""
    ends = time.monotonic() + 60
    while not seen():
        assert time.monotonic() < ends
        pool.check_connected()
        time.sleep(0.005)


def events(pool: WorkerPool) -> list[Event]:
    return [pool.events.get_nowait() for _ in range(pool.events.qsize())]


def test_a_worker_that_registers_while_the_worker_pool_opens(
    cluster: LocalCluster, pool_of: Callable[[Client], WorkerPool]
) -> None:
    """Its event may precede the subscription, and the first list may have been read before it registered."""
    draw = random.Random(0)
    for _ in range(MOMENTS):
        coming = worker(cluster, SPREAD_SECONDS * draw.random())
        soon = asyncio.run_coroutine_threadsafe(coming, cluster.loop.asyncio_loop)
        time.sleep(SPREAD_SECONDS / 2 * draw.random())
        with Client(cluster.scheduler_address, set_as_default=False) as client:
            pool = pool_of(client)
            pool.open()
            here = soon.result(timeout=60)
            until(pool, lambda pool=pool, here=here: here.address in pool.registered)  # type: ignore[misc]
            assert [Joined(here.address)] == events(pool)
            pool.close()
        asyncio.run_coroutine_threadsafe(here.close(), cluster.loop.asyncio_loop).result(timeout=60)


def test_without_any_event(
    cluster: LocalCluster, pool_of: Callable[[Client], WorkerPool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events only speed up polling: a pool without them notices every worker that joins or leaves."""
    monkeypatch.setattr(WorkerPool, "_on_event", lambda _pool, _event: None)
    loop = cluster.loop.asyncio_loop
    with Client(cluster.scheduler_address, set_as_default=False) as client:
        pool = pool_of(client)
        pool.open()
        here = asyncio.run_coroutine_threadsafe(worker(cluster, 0), loop).result(timeout=60)
        until(pool, lambda: here.address in pool.registered)
        asyncio.run_coroutine_threadsafe(here.close(), loop).result(timeout=60)
        until(pool, lambda: here.address not in pool.registered)
        assert [Joined(here.address), Left(here.address)] == events(pool)
        pool.close()


@pytest.mark.fault("C10", "C12")
def test_a_worker_that_was_given_up_and_answers_again_rejoins(
    cluster: LocalCluster, pool_of: Callable[[Client], WorkerPool]
) -> None:
    """A worker without a nanny that did not answer for a while cannot be restarted at once; it may answer again."""
    loop = cluster.loop.asyncio_loop
    here = asyncio.run_coroutine_threadsafe(worker(cluster, 0), loop).result(timeout=60)
    with Client(cluster.scheduler_address, set_as_default=False) as client:
        pool = pool_of(client)
        pool.open()
        until(pool, lambda: here.address in pool.registered)
        pool.restart([here.address], print)
        until(pool, lambda: here.address in pool.registered)
        assert [Joined(here.address), Left(here.address), Joined(here.address)] == events(pool)
        pool.close()
    asyncio.run_coroutine_threadsafe(here.close(), loop).result(timeout=60)


@pytest.mark.fault("C09", "C24")
def test_a_worker_without_a_nanny_that_is_not_ready_again_is_ended(
    cluster: LocalCluster, pool_of: Callable[[Client], WorkerPool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its event loop answers, so nothing else would end its process."""
    ended, loop = list[str](), cluster.loop.asyncio_loop
    monkeypatch.setattr(service, "end_when", lambda _over, _code, why: ended.append(why))  # it would end this process
    monkeypatch.setattr(membership, "RESTART_SECONDS", 0.2)
    here = asyncio.run_coroutine_threadsafe(worker(cluster, 0), loop).result(timeout=60)
    with Client(cluster.scheduler_address, set_as_default=False) as client:
        pool = pool_of(client)
        pool.open()
        until(pool, lambda: here.address in pool.registered)
        pool.restart([here.address], print)
        until(pool, lambda: bool(ended))
        assert ended == ["this worker did not answer, and was not ready again within 0 s"]
        pool.close()
    asyncio.run_coroutine_threadsafe(here.close(), loop).result(timeout=60)
