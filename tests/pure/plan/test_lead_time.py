"""Workers are requested ahead of their milestone, and spare ones are kept if they are needed again soon."""

import math

import pytest
from batchgrowth.contract.lead_time import Upcoming, requested, smoothed, window
from hypothesis import given
from hypothesis import strategies as st

AHEAD = (Upcoming(4, 12.0), Upcoming(8, 40.0), Upcoming(2, 90.0))


@pytest.mark.parametrize(
    ("current", "before", "lead", "bound", "expected"),
    [
        (1, 1, 4.0, math.inf, 1),  # the next stage begins in 12 s and its workers are requested 6 s ahead
        (1, 1, 8.0, math.inf, 4),
        (1, 1, 30.0, math.inf, 8),
        (1, 1, 30.0, 15.0, 4),
        (1, 8, 4.0, math.inf, 8),  # a stage within 40 s wants them again
        (1, 8, 1.0, math.inf, 1),
        (1, 8, 1.3, math.inf, 4),
        (1, 8, 30.0, 0.0, 1),  # 0 requests and releases at the milestone itself
        (5, 1, 0.0, math.inf, 5),
    ],
)
def test_table(current: int, before: int, lead: float, bound: float, expected: int) -> None:
    assert requested(current, AHEAD, before, lead, bound) == expected


def test_the_first_measurement_counts_whole() -> None:
    assert smoothed(None, 8.0) == 8.0
    assert smoothed(8.0, 4.0) == 6.0
    assert (window(8.0), window(8.0, 10.0)) == (12.0, 10.0)


@pytest.mark.parametrize(
    ("current", "lead", "bound", "age", "expected"),
    [(1, 4.0, math.inf, 39.0, 8), (1, 4.0, math.inf, 40.0, 1), (9, 4.0, math.inf, 0.0, 9), (1, 4.0, 0.0, 0.0, 1)],
)
def test_a_young_request_for_a_forecast_is_not_lowered(
    current: int, lead: float, bound: float, age: float, expected: int
) -> None:
    """Of 8 workers when the forecast is gone."""
    assert requested(current, (), 8, lead, bound, age) == expected


@given(
    st.integers(1, 9),
    st.lists(st.builds(Upcoming, st.integers(1, 9), st.floats(0, 99))),
    st.integers(0, 9),
    st.floats(0, 50),
)
def test_a_request_covers_the_current_stage_and_exceeds_no_stage(
    current: int, upcoming: list[Upcoming], before: int, lead: float
) -> None:
    """Asking twice asks for the same."""
    first = requested(current, upcoming, before, lead)
    assert current <= first <= max([current, *(stage.workers for stage in upcoming)])
    assert first == requested(current, upcoming, first, lead)
