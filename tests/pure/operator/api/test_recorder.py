"""Events wait behind all other writes: in turn, combined if they wait for long, and for an API server that is back."""

import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from batchgrowth_operator.api import events as api_events
from batchgrowth_operator.api.cache import Key
from batchgrowth_operator.api.client import Refused, ServerClock
from batchgrowth_operator.api.events import (
    BEHIND_SECONDS,
    BURST,
    COMBINED,
    MOST_BYTES,
    MOST_SIMILAR,
    PATIENCE,
    PAUSE_SECONDS,
    RETRY_SECONDS,
    EventPoster,
    fitting,
)
from batchgrowth_operator.job.announcements import Event
from batchgrowth_operator.seen.observed import Observed

START = datetime(2026, 11, 20, 10, tzinfo=UTC)


@dataclass
class FakeApi:
    """Counts requests, each of which takes some seconds, and raises the errors in turn."""

    seconds: float = 0.0
    errors: list[Exception] = field(default_factory=list)
    requests: int = 0
    events: dict[str, Any] = field(default_factory=dict)
    clock: ServerClock = field(default_factory=ServerClock)

    def within(self, seconds: float) -> Any:
        return self

    def post_event(self, namespace: str, event: Any) -> None:
        self._answer()
        self.events[event["metadata"]["name"]] = event

    def repeat_event(self, namespace: str, name: str, change: Any) -> bool:
        self._answer()
        self.events[name] |= change
        return True

    def _answer(self) -> None:
        self.requests += 1
        time.sleep(self.seconds)
        if self.errors:
            raise self.errors.pop(0)

    def shown(self) -> list[tuple[str, str, int]]:
        return [(e["involvedObject"]["name"], e["message"], e["count"]) for e in self.events.values()]


@pytest.fixture
def api() -> FakeApi:
    return FakeApi()


@pytest.fixture
def events(api: FakeApi) -> EventPoster:
    return EventPoster(api)  # type: ignore[arg-type]


def seen(job: str = "digits", seconds: float = 0.0, uid: str = "1") -> Observed:
    metadata = {"name": job, "namespace": "default", "uid": uid}
    return Observed(job={"kind": "BatchGrowthJob", "metadata": metadata}, now=START + timedelta(seconds=seconds))


def stage(number: int) -> Event:
    return Event("Normal", "StageBegan", f"Stage {number} began.")


TROUBLE = Event("Warning", "Stalled", "No update for a minute.")


def post(events: EventPoster) -> list[float]:
    """Posts what waits; returns the pauses."""
    pauses = []
    while (pause := events.post_next()) is not None:
        pauses.append(pause)
    return pauses


def test_a_pass_makes_no_request_for_its_events(api: FakeApi, events: EventPoster) -> None:
    events.record(seen(), stage(1))
    assert api.requests == 0

    [pause] = post(events)

    assert pause >= PAUSE_SECONDS  # more on a machine whose requests take long
    assert api.shown() == [("digits", "Stage 1 began.", 1)]


def test_jobs_take_turns_and_warnings_come_first(api: FakeApi, events: EventPoster) -> None:
    for job in ("a", "b"):
        events.record(seen(job), stage(1))
        events.record(seen(job), stage(2))
    events.record(seen("c"), TROUBLE)

    post(events)

    assert [job for job, _, _ in api.shown()] == ["c", "a", "b", "a", "b"]


@pytest.mark.fault("B10")
@pytest.mark.parametrize("lost", [ConnectionError("timed out"), Refused(504, "timed out")])
def test_an_event_that_was_made_without_an_answer_is_counted(
    api: FakeApi, events: EventPoster, monkeypatch: pytest.MonkeyPatch, lost: Exception
) -> None:
    """To make it again is refused, as it exists."""
    answers: list[Exception] = [lost]

    def post_event(_: str, event: Any) -> None:
        name = event["metadata"]["name"]
        if name in api.events:
            raise Refused(409, f'events "{name}" already exists')
        api.events[name] = event
        raise answers.pop()

    monkeypatch.setattr(api, "post_event", post_event)
    for seconds in (0, 60, 120):
        events.record(seen(seconds=seconds), TROUBLE)
        post(events)

    assert api.shown() == [("digits", TROUBLE.message, 3)]


@pytest.mark.fault("B29")
def test_what_waits_for_long_is_combined(api: FakeApi, events: EventPoster) -> None:
    """1,000 jobs that cross milestones faster than the API server takes their events: a request for each job."""
    for number in range(10):
        for job in range(20):
            events.record(seen(f"job-{job}", number * (BEHIND_SECONDS + 1)), stage(number))

    post(events)

    assert api.requests == 20
    assert {(f"job-{job}", f"{COMBINED}Stage 9 began.", 10) for job in range(20)} == set(api.shown())


def test_what_one_pass_says_is_not_combined(api: FakeApi, events: EventPoster) -> None:
    """Up to a number of messages."""
    for number in range(MOST_SIMILAR + 2):
        events.record(seen(), stage(number))
    post(events)

    assert [count for _, _, count in api.shown()] == [1] * (MOST_SIMILAR - 1) + [3]


def test_the_same_event_is_counted_while_it_waits(api: FakeApi, events: EventPoster) -> None:
    for seconds in range(5):
        events.record(seen(seconds=seconds), TROUBLE)
    post(events)
    events.record(seen(seconds=6), TROUBLE)
    post(events)

    assert api.requests == 2
    assert api.shown() == [("digits", TROUBLE.message, 6)]


def test_a_job_of_the_same_name_has_its_own(api: FakeApi, events: EventPoster) -> None:
    events.record(seen(), stage(1))
    events.record(seen(seconds=9, uid="2"), stage(2))
    post(events)

    assert [message for _, message, _ in api.shown()] == ["Stage 1 began.", "Stage 2 began."]


def test_a_job_s_budget_bounds_its_writes(api: FakeApi, events: EventPoster) -> None:
    for _ in range(BURST + 5):
        events.record(seen(), TROUBLE)
        post(events)

    assert api.requests == BURST


def test_a_slow_api_server_is_asked_less_often(api: FakeApi, events: EventPoster) -> None:
    api.seconds = 0.05
    events.record(seen(), TROUBLE)

    [pause] = post(events)

    assert pause >= PATIENCE * api.seconds


def test_events_wait_for_an_api_server_that_does_not_answer(api: FakeApi, events: EventPoster) -> None:
    """And are not counted twice."""
    api.errors = [ConnectionError("down"), ConnectionError("down")]
    for event in (TROUBLE, stage(1)):
        events.record(seen(), event)

    assert post(events)[:2] == [RETRY_SECONDS, RETRY_SECONDS]
    assert api.shown() == [("digits", TROUBLE.message, 1), ("digits", "Stage 1 began.", 1)]


def test_the_api_server_may_be_away_for_long(api: FakeApi, events: EventPoster) -> None:
    """An event that is tried again and again costs no more of its job's budget than one that is posted at once."""
    api.errors = [ConnectionError("down")] * (BURST + 5)
    events.record(seen(), TROUBLE)
    post(events)
    assert api.shown() == [("digits", TROUBLE.message, 1)]

    for number in range(BURST - 1):
        events.record(seen(), stage(number % MOST_SIMILAR))
        post(events)
    assert sum(count for _, message, count in api.shown() if message != TROUBLE.message) == BURST - 1


@pytest.mark.parametrize("text", ["a" * 1024, "…" + "z" * 1023, "é" * 600, "…" + "語" * 1023])
@pytest.mark.parametrize("prefix", ["", COMBINED])
def test_a_message_fits_into_an_event(text: str, prefix: str) -> None:
    """Of an event the API server counts bytes; the end stays, and what says that it is combined."""
    message = prefix + text

    cut = fitting(message)

    assert len(cut.encode()) <= MOST_BYTES
    assert (cut == message) == (len(message.encode()) <= MOST_BYTES)
    assert cut.startswith(prefix)
    assert cut.removeprefix(prefix + "…")[-300:] == text[-300:]


def test_a_long_message_is_posted_and_counted(api: FakeApi, events: EventPoster) -> None:
    for _ in range(2):
        events.record(seen(), Event("Warning", "WorkloadFailed", "é" * 1024))
        post(events)

    [(_, message, count)] = api.shown()
    assert (count, len(message.encode()) <= MOST_BYTES) == (2, True)


def test_a_refused_event_is_dropped(api: FakeApi, events: EventPoster, caplog: pytest.LogCaptureFixture) -> None:
    api.errors = [Refused(403, "no")]
    events.record(seen(), TROUBLE)
    post(events)

    assert (api.requests, api.shown()) == (1, [])
    assert "default/digits: cannot post the event Stalled: no" in caplog.text


def test_only_the_leader_posts(api: FakeApi) -> None:
    left = [0.0]
    events = EventPoster(api, lambda: left[0])  # type: ignore[arg-type]
    assert None is events.post_next()
    events.record(seen(), TROUBLE)
    assert events.post_next() == RETRY_SECONDS
    assert api.requests == 0

    left[0] = 12.0
    post(events)

    assert api.requests == 1


@pytest.mark.parametrize("event", [stage(1), TROUBLE])
def test_what_waits_is_bounded(
    api: FakeApi, events: EventPoster, monkeypatch: pytest.MonkeyPatch, event: Event
) -> None:
    """The oldest make room, warnings last."""
    monkeypatch.setattr(api_events, "MOST_WAITING", 2)
    for job in ("a", "b", "c"):
        events.record(seen(job), event)
    post(events)

    assert [job for job, _, _ in api.shown()] == ["b", "c"]


def test_the_events_of_a_job_that_is_gone_are_forgotten(api: FakeApi, events: EventPoster) -> None:
    for job in ("a", "b"):
        events.record(seen(job), TROUBLE)
        events.record(seen(job), stage(1))
    events.forget(Key("default", "a"))
    post(events)

    assert [job for job, _, _ in api.shown()] == ["b", "b"]
    assert {Key("default", "b")} == set(events.correlator._jobs)


def test_the_thread_posts_and_a_stop_posts_the_rest(api: FakeApi, events: EventPoster) -> None:
    events.start()
    events.record(seen("first"), TROUBLE)
    end = time.monotonic() + 10
    while not api.requests and time.monotonic() < end:
        time.sleep(0.005)
    assert api.requests
    for number in range(30):
        events.record(seen(f"job-{number}"), TROUBLE)

    events.stop()

    assert len(api.shown()) == 31
    assert events._thread is not None
    assert not events._thread.is_alive()


def test_an_error_that_nobody_expects_costs_its_event_alone(
    api: FakeApi, events: EventPoster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(api_events, "RETRY_SECONDS", 0.01)
    api.errors.append(KeyError("metadata"))
    events.start()
    events.record(seen("first"), TROUBLE)
    end = time.monotonic() + 10
    while "KeyError" not in caplog.text and time.monotonic() < end:
        time.sleep(0.005)
    assert "an event was not posted" in caplog.text
    events.record(seen("second"), TROUBLE)

    events.stop()

    assert [job for job, _, _ in api.shown()] == ["second"]


def test_a_stop_ends_in_time(api: FakeApi, events: EventPoster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if nothing was begun, or another operator leads."""
    events.stop()
    monkeypatch.setattr(api_events, "FLUSH_SECONDS", 0.2)
    slow = EventPoster(FakeApi(seconds=0.05))  # type: ignore[arg-type]
    idle = EventPoster(api, lambda: 0.0)  # type: ignore[arg-type]
    for each in (slow, idle):
        for number in range(30):
            each.record(seen(f"job-{number}"), TROUBLE)
        each.start()
        began = time.monotonic()
        each.stop()
        assert time.monotonic() - began < 5
        assert each._thread is not None
        each._thread.join(5)
        assert not each._thread.is_alive()
    assert api.requests == 0


def test_a_stop_does_not_wait_for_an_api_server_that_does_not_answer(api: FakeApi, events: EventPoster) -> None:
    api.errors = [ConnectionError("down")] * 50
    for number in range(3):
        events.record(seen(f"job-{number}"), TROUBLE)
    events.stop()

    events._run()

    assert api.requests == 1
