"""The API server's time of day, as this process knows it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from batchgrowth_operator.api import client
from batchgrowth_operator.api.client import ServerClock

START = datetime(2026, 11, 20, 10, tzinfo=UTC)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """This machine's clocks: `wall` and `steady` are their times in seconds."""
    made = SimpleNamespace(wall=START.timestamp(), steady=5000.0)
    made.time, made.monotonic = lambda: made.wall, lambda: made.steady
    monkeypatch.setattr(client, "time", made)
    return made


def since_start(it: ServerClock) -> float:
    return (it.now() - START).total_seconds()


@pytest.mark.fault("B14")
def test_it_follows_the_monotonic_clock(machine: SimpleNamespace) -> None:
    it = ServerClock()
    machine.wall += 86400
    machine.steady += 7

    assert since_start(it) == 7.0


@pytest.mark.fault("B14")
@pytest.mark.parametrize(
    ("date", "took", "expected"),
    [
        ("Fri, 20 Nov 2026 10:00:00 GMT", 0.25, 0.25),
        ("Fri, 20 Nov 2026 09:59:59 GMT", 0.25, 0.25),
        ("Fri, 20 Nov 2026 09:59:58 GMT", 0.25, -0.75),
        ("Fri, 20 Nov 2026 10:00:02 GMT", 0.25, 2.0),
        ("Fri, 20 Nov 2026 10:00:02 GMT", 2.5, 2.5),
        ("Fri, 20 Nov 2026 11:00:00 GMT", 0.25, 3600.0),
        ("Thu, 19 Nov 2026 10:00:00 GMT", 0.25, 1.25 - 86400),
        (None, 0.25, 0.25),
        ("soon", 0.25, 0.25),
        ("Fri, 32 Nov 2026 10:00:00 GMT", 0.25, 0.25),
    ],
)
def test_a_response_corrects_what_it_contradicts(
    machine: SimpleNamespace, date: str | None, took: float, expected: float
) -> None:
    it, requested = ServerClock(), machine.steady
    machine.steady += took

    it.correct(date, requested)

    assert it.now() == START + timedelta(seconds=expected)


def test_dates_without_fractions_do_not_turn_it_back(machine: SimpleNamespace) -> None:
    """Durations are measured in milliseconds between two of its times."""
    it, seen = ServerClock(), []
    for tenth in range(40):
        date = f"Fri, 20 Nov 2026 10:00:{int(tenth / 10 + 0.55):02} GMT"
        it.correct(date, machine.steady)
        seen.append(since_start(it))
        machine.steady += 0.1

    assert seen == sorted(seen)
    assert pytest.approx(seen[-1], abs=1e-6) == 39 / 10 + 0.5
