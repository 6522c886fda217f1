"""How durations are worded."""

import pytest
from batchgrowth.errors import duration


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0.0 s"), (59.94, "59.9 s"), (60, "1 min 00 s"), (3599.4, "59 min 59 s"), (7620, "2 h 07 min")],
)
def test_durations_are_worded_shortly(seconds: float, text: str) -> None:
    assert text == duration(seconds)
