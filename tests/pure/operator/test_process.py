"""When the operator's process restarts its watches, when it ends, and what it logs."""

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from batchgrowth.contract.logs import LogFormat, LogLevel
from batchgrowth.errors import PortError
from batchgrowth_operator import process
from batchgrowth_operator.api.cache import Key
from batchgrowth_operator.api.events import EventPoster
from batchgrowth_operator.api.leader import Leadership
from batchgrowth_operator.loop.kopf_patches import Watches, kopf
from batchgrowth_operator.loop.queue import Passes
from batchgrowth_operator.settings import Defaults, LeaseLock, Settings


class Away:
    """A client that must not be used."""

    def access(self) -> None:
        raise AssertionError("a login without a server")


@pytest.fixture
def loggers_restored() -> Iterator[None]:
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    levels = {name: logging.getLogger(name).level for name in process.CHATTY}
    yield
    root.setLevel(level)
    root.handlers[:] = handlers
    for name, each in levels.items():
        logging.getLogger(name).setLevel(each)


def watching(monkeypatch: pytest.MonkeyPatch, *is_stopped: bool) -> list[float]:
    """Makes the watches fail, each time with or without a signal before. Returns the list of waits in between."""
    script, waits = iter(is_stopped), []

    async def fails(stop_flag: asyncio.Event, **_: Any) -> None:
        if next(script):
            stop_flag.set()
        raise ConnectionError("the API server went away")

    monkeypatch.setattr(kopf, "operator", fails)
    monkeypatch.setattr(process, "_configure_logs", lambda *_: None)
    monkeypatch.setattr(process, "connect", lambda *_: Away())
    monkeypatch.setattr(process, "_is_stopped_within", waits.append)
    return waits


@pytest.mark.parametrize(
    ("option", "given"),
    [("metrics", {}), ("health", {}), ("health", {"health_host": "127.0.0.1"}), ("health", {"health_host": "::1"})],
)
def test_a_taken_port_is_named(option: str, given: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    watching(monkeypatch, True)
    host = given.get("health_host", "127.0.0.1")
    with socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET) as taken:
        port = taken.getsockname()[1]
        settings: dict[str, Any] = {f"{option}_port": port, **given}
        with pytest.raises(
            PortError, match=rf"^--{option}-port {port}: cannot be opened \(address already in use\); give"
        ):
            process.run(Settings(defaults=Defaults(image="example/trainer:1"), **settings))


def test_a_free_port_is_left_to_health_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    watching(monkeypatch, True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    process.run(Settings(defaults=Defaults(image="example/trainer:1"), health_port=port))

    socket.create_server(("127.0.0.1", port)).close()


def test_a_pod_s_log_says_in_one_line_what_is_missing() -> None:
    """As `batchgrowth operator` does, which the chart does not call."""
    outside = {name: value for name, value in os.environ.items() if name != "KUBERNETES_SERVICE_HOST"}
    command = [sys.executable, "-m", "batchgrowth_operator", "--image", "example/trainer:1"]
    ended = subprocess.run(command, env=outside, capture_output=True, text=True, check=False)

    assert (ended.returncode, ended.stdout) == (1, "")
    assert len(ended.stderr.splitlines()) == 1
    assert ended.stderr.startswith("no cluster to work in: ")


@pytest.mark.fault("B12")
def test_failed_watches_restart_with_a_back_off(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = watching(monkeypatch, *[False] * 7, True)

    process.run(Settings(defaults=Defaults(image="example/trainer:1")))

    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]


def test_the_back_off_starts_over_after_healthy_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = watching(monkeypatch, *[False] * 3, True)
    clock = iter([0, 1, 1, 2, 2, 3 + process.HEALTHY_AFTER_SECONDS, 200])
    monkeypatch.setattr(process, "time", SimpleNamespace(monotonic=lambda: next(clock)))

    process.run(Settings(defaults=Defaults(image="example/trainer:1")))

    assert waits == [1.0, 2.0, 1.0]


def test_a_signal_ends_the_process_even_if_the_api_server_goes_away(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    waits = watching(monkeypatch, True)

    process.run(Settings(defaults=Defaults(image="example/trainer:1")))

    assert waits == []
    assert "watching failed during shutdown" in caplog.text


@pytest.mark.parametrize("name", process.SIGNALS)
def test_a_signal_ends_a_back_off(name: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for the first process of a container, to which the kernel delivers only signals that have a handler."""
    pause, before = process._is_stopped_within, [signal.getsignal(each) for each in process.SIGNALS]
    watching(monkeypatch, False, True)
    monkeypatch.setattr(process, "_is_stopped_within", pause)
    set_ = signal.signal
    sent: list[int] = []

    def handle(number: signal.Signals, handler: Any) -> Any:
        replaced = set_(number, handler)
        if number == name and not sent:
            sent.append(number)
            os.kill(os.getpid(), number)
        return replaced

    monkeypatch.setattr(process, "signal", SimpleNamespace(signal=handle))

    process.run(Settings(defaults=Defaults(image="example/trainer:1")))

    assert sent == [name]
    assert [signal.getsignal(each) for each in process.SIGNALS] == before


def running(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let kopf watch nothing and end as it should."""

    async def runs(stop_flag: asyncio.Event, **_: Any) -> None:
        await asyncio.wait_for(stop_flag.wait(), 10)

    monkeypatch.setattr(kopf, "operator", runs)
    monkeypatch.setattr(process, "_configure_logs", lambda *_: None)
    monkeypatch.setattr(process, "connect", lambda *_: Away())


@pytest.mark.parametrize("name", [signal.SIGTERM, signal.SIGINT])
def test_signals_stop_the_operator(name: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    running(monkeypatch)
    timer = threading.Timer(5 * process.SIGNAL_HANDLERS_AFTER_SECONDS, os.kill, (os.getpid(), name))
    timer.start()

    process.run(Settings(defaults=Defaults(image="example/trainer:1")))

    timer.join()


def test_events_of_writes_in_progress_are_posted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A status that is stored has them once: the next operator finds nothing new in it."""
    told: list[str] = []

    def write() -> None:
        threading.Event().wait(0.2)
        told.append("written")

    class Noted(EventPoster):
        def stop(self) -> None:
            told.append("stopped")

    async def runs(**_: Any) -> None:
        asyncio.get_running_loop().run_in_executor(None, write)

    running(monkeypatch)
    monkeypatch.setattr(kopf, "operator", runs)
    monkeypatch.setattr(process, "EventPoster", Noted)
    monkeypatch.setattr(Noted, "start", lambda _: None)

    process.run(Settings(defaults=Defaults(image="example/trainer:1")))

    assert told == ["written", "stopped"]


def test_a_task_that_fails_ends_the_process(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """One that would begin the passes, for example: without them the operator would only seem to work."""
    running(monkeypatch)

    class Broken(Watches):
        async def until_indexed(self) -> None:
            raise AttributeError("kopf has changed")

    monkeypatch.setattr(process, "new_watches", Broken)

    with pytest.raises(SystemExit, match=r"^1$"):
        process.run(Settings(defaults=Defaults(image="example/trainer:1")))

    assert "the task start failed, so this process ends" in caplog.text
    assert "kopf has changed" in caplog.text


def test_a_lost_lease_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """And no pass began before it was held."""
    running(monkeypatch)
    told: list[str] = []
    begun = asyncio.Event()

    class Ready(Watches):
        async def until_indexed(self) -> None:
            told.append("indexed")

    class Noted(Passes):
        def begin(self, _keys: Iterable[Key]) -> None:
            told.append("begun")
            begun.set()

    async def hold(_api: Any, lock: LeaseLock, _leadership: Leadership, begin: Callable[[], None]) -> None:
        for _ in range(100):  # time enough for whoever does not wait for the Lease
            await asyncio.sleep(0)
        told.append(lock.holder)
        begin()
        await asyncio.wait_for(begun.wait(), 10)

    monkeypatch.setattr(process, "new_watches", Ready)
    monkeypatch.setattr(process, "Passes", Noted)
    monkeypatch.setattr(process, "hold", hold)

    lease = LeaseLock("system", "batchgrowth", "me")
    with pytest.raises(SystemExit, match=r"^1$"):
        process.run(Settings(defaults=Defaults(image="example/trainer:1"), lease=lease))

    assert told == ["indexed", "me", "begun"]


@pytest.mark.usefixtures("loggers_restored")
@pytest.mark.parametrize(("level", "is_logged"), [(LogLevel.info, False), (LogLevel.debug, True)])
def test_health_probes_are_logged_at_debug_only(
    level: LogLevel, is_logged: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """So that they do not drown the operator's own lines."""
    process._configure_logs(level, LogFormat.text)

    logging.getLogger("aiohttp.access").info("GET /healthz")
    logging.getLogger("batchgrowth_operator.loop.queue").info("default/digits: writing the status")

    logged = capsys.readouterr().err
    assert is_logged == ("GET /healthz" in logged)
    assert logged.endswith("INFO batchgrowth_operator.loop.queue: default/digits: writing the status\n")


@pytest.mark.usefixtures("loggers_restored")
def test_refusals_are_filtered_in_either_format(capsys: pytest.CaptureFixture[str]) -> None:
    process._configure_logs(LogLevel.info, LogFormat.json)

    logging.getLogger("kopf._cogs.clients.api").error("Request attempt #1/7 failed; status=403")
    logging.getLogger("kopf._core.reactor.running").info("Initial authentication has finished.")

    [line] = capsys.readouterr().err.splitlines()
    assert '"message": "Initial authentication has finished."' in line


@pytest.mark.fault("O28")
@pytest.mark.parametrize(
    ("host", "port", "url"),
    [
        ("", 0, None),
        ("", 8080, "http://0.0.0.0:8080/healthz"),
        ("10.0.0.7", 8080, "http://10.0.0.7:8080/healthz"),
        ("fd00::7", 8080, "http://[fd00::7]:8080/healthz"),
    ],
)
def test_where_health_probes_are_answered(host: str, port: int, url: str | None) -> None:
    assert url == process.health_endpoint(host, port)
