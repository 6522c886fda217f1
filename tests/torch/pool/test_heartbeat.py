"""Who counts as hung: by what the other workers show, so that none is restarted that may only be slow."""

from collections.abc import Coroutine
from typing import Any

import pytest
from batchgrowth_trainer.pool.membership import (
    ALL_SILENT_SECONDS,
    MOST_SILENT_SECONDS,
    SHORTEST_SECONDS,
    STOPPING_SECONDS,
    Heartbeat,
)

EVERYONE = [f"w{i}" for i in range(100)]


class Workers:
    """Stands for Calls: workers that answer when a test says so; `now` is the time in seconds."""

    def __init__(self) -> None:
        self.registered = set(EVERYONE)
        self.now = 0.0
        self._asking: dict[str, Coroutine[Any, Any, Any]] = {}
        self.heartbeat = Heartbeat(self, lambda: self.now)  # type: ignore[arg-type]

    def start(self, work: Coroutine[Any, Any, Any]) -> None:
        address = work.send(None)
        assert address not in self._asking
        self._asking[address] = work

    async def reach(self, _function: Any, worker: str) -> None:
        await Asked(worker)

    def answer(self, *addresses: str, after: float = 0.0) -> None:
        self.now += after
        for address in addresses:
            with pytest.raises(StopIteration):
                self._asking.pop(address).send(None)

    def hung_after(self, seconds: float, *, stopping: bool = False) -> set[str]:
        """Those that count as hung this long after the beginning, and did not just before."""
        self.now = seconds - 1e-6
        assert not self.heartbeat.hung(stopping=stopping)
        self.now = seconds + 1e-6
        return self.heartbeat.hung(stopping=stopping)

    def close(self) -> None:
        for work in self._asking.values():
            work.close()


class Asked:
    """What a coroutine awaits until its worker answers."""

    def __init__(self, address: str) -> None:
        self._address = address

    def __await__(self) -> Any:
        yield self._address


@pytest.fixture
def workers() -> Any:
    asked = Workers()
    yield asked
    asked.close()


@pytest.mark.fault("C09")
def test_one_that_is_silent_while_the_others_answer_hangs(workers: Workers) -> None:
    workers.heartbeat.ask(EVERYONE)
    workers.answer(*EVERYONE[1:], after=0.01)
    assert workers.heartbeat.silent() == {"w0"}
    assert workers.hung_after(SHORTEST_SECONDS) == {"w0"}
    assert not workers.heartbeat.hung()  # once is enough


@pytest.mark.parametrize("trip", [2.0, 5.0])
def test_patience_follows_the_measured_round_trip(workers: Workers, trip: float) -> None:
    workers.heartbeat.ask(EVERYONE)
    workers.answer(*EVERYONE[1:], after=trip)
    assert workers.hung_after(10 * trip) == {"w0"}


@pytest.mark.fault("C09", "C12")
def test_no_worker_hangs_while_most_are_silent(workers: Workers) -> None:
    workers.heartbeat.ask(EVERYONE)
    workers.answer(*EVERYONE[60:], after=0.01)
    assert set(EVERYONE[:60]) == workers.hung_after(MOST_SILENT_SECONDS)


@pytest.mark.fault("C02", "C12")
@pytest.mark.parametrize("asked", [1, 2, 100])
def test_the_last_holders_of_the_newest_state_are_given_the_longest(workers: Workers, asked: int) -> None:
    workers.heartbeat.ask(EVERYONE[:asked])
    assert set(EVERYONE[:asked]) == workers.hung_after(ALL_SILENT_SECONDS)


def test_one_that_left_says_nothing_of_round_trips(workers: Workers) -> None:
    workers.heartbeat.ask(EVERYONE)
    workers.registered.discard("w1")
    workers.answer("w1", after=3.0)  # its call fails
    workers.now = 0.01
    workers.answer(*EVERYONE[2:])
    assert workers.hung_after(SHORTEST_SECONDS) == {"w0"}


def test_a_run_that_stops_has_less_time(workers: Workers) -> None:
    workers.heartbeat.ask(EVERYONE)
    assert workers.hung_after(STOPPING_SECONDS, stopping=True) == set(EVERYONE)


def test_a_worker_that_is_still_silent_is_not_asked_twice_nor_given_more_time(workers: Workers) -> None:
    workers.heartbeat.ask(EVERYONE)
    workers.answer(*EVERYONE[1:], after=0.01)
    workers.now = SHORTEST_SECONDS / 2
    workers.heartbeat.ask(EVERYONE)
    workers.answer(*EVERYONE[1:])
    assert workers.hung_after(SHORTEST_SECONDS) == {"w0"}


def test_those_that_leave_or_are_no_longer_asked_do_not_count(workers: Workers) -> None:
    workers.heartbeat.ask(EVERYONE)
    workers.answer(*EVERYONE[2:])
    workers.registered.discard("w0")
    workers.heartbeat.ask(EVERYONE[2:])
    workers.answer(*EVERYONE[2:])
    workers.now = 1e6
    assert not workers.heartbeat.silent()
    assert not workers.heartbeat.hung()
