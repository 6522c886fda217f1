"""The API server's time of day, which all stored times are compared with."""

import time
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from threading import Lock


class ServerClock:
    """The API server's time of day, from the `Date` of its responses.

    It starts with this machine's time of day and advances with the monotonic clock, so that nothing that happens to
    this machine's clock afterwards matters. A response corrects it if the two cannot both be right.
    """

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()
        self._lock = Lock()  # requests are made in many threads

    def now(self) -> datetime:
        """The current time, in UTC."""
        return datetime.fromtimestamp(self._offset + time.monotonic(), UTC)

    def correct(self, date: str | None, requested: float) -> None:
        """Handles the `Date` of a response; the request was sent at that time of the monotonic clock.

        The server read its clock between then and now, and cut off the fraction of the second. A response without a
        date, or with one that cannot be read, changes nothing.
        """
        arrived = time.monotonic()
        try:
            said = parsedate_to_datetime(date or "").timestamp()
        except ValueError:
            return
        with self._lock:
            self._offset = min(max(self._offset, said - arrived), said + 1 - requested)
