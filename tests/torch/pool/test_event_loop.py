"""Only an event loop that has not turned for long counts as hung."""

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest
from batchgrowth_trainer.pool import connection as module
from batchgrowth_trainer.pool.connection import LoopWatch


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop that runs in its own thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def until(watch: LoopWatch, *, hung: bool) -> None:
    """Return once the watch says so."""
    ends = time.monotonic() + 30
    while bool(watch.trouble()) is not hung:
        assert time.monotonic() < ends
        time.sleep(0.005)


@pytest.mark.fault("C24")
def test_a_loop_that_hangs_is_noticed_and_so_is_its_return(
    loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "HUNG_SECONDS", 0.1)
    watch, free = LoopWatch(), threading.Event()
    with watch.watching(loop):
        loop.call_soon_threadsafe(free.wait)
        assert watch.trouble() == ""
        until(watch, hung=True)
        assert watch.trouble() == "the event loop of the connection to Dask has not turned for 0 s"
        assert len(caplog.records) == 1, "each probe would push the pod's other last lines out"
        free.set()
        until(watch, hung=False)
    assert watch.trouble() == ""


@pytest.mark.fault("C24")
def test_an_idle_loop_and_a_long_time_without_a_look_are_no_trouble(
    loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch, answered = LoopWatch(), threading.Event()
    with watch.watching(loop):
        assert watch.trouble() == ""
        loop.call_soon_threadsafe(answered.set)
        assert answered.wait(30)
        monkeypatch.setattr(module, "HUNG_SECONDS", 0.0)
        assert watch.trouble() == ""


@pytest.mark.fault("C24")
def test_without_a_connection_nothing_is_hung(monkeypatch: pytest.MonkeyPatch) -> None:
    """While data load, the scheduler is waited for, or a lost one is left; a closed loop is one that does not turn."""
    monkeypatch.setattr(module, "HUNG_SECONDS", 0.0)
    watch, closed = LoopWatch(), asyncio.new_event_loop()
    closed.close()
    assert watch.trouble() == ""
    with watch.watching(closed):
        until(watch, hung=True)
    assert watch.trouble() == ""
