"""The pause at a resize: the time for which members have not computed when a new generation begins.

Each member measures its own and sends it to the driver with GenerationBegan; the longest is the pause of the resize.
worker/member.py starts and reads the clock. With GatherScatter the driver measures the pause itself.
"""

import time
from collections.abc import Iterable


class PauseClock:
    """Measures the time for which a member has not computed."""

    def __init__(self) -> None:
        self._update = -1
        self._since = 0.0

    def start(self, update: int) -> None:
        """Restart the clock: the member has just computed `update`, or the evaluation after it."""
        self._update = update
        self._since = time.perf_counter()

    def seconds(self, update: int) -> float | None:
        """Return the seconds since the start; None if the member has its state, of `update`, from another member."""
        if update != self._update:
            return None
        return time.perf_counter() - self._since


def longest_pause(pauses: Iterable[float | None], otherwise: float) -> float:
    """Return the longest pause of the members in seconds; `otherwise` if all are newcomers, which have no pause."""
    return max((pause for pause in pauses if pause is not None), default=otherwise)
