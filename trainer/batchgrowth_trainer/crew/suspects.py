"""The workers that had a fault of their own, and when the same fault counts as the job's."""

from collections import Counter

from batchgrowth_trainer.blame import WorkerFault

MOST_FAULTS = 3  # after which a worker computes only if there is no other


class Suspects:
    """Remembers the faults at the update where training stands, by worker."""

    def __init__(self) -> None:
        self._update = -1
        self._seen: dict[str, set[str]] = {}  # what failed at this update -> the workers on which it did
        self._faults: Counter[str] = Counter()

    def accuse(self, worker: str, fault: WorkerFault, *, alone: bool, last: bool = False) -> None:
        """Note the fault. Raises it if it came before on another worker, or on this one, which is the only one.

        If no worker is left that could compute, as `last` says, a worker has MOST_FAULTS tries.
        """
        before = self._seen.setdefault(fault.what, set())
        only = alone and set(self._faults) <= {worker}
        if before - {worker} or (before and only) or (last and self._faults[worker] >= MOST_FAULTS):
            raise fault
        before.add(worker)
        self._faults[worker] += 1

    def settle(self, update: int) -> None:
        """Forget the faults at earlier updates: others have computed those."""
        if update > self._update:
            self._update = update
            self._seen.clear()

    def is_suspect(self, worker: str) -> bool:
        """Whether others should compute the present update, or every update, if there are others."""
        return self._faults[worker] >= MOST_FAULTS or any(worker in workers for workers in self._seen.values())
