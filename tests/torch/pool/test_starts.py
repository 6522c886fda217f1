"""Workers that are not ready: those that live are waited for, and those that keep ending end the run with the cause."""

import sys
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
from batchgrowth.errors import ClusterError
from batchgrowth_trainer.pool.local_cluster import _how_it_ended
from batchgrowth_trainer.pool.starts import ASK_SECONDS, MOST_KILLS, EndedStart, Preparing, check_starts
from batchgrowth_trainer.user_errors import doing


class Calls:
    """Keeps what is started; `answer` is what a worker says."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answer: str | None = "importing numpy"

    async def answer_of(self, _function: Any, _run_id: str, *, worker: str) -> str | None:
        self.asked.append(worker)
        return self.answer

    def start(self, work: Any) -> None:
        with pytest.raises(StopIteration):
            work.send(None)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    async def at_once(work: Any, _seconds: float) -> Any:
        return await work

    monkeypatch.setattr("batchgrowth_trainer.pool.starts.asyncio", SimpleNamespace(wait_for=at_once))
    return Calls()


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.fault("N02")
def test_a_worker_that_answers_is_heard_and_says_now_and_then_what_it_does(calls: Any) -> None:
    clock = Clock()
    preparing = Preparing(calls, "job-1", clock)
    preparing.begin("a")
    lines = []
    for clock.now in range(1, 301):
        preparing.ask()
        lines.append(preparing.line())
        assert clock.now - preparing.heard_at <= 2 * ASK_SECONDS
    assert [line for line in dict.fromkeys(lines) if line] == [
        f"worker a has prepared for {text}, now importing numpy"
        for text in ("10.0 s", "20.0 s", "40.0 s", "1 min 20 s", "2 min 40 s")
    ]
    preparing.end("a")
    assert preparing.line() == ""


@pytest.mark.fault("N02")
def test_a_worker_that_is_silent_is_not_heard(calls: Any) -> None:
    clock = Clock()
    preparing = Preparing(calls, "job-1", clock)
    preparing.begin("a")
    calls.answer = None
    for clock.now in range(1, 200):
        preparing.ask()
    assert preparing.heard_at == 0
    assert len(calls.asked) > 50
    assert preparing.line() == "worker a has prepared for 3 min 19 s"


def test_the_line_tells_of_no_worker_that_is_gone(calls: Any) -> None:
    """The next one has its own line when that is due."""
    clock = Clock()
    preparing = Preparing(calls, "job-1", clock)
    preparing.begin("a")
    clock.now = 295
    preparing.begin("b")
    clock.now = 300
    assert preparing.line() == "worker a has prepared for 5 min 00 s"
    preparing.end("a")
    assert preparing.line() == ""
    clock.now = 305
    assert preparing.line() == "worker b has prepared for 10.0 s"


DIED = "the process of worker 0 was killed by signal 11 (SIGSEGV)"


@pytest.mark.fault("T09")
@pytest.mark.parametrize(
    "ended",
    [
        [EndedStart(DIED, "a"), EndedStart("later", "b"), EndedStart("later", "c")],
        [EndedStart(DIED, began=False), EndedStart("later", began=False)],
        [EndedStart(DIED, "a", killed=True), *[EndedStart("later", killed=True)] * (MOST_KILLS - 1)],
        [EndedStart(DIED, "a"), *[EndedStart("later", killed=True)] * 5, EndedStart("b"), EndedStart("c")],
    ],
)
def test_starts_that_keep_failing_end_the_run_with_the_first_cause(ended: list[EndedStart]) -> None:
    check_starts(ended[:-1])
    with pytest.raises(ClusterError, match=f"no worker became ready: {DIED.replace('(', '.').replace(')', '.')}"):
        check_starts(ended)


@pytest.mark.fault("T09")
@pytest.mark.parametrize(
    ("code", "text"),
    [
        (3, "exited with code 3"),
        (-11, "was killed by signal 11 (SIGSEGV)"),
        (-9, "was killed by signal 9 (SIGKILL), as the system does if memory runs out"),
        (-123, "was killed by signal 123"),
    ],
)
def test_how_a_process_ended_is_told_by_its_code(code: int, text: str) -> None:
    assert text == _how_it_ended(code)


def here() -> FrameType:
    return sys._getframe()


def test_what_a_thread_does_is_the_innermost_line_of_the_users_code() -> None:
    frame = here()
    assert doing(frame) == f"at {__file__}:{frame.f_lineno}, in here"
    assert doing(None) == ""
