"""The driver waits for nobody who is gone."""

import asyncio
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from batchgrowth.plan import make_plan
from batchgrowth_trainer.crew.calls import Calls
from batchgrowth_trainer.crew.crew import Crew
from batchgrowth_trainer.crew.events import Ready


@pytest.fixture
def client() -> Iterator[Any]:
    """What Calls needs of a Dask client: an event loop in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield SimpleNamespace(loop=SimpleNamespace(asyncio_loop=loop), scheduler_comm=None)
    asyncio.run_coroutine_threadsafe(cancelled_ones(), loop).result(timeout=10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


async def cancelled_ones() -> None:
    """Waits until what was cancelled has ended."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    await asyncio.gather(*others, return_exceptions=True)


async def never() -> None:
    await asyncio.Event().wait()


async def soon() -> int:
    return 7


async def failing() -> None:
    raise OSError("refused")


def test_an_answer_comes_back(client: Any) -> None:
    calls = Calls(client)
    calls.here.add("a")
    assert 7 == calls.wait(soon(), ["a"], seconds=10)
    with pytest.raises(OSError, match="refused"):
        calls.wait(failing(), ["a"], seconds=10)


def test_who_leaves_is_not_waited_for(client: Any) -> None:
    calls = Calls(client)
    calls.here |= {"a", "b"}
    threading.Timer(0.1, calls.here.discard, ["b"]).start()
    assert calls.wait(never(), ["a", "b"], seconds=60) is None


def test_nobody_is_waited_for_longer_than_agreed(client: Any) -> None:
    calls = Calls(client)
    calls.here.add("a")
    assert calls.wait(never(), ["a"], seconds=0.1) is None


def test_what_is_only_sent_may_fail_or_never_end(client: Any) -> None:
    calls = Calls(client)
    for work in (soon(), failing(), never()):
        calls.send(work)
    calls.close()


def test_the_callback_of_a_finished_task_fetches_nothing(client: Any, small_job: Any) -> None:
    """Dask has one thread for all callbacks; a result whose worker has died would hold up every later event."""

    class Finished:
        status = "finished"

        def result(self) -> None:
            pytest.fail("the result was fetched")

    spec = small_job().spec
    crew, future = Crew(client, "run", spec, make_plan(spec), ()), Finished()
    crew._on_prepared("a", future)  # type: ignore[arg-type]
    assert Ready("a", future) == crew.events.get_nowait()  # type: ignore[arg-type]
