"""When the thread that computes hangs, judged by the shards before."""

import queue
import threading
import time

import pytest
from batchgrowth_trainer.worker import member
from batchgrowth_trainer.worker.member import STUCK_SECONDS, Watchdog

TIMEOUT = 60.0
LEAST = STUCK_SECONDS + TIMEOUT


def ticks_until_stuck(dog: Watchdog, most: int) -> int | None:
    """The ticks of a second until the thread hangs, after the one that notices that something else has begun."""
    assert not dog.tick(1)
    return next((tick for tick in range(1, most + 1) if dog.tick(1)), None)


@pytest.mark.fault("C09")
@pytest.mark.parametrize(("longest", "stuck"), [(0, LEAST), (10, LEAST), (100, 2000)])
def test_a_shard_that_takes_far_longer_than_any_before(longest: int, stuck: float) -> None:
    dog = Watchdog(TIMEOUT)
    with dog:
        assert ticks_until_stuck(dog, longest) is None
        dog.beat()
        assert stuck + 1 == ticks_until_stuck(dog, 3000)


def test_the_first_shard_may_take_any_time() -> None:
    """It may compile the model."""
    dog = Watchdog(TIMEOUT)
    with dog:
        assert ticks_until_stuck(dog, 10_000) is None
        dog.beat()
        assert ticks_until_stuck(dog, 10_000) is None


def test_a_thread_that_waits_does_not_compute() -> None:
    dog = Watchdog(TIMEOUT)
    with dog:
        dog.beat()
    assert ticks_until_stuck(dog, 10_000) is None
    with dog:
        assert ticks_until_stuck(dog, 10_000) == LEAST + 1


def test_many_shards_of_any_time_together_are_none_that_hangs() -> None:
    dog = Watchdog(TIMEOUT)
    with dog:
        for _ in range(10):
            dog.beat()
            assert ticks_until_stuck(dog, int(LEAST)) is None


@pytest.mark.fault("C09")
def test_the_reason_names_both_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member, "TICK_SECONDS", 0.01)
    monkeypatch.setattr(member, "STUCK_SECONDS", 0.1)
    dog, reasons = Watchdog(0), queue.SimpleQueue[str]()
    with dog:
        dog.beat()
        dog.watch(reasons.put)
        assert reasons.get(timeout=30) == "a shard has taken 0 s, and none before it more than 0 s"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Watchdog:
    """One for which any shard but the first is too long."""
    monkeypatch.setattr(member, "TICK_SECONDS", 0.01)
    return Watchdog(-STUCK_SECONDS)


def test_one_that_is_closed_watches_no_longer(quick: Watchdog) -> None:
    reasons = queue.SimpleQueue[str]()
    quick.watch(reasons.put)
    quick.close()
    while any(thread.name == "watchdog" for thread in threading.enumerate()):
        time.sleep(0.01)
    assert reasons.empty()


@pytest.mark.fault("C09")
def test_one_that_is_closed_while_the_thread_hangs_still_ends_it(quick: Watchdog) -> None:
    """A new driver closes it, and then waits for that thread."""
    reasons = queue.SimpleQueue[str]()
    with quick:
        quick.beat()
        quick.close()
        quick.watch(reasons.put)
        assert reasons.get(timeout=30)
