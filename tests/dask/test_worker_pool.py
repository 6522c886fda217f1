"""The driver does not wait for a worker that is gone, and restarts one that does not answer."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from pickle import PicklingError
from types import SimpleNamespace
from typing import Any

import pytest
from batchgrowth.errors import BatchGrowthError
from batchgrowth_trainer.pool import calls, membership
from batchgrowth_trainer.pool.calls import Calls
from batchgrowth_trainer.pool.membership import Ended, Ready, WorkerRestarts
from batchgrowth_trainer.pool.worker_pool import WorkerPool
from batchgrowth_trainer.record.arithmetic import Arithmetic
from batchgrowth_trainer.worker import service
from batchgrowth_trainer.worker.messages import Prepared


@pytest.fixture
def client() -> Iterator[Any]:
    """The part of a Dask client that Calls uses: an event loop in its own thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield SimpleNamespace(loop=SimpleNamespace(asyncio_loop=loop), scheduler_comm=None)
    try:
        asyncio.run_coroutine_threadsafe(cancelled_ones(), loop).result(timeout=10)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def cancelled_ones() -> None:
    """Return when the cancelled tasks have ended."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    await asyncio.gather(*others, return_exceptions=True)


async def never() -> None:
    await asyncio.Event().wait()


async def soon() -> int:
    return 7


async def failing() -> None:
    raise OSError("refused")


def noted(restarted: list[str]) -> Callable[[str], Awaitable[None]]:
    """A restart that only notes the worker."""

    def restart(address: str) -> Awaitable[None]:
        restarted.append(address)
        return asyncio.sleep(0)

    return restart


def test_wait_returns_the_answer_or_raises_the_error(client: Any) -> None:
    calls = Calls(client)
    calls.registered.add("a")
    assert calls.wait(soon(), ["a"], seconds=10) == 7
    with pytest.raises(OSError, match="refused"):
        calls.wait(failing(), ["a"], seconds=10)


def test_a_worker_that_leaves_is_not_waited_for(client: Any) -> None:
    calls = Calls(client)
    calls.registered |= {"a", "b"}
    threading.Timer(0.1, calls.registered.discard, ["b"]).start()
    assert calls.wait(never(), ["a", "b"], seconds=60) is None


def test_wait_times_out(client: Any) -> None:
    calls = Calls(client)
    calls.registered.add("a")
    assert calls.wait(never(), ["a"], seconds=0.1) is None


def test_what_is_only_started_may_fail_or_never_end(client: Any) -> None:
    calls = Calls(client)
    for work in (soon(), failing(), never()):
        calls.start(work)
    calls.close()


def test_results_are_fetched_at_once_and_without_waiting(client: Any, small_job: Any) -> None:
    """Dask has one thread for all callbacks; waiting there for the result of a dead worker would block the others."""
    there = threading.Event()

    async def gather(futures: list[Any], *, direct: bool) -> list[Any]:
        assert direct
        if futures == [hanging]:
            await asyncio.Event().wait()
        if futures == [lost]:
            raise OSError("the worker is gone")
        while not there.is_set():  # until the callbacks of all have returned
            await asyncio.sleep(0.01)
        return [prepared]

    client._gather, prepared = gather, Prepared("7", "host", "", ("127.0.0.1", 1), Arithmetic())
    hanging, lost, good = futures = [SimpleNamespace(status="finished", key=key) for key in "abc"]
    pool = WorkerPool(client, "run", small_job().spec, ())
    for address, future in zip("abc", futures, strict=True):
        pool._on_prepared(address, future)  # type: ignore[arg-type]
    pool.on_outcome("d", 3)(good)  # type: ignore[arg-type]
    there.set()
    events = [pool.events.get(timeout=10) for _ in range(3)]
    assert Ready("b", None) == events[0]
    assert Ready("c", prepared) in events
    assert Ended("d", 3, good, prepared) in events  # type: ignore[arg-type]
    pool.calls.close()
    assert Ready("a", None) == pool.events.get(timeout=10)


def test_of_workers_that_are_as_far_those_with_the_jobs_arithmetic_come_first(client: Any, small_job: Any) -> None:
    pool = WorkerPool(client, "run", small_job().spec, ())
    pool.calls.registered |= {"a", "b", "c"}
    for address, name, digest in (("a", "2", "one"), ("b", "0", "another"), ("c", "1", "one")):
        pool._preparing[address] = SimpleNamespace()  # type: ignore[assignment]
        pool.follow(Ready(address, Prepared(name, "host", "", ("127.0.0.1", 1), Arithmetic(digest))))
    assert pool.in_order({}) == ["c", "a", "b"]
    assert pool.in_order({"a": 3, "b": 4}) == ["b", "c", "a"]
    pool.calls.close()


def test_only_registered_workers_that_do_not_answer_are_restarted(
    client: Any, small_job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(_: Any, *, workers: list[str], on_error: str) -> dict[str, bool]:
        if workers == ["b"]:
            await asyncio.Event().wait()
        if workers == ["c"] and not tried.is_set():
            tried.set()
            return {}  # it could not be reached
        return dict.fromkeys(workers, True)

    client._run, tried = run, threading.Event()
    monkeypatch.setattr(membership, "SHORTEST_SECONDS", 0.5)
    monkeypatch.setattr(calls, "_RETRY_SECONDS", 0.01)
    pool, notes, restarted = WorkerPool(client, "run", small_job().spec, ()), list[str](), list[str]()
    saved = list[set[str]]()
    pool.calls.registered |= {"a", "b", "c", "d"}
    monkeypatch.setattr(pool, "check_connected", lambda: None)
    monkeypatch.setattr(pool._restarts, "restart", noted(restarted))
    pool.restart_unresponsive(["a", "b", "c", "d", "gone"], notes.append, saved.append)
    assert restarted == ["b"]
    assert notes == ["worker b does not answer; restarting it"]
    assert saved == [{"a", "c", "d"}]
    pool.calls.close()


def test_a_worker_restarted_earlier_is_not_asked_for_its_state_when_the_next_one_hangs(
    client: Any, small_job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(_: Any, *, workers: list[str], on_error: str) -> dict[str, bool]:
        if workers[0] in {"b", "c"}:
            await asyncio.Event().wait()
        return dict.fromkeys(workers, True)

    client._run = run
    pool, saved, restarted = WorkerPool(client, "run", small_job().spec, ()), list[set[str]](), list[str]()
    pool.calls.registered |= {"a", "b", "c"}
    monkeypatch.setattr(pool, "check_connected", lambda: None)
    monkeypatch.setattr(pool._restarts, "restart", noted(restarted))

    def one_at_a_time() -> set[str]:
        silent = pool._heartbeat.silent()
        if "a" in silent:
            return set()
        first = min(silent)
        pool._heartbeat._waiting.pop(first)
        return {first}

    monkeypatch.setattr(pool, "hung", one_at_a_time)
    pool.restart_unresponsive(["a", "b", "c"], lambda _: None, saved.append)
    assert restarted == ["b", "c"]
    assert saved == [{"a"}, {"a"}]
    pool.calls.close()


def test_all_registered_workers_are_asked_to_forget_a_run_that_ends(
    client: Any, small_job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those too that are held back, or still prepare: both would keep a replica and its loaders."""
    asked, cancelled = list[tuple[Any, set[str]]](), list[str]()

    async def run(function: Any, run_id: str, *, workers: list[str], on_error: str) -> dict[str, None]:
        assert (run_id, on_error) == ("run", "return")
        asked.append((function, set(workers)))
        return dict.fromkeys(workers)

    client._run = run
    pool = WorkerPool(client, "run", small_job().spec, ())
    monkeypatch.setattr(pool, "check_connected", lambda: None)
    monkeypatch.setattr(pool._membership, "close", lambda _topic: None)
    pool.calls.registered |= {"ready", "held", "preparing"}
    for address, digest in (("ready", "one"), ("held", "another")):
        pool._preparing[address] = SimpleNamespace()  # type: ignore[assignment]
        pool.follow(Ready(address, Prepared(address, "host", "", ("127.0.0.1", 1), Arithmetic(digest))))
    pool._admission._held["held"] = pool.ready.pop("held")
    pool._preparing["preparing"] = SimpleNamespace(cancel=lambda: cancelled.append("preparing"))  # type: ignore[assignment]
    pool.close()
    assert [(service.forget, {"ready", "held", "preparing"})] == asked
    assert cancelled == ["preparing"]


@pytest.mark.parametrize(
    ("nanny", "back", "ended"), [(True, [], []), (False, ["a"], []), (False, [], ["a"]), (False, ["b"], ["a"])]
)
def test_only_a_worker_that_no_nanny_restarts_and_that_stays_away_is_ended(
    nanny: bool, back: list[str], ended: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    called = list[str]()

    async def restart_workers(addresses: list[str], **_: Any) -> None:
        if not nanny:
            raise ValueError(f"Restarting workers requires a nanny to be used. Worker {addresses} has none.")

    async def run(function: Any, _why: str, *, workers: list[str], on_error: str) -> None:
        assert (service.give_up, "ignore") == (function, on_error)
        called.extend(workers)

    monkeypatch.setattr(membership, "RESTART_SECONDS", 0.01)
    client = SimpleNamespace(_restart_workers=restart_workers, _run=run)
    asyncio.run(WorkerRestarts(client, back.__contains__).restart("a"))  # type: ignore[arg-type]
    assert ended == called


def test_a_worker_that_came_back_and_is_silent_again_gets_the_whole_time_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not ready just when its first time is over."""
    times, called = list[float](), list[str]()

    async def restart_workers(*_: Any, **__: Any) -> None:
        raise ValueError("it has no nanny")

    async def run(*_: Any, workers: list[str], on_error: str) -> None:
        assert on_error == "ignore"
        called.extend(workers)
        times.append(asyncio.get_running_loop().time())

    async def twice() -> float:
        both = WorkerRestarts(SimpleNamespace(_restart_workers=restart_workers, _run=run), lambda _: False)  # type: ignore[arg-type]
        first = asyncio.create_task(both.restart("a"))
        await asyncio.sleep(0.1)
        began = asyncio.get_running_loop().time()
        await asyncio.gather(first, both.restart("a"))
        return began

    monkeypatch.setattr(membership, "RESTART_SECONDS", 1.0)
    began = asyncio.run(twice())
    assert called == ["a"]
    assert times[0] - began >= 0.99


@pytest.mark.parametrize("error", [TypeError("cannot pickle a lock"), PicklingError("a local function")])
def test_an_answer_that_cannot_be_sent_is_no_lost_worker(client: Any, error: Exception) -> None:
    async def answers(*_: Any, **__: Any) -> dict[str, Any]:
        return {"a": 1, "b": error}

    client._run = answers
    calls = Calls(client)
    calls.registered |= {"a", "b"}
    with pytest.raises(BatchGrowthError, match=rf"worker b: ping raised {type(error).__name__}: {error}"):
        calls.ask(service.ping, workers=["a", "b"], seconds=10)


def test_a_worker_that_cannot_be_reached_gives_no_answer(client: Any) -> None:
    async def answers(*_: Any, **__: Any) -> dict[str, Any]:
        return {"a": 1, "b": OSError("refused"), "c": KeyError("no member")}

    client._run = answers
    calls = Calls(client)
    calls.registered |= {"a", "b", "c"}
    assert calls.ask(service.ping, workers=["a", "b", "c"], seconds=10) == {"a": 1}
