"""When the operator's process ends, and when it begins anew."""

import asyncio
import os
import signal
from typing import Any

import pytest
from batchgrowth_operator import process
from batchgrowth_operator.server.settings import Settings
from batchgrowth_operator.shell.framework import kopf
from batchgrowth_operator.shell.passes import Result


class Away:
    """A client that nobody asks."""

    def access(self) -> None:
        raise AssertionError("nobody logs in")


def watching(monkeypatch: pytest.MonkeyPatch, *is_stopped: bool) -> list[float]:
    """Watching fails, each time with or without a signal before. Returns the waits between, as they come."""
    script, waits = iter(is_stopped), []

    async def fails(stop_flag: asyncio.Event, **_: Any) -> None:
        if next(script):
            stop_flag.set()
        raise ConnectionError("the API server went")

    monkeypatch.setattr(kopf, "operator", fails)
    monkeypatch.setattr(kopf, "configure", lambda: None)
    monkeypatch.setattr(process, "connect", lambda *_: Away())
    monkeypatch.setattr(process.time, "sleep", waits.append)
    return waits


def test_it_begins_anew_where_watching_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = watching(monkeypatch, False, False, True)

    process.run(Settings(image="example/trainer:1"))

    assert [1.0, 2.0] == waits


def test_a_signal_is_the_end_even_if_the_api_server_goes_meanwhile(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    waits = watching(monkeypatch, True)

    process.run(Settings(image="example/trainer:1"))

    assert [] == waits
    assert "watching failed while it was stopped" in caplog.text


@pytest.mark.parametrize("name", [signal.SIGTERM, signal.SIGINT])
def test_signals_are_heard(name: signal.Signals) -> None:
    async def make_pass(*_: Any) -> Result:
        return Result()

    async def scene() -> None:
        stop = asyncio.Event()
        process._begin(make_pass, Away(), None, stop)  # type: ignore[arg-type]
        await asyncio.sleep(2 * process.HEARD_AFTER_SECONDS)
        os.kill(os.getpid(), name)
        await asyncio.wait_for(stop.wait(), 10)

    asyncio.run(scene())
