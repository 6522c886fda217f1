"""Restarts of workers that did not answer, by their nannies; without a nanny, the end of those that stay away."""

import asyncio
import time
from collections.abc import Callable

from distributed import Client

from batchgrowth_trainer.crew.calls import CALL_SECONDS
from batchgrowth_trainer.worker import service

STUCK_SECONDS = 300.0
"""The longest that a worker without a nanny may take to come back; Dask waits as long for a silent worker."""


class Restarts:
    """Restarts workers; `is_back` returns whether one is ready again, or about to exit by itself."""

    def __init__(self, client: Client, is_back: Callable[[str], bool]) -> None:
        self._client, self._is_back = client, is_back
        self._given_up_at: dict[str, float] = {}  # when a worker without a nanny last did not answer

    async def restart(self, address: str) -> None:
        """Have the worker's nanny restart it; without a nanny, end its process if it is not back in STUCK_SECONDS.

        Only a worker whose thread is free becomes ready again, so one that was slow keeps its process.
        If the event loop hangs too, this cannot reach the process, and its pod's liveness probe ends it.
        """
        try:
            await self._client._restart_workers([address], timeout=CALL_SECONDS, raise_for_error=False)
        except ValueError:  # it has no nanny
            await self._end_if_stuck(address)

    async def _end_if_stuck(self, address: str) -> None:
        given_up_at = self._given_up_at[address] = time.monotonic()
        await asyncio.sleep(STUCK_SECONDS)
        if self._given_up_at[address] == given_up_at and not self._is_back(address):
            why = f"this worker did not answer, and was not ready again within {STUCK_SECONDS:.0f} s"
            await self._client._run(service.give_up, why, workers=[address], on_error="ignore")
