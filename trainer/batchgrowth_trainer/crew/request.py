"""A request that a worker's thread computes something, which the driver makes to the worker itself.

It takes Dask's connections but not its scheduler, whose tasks take longer and need their data scattered before and
their results gathered after.
"""

from itertools import count
from typing import Any, Literal

from distributed.core import clean_exception

_NUMBERS = count()


class Request:
    """Looks like a future of Dask to those who wait for its end; `result` is the answer once `status` is "finished".

    It is "lost" if the worker, or the connection to it, is; "error" if `exception()` was raised on the way or there.
    """

    def __init__(self) -> None:
        self.key = f"request-{next(_NUMBERS)}"
        self.status: Literal["pending", "finished", "error", "lost"] = "pending"
        self.result: Any = None
        self._error: BaseException | None = None

    def end(self, answer: Any) -> None:
        """Take what the worker's handler returned: see `service.listen`."""
        if answer is None:
            self.status = "lost"
        elif isinstance(answer, dict):
            self.fail(clean_exception(**answer)[1])
        else:
            self.result, self.status = answer, "finished"

    def fail(self, error: BaseException | None) -> None:
        """Take what the function raised, or what prevented it or its answer."""
        self._error, self.status = error, "error"

    def lose(self) -> None:
        """Take the loss of the worker, or of the answer."""
        self.status = "lost"

    def exception(self) -> BaseException | None:
        """The error of a request with that status; None otherwise."""
        return self._error
