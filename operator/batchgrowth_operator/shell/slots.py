"""How many passes run at once, and whose turn is next: a change goes before what is only due."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from batchgrowth_operator.server.store import Key


class Slots:
    """Lets passes of `most` jobs run at once, of which at most `most_patient` are patient; for those, one is kept free.

    So a milestone does not wait until the progress of many jobs is written, and a deadline not until nothing changes.
    """

    def __init__(self, most: int, most_patient: int) -> None:
        self._most, self._most_patient = most, most_patient
        self._urgent: dict[Key, asyncio.Future[None]] = {}
        self._patient: dict[Key, asyncio.Future[None]] = {}
        self._is_patient: dict[Key, bool] = {}
        """Of each pass that runs."""

    @asynccontextmanager
    async def slot(self, key: Key, *, patient: bool) -> AsyncIterator[None]:
        """A slot for the block, once it is the job's turn; a job has one pass at a time."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        (self._patient if patient else self._urgent)[key] = turn
        self._admit()
        try:
            await turn
            yield
        finally:
            for jobs in (self._urgent, self._patient, self._is_patient):
                jobs.pop(key, None)
            self._admit()

    def hurry(self, key: Key) -> None:
        """Has the job's pass be patient no longer, if it waits for its turn."""
        if key in self._patient:
            self._urgent[key] = self._patient.pop(key)
            self._admit()

    def _admit(self) -> None:
        while len(self._is_patient) < self._most and (turn := self._next()) is not None:
            if not turn.cancelled():
                turn.set_result(None)

    def _next(self) -> asyncio.Future[None] | None:
        """The turn of the job that waits longest, of those that may run now."""
        patient = sum(self._is_patient.values())
        if self._urgent and len(self._is_patient) - patient < self._most - 1:
            return self._take(self._urgent, patient=False)
        if self._patient and patient < self._most_patient:
            return self._take(self._patient, patient=True)
        return None

    def _take(self, waiting: dict[Key, asyncio.Future[None]], *, patient: bool) -> asyncio.Future[None]:
        key = next(iter(waiting))
        self._is_patient[key] = patient
        return waiting.pop(key)
