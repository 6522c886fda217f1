"""Events of one job: the same are counted, similar ones share one, and there is a budget of writes."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from batchgrowth_operator.api.cache import Key
from batchgrowth_operator.api.events import BURST, COMBINED, MOST_SIMILAR, REFILL_SECONDS, WINDOW_SECONDS, Correlator
from batchgrowth_operator.children.writes import Event

KEY = Key("default", "digits")
START = datetime(2026, 11, 20, 10, tzinfo=UTC)


class Job:
    """A job's events, at the given seconds."""

    def __init__(self) -> None:
        self.correlator = Correlator()
        self.made = 0

    def event(self, seconds: float, message: str = "m", reason: str = "ScalingUp", uid: str = "1") -> Any:
        self.made += 1
        event = Event("Normal", reason, message)
        return self.correlator.observe(KEY, uid, event, START + timedelta(seconds=seconds), f"event-{self.made}")


def test_the_same_event_again_is_counted() -> None:
    job = Job()
    job.event(0)

    again = job.event(60)

    assert ("event-1", 2, "m") == (again.name, again.count, again.message)
    assert (START, START + timedelta(seconds=60)) == (again.first, again.last)


@pytest.mark.parametrize("seconds", [WINDOW_SECONDS, -1.0])
def test_an_event_long_after_is_another(seconds: float) -> None:
    """So is one after the clock was set back."""
    job = Job()
    job.event(0)

    assert ("event-2", 1) == ((later := job.event(seconds)).name, later.count)


def test_the_window_counts_from_the_last_of_them() -> None:
    job = Job()
    for number in range(5):
        found = job.event(number * (WINDOW_SECONDS - 1))

    assert 5 == found.count


@pytest.mark.fault("B29")
def test_many_similar_events_share_one() -> None:
    job = Job()
    for number in range(MOST_SIMILAR):
        assert f"pod {number}" == job.event(number, f"pod {number}").message

    shared = [job.event(20 + number, f"pod {MOST_SIMILAR + number}") for number in range(5)]

    assert 1 == len({id(series) for series in shared})
    assert (5, f"{COMBINED}pod 14") == (shared[-1].count, shared[-1].message)
    assert "pod 3" == job.event(30, "pod 3").message, "what has an event of its own keeps it"
    assert "pod 1" == job.event(31, "pod 1", reason="AtTarget").message, "another reason is not similar"


@pytest.mark.fault("B29")
def test_a_job_has_a_budget_of_events() -> None:
    """What is left out is counted by the next that is written; a reason that is new is always written."""
    job = Job()
    written = [job.event(0.1 * number) for number in range(100)]
    assert BURST == sum(series is not None for series in written)

    assert "Finished" == job.event(11, "Finished", reason="Finished").message
    assert None is job.event(12, "Finished", reason="Finished")

    assert 101 == job.event(REFILL_SECONDS + 11).count
    assert None is job.event(REFILL_SECONDS + 12)


def test_another_job_of_the_same_name_starts_afresh() -> None:
    job = Job()
    for _ in range(BURST):
        job.event(0)

    assert 1 == job.event(1, uid="2").count


def test_a_job_is_forgotten() -> None:
    job = Job()
    job.event(0)

    job.correlator.forget(KEY)
    job.correlator.forget(KEY)

    assert {} == job.correlator._jobs
