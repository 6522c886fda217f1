"""The slow digits net on workers whose device or data fails, once or always."""

import errno
import os
import time
from pathlib import Path
from typing import Any

import torch
from batchgrowth_trainer.replica import data
from batchgrowth_trainer.worker import member
from batchgrowth_trainer.workload import Dataset, Workload
from slow_digits import workload as slow

data._RETRY_SECONDS = 0.2
member.TICK_SECONDS = 0.05
GOOD_SHARDS = {"device": 40, "hang": 40, "hang alone": 40, "memory": 0}  # of a process
FAULTS = {
    "hang": None,
    "hang alone": None,
    "device": RuntimeError("CUDA error: uncorrectable ECC error encountered"),
    "memory": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB."),
    "read": OSError(errno.ESTALE, "Stale file handle"),
}


def workload(fault: str, folder: str, times: str, example: str = "1000") -> Workload:
    """One that has the fault in so many processes; each of them has it from then on."""
    member.STUCK_SECONDS = 30.0 if fault == "hang" else 1.0
    net, faulty = slow(), _Faulty(fault, Path(folder), int(times), int(example))
    train = _Unreadable(net.train, faulty) if fault == "read" else net.train
    if fault != "read":
        net.model.register_forward_pre_hook(lambda model, _: faulty.count() if model.training else None)
    return Workload(model=net.model, loss=net.loss, train=train, test=net.test, metrics=net.metrics,
                    augment=net.augment)  # fmt: skip


class _Faulty:
    def __init__(self, fault: str, folder: Path, times: int, example: int) -> None:
        self.error, self.folder, self.times, self.example = FAULTS[fault], folder, times, example
        self.broken, self.calls, self.good = False, 0, GOOD_SHARDS.get(fault, 0)

    def count(self) -> None:
        """Have the fault after some good shards."""
        self.calls += 1
        if self.calls > self.good:
            self.touch()

    def touch(self) -> None:
        """Raise the error, if this process is one of those that have it."""
        self.broken = self.broken or any(self._claimed(number) for number in range(self.times))
        if self.broken and self.error is None:
            time.sleep(3600)
        elif self.broken:
            raise self.error

    def _claimed(self, number: int) -> bool:
        try:
            os.close(os.open(self.folder / f"{number}.claimed", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True


class _Unreadable:
    def __init__(self, inner: Dataset, faulty: _Faulty) -> None:
        self.inner, self.faulty = inner, faulty

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> Any:
        if index == self.faulty.example:
            self.faulty.touch()
        return self.inner[index]
