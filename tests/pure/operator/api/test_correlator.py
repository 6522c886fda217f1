"""Events of one job: the same are counted, similar ones share one, and there is a budget of writes."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from batchgrowth_operator.api.cache import Key
from batchgrowth_operator.api.events import BURST, COMBINED, MOST_SIMILAR, REFILL_SECONDS, WINDOW_SECONDS, Correlator
from batchgrowth_operator.job.announcements import Event

KEY = Key("default", "digits")
START = datetime(2026, 11, 20, 10, tzinfo=UTC)


class Job:
    """A job's events, at the given seconds."""

    def __init__(self) -> None:
        self.correlator = Correlator()
        self.made = 0

    def event(
        self,
        seconds: float,
        message: str = "m",
        reason: str = "ScalingUp",
        uid: str = "1",
        waited: float = 0,
        times: int = 1,
    ) -> Any:
        self.made += 1
        now = START + timedelta(seconds=seconds)
        event, at = Event("Normal", reason, message), now - timedelta(seconds=waited)
        return self.correlator.observe(KEY, uid, event, at, now, f"event-{self.made}", times)


def test_the_same_event_again_is_counted() -> None:
    job = Job()
    job.event(0)

    again = job.event(60)

    assert (again.name, again.count, again.message) == ("event-1", 2, "m")
    assert (again.first, again.last) == (START, START + timedelta(seconds=60))


@pytest.mark.parametrize("seconds", [WINDOW_SECONDS, -1.0])
def test_an_event_long_after_is_another(seconds: float) -> None:
    """So is one after the clock was set back."""
    job = Job()
    job.event(0)

    assert ((later := job.event(seconds)).name, later.count) == ("event-2", 1)


def test_an_event_that_others_have_overtaken_ends_no_series() -> None:
    job = Job()
    job.event(10)

    assert START + timedelta(seconds=5) == job.event(11, "older", waited=6).last
    assert job.event(12).count == 2


def test_an_event_that_is_tried_again_after_its_window_happened_once() -> None:
    job = Job()
    job.event(0)

    assert ((again := job.event(WINDOW_SECONDS, times=0)).name, again.count) == ("event-2", 1)


def test_the_window_counts_from_the_last_of_them() -> None:
    job = Job()
    for number in range(5):
        found = job.event(number * (WINDOW_SECONDS - 1))

    assert found.count == 5


@pytest.mark.fault("B29")
def test_many_similar_events_share_one() -> None:
    job = Job()
    for number in range(MOST_SIMILAR):
        assert f"pod {number}" == job.event(number, f"pod {number}").message

    shared = [job.event(20 + number, f"pod {MOST_SIMILAR + number}") for number in range(5)]

    assert len({id(series) for series in shared}) == 1
    assert (shared[-1].count, shared[-1].message) == (5, f"{COMBINED}pod 14")
    assert job.event(29, f"{COMBINED}pod 15").message == f"{COMBINED}pod 15", "what says so already says it once"
    assert job.event(30, "pod 3").message == "pod 3", "what has an event of its own keeps it"
    assert job.event(31, "pod 1", reason="AtTarget").message == "pod 1", "another reason is not similar"


@pytest.mark.fault("B29")
def test_a_job_has_a_budget_of_events() -> None:
    """What is left out is counted by the next that is written; a reason that is new is always written."""
    job = Job()
    written = [job.event(0.1 * number) for number in range(100)]
    assert sum(series is not None for series in written) == BURST

    assert job.event(11, "Finished", reason="Finished").message == "Finished"
    assert None is job.event(12, "Finished", reason="Finished")

    assert job.event(REFILL_SECONDS + 11).count == 101
    assert None is job.event(REFILL_SECONDS + 12)


def test_another_job_of_the_same_name_starts_afresh() -> None:
    job = Job()
    for _ in range(BURST):
        job.event(0)

    assert job.event(1, uid="2").count == 1


def test_a_job_is_forgotten() -> None:
    job = Job()
    job.event(0)

    job.correlator.forget(KEY)
    job.correlator.forget(KEY)

    assert job.correlator._jobs == {}
