"""The digits net on workers of which some begin to compute wrongly in one bit, and one with code of several answers."""

import os
from pathlib import Path

import torch
from batchgrowth_trainer.exchange import spot_check
from batchgrowth_trainer.workload import Workload
from slow_digits import workload as slow
from torch import Tensor

spot_check.SHARDS_BETWEEN = 8


def workload(folder: str, times: str, good: str) -> Workload:
    """One whose gradient is wrong in so many processes, in each of them after so many good shards."""
    made = slow("0")
    faulty = _Faulty(Path(folder), int(times), int(good))
    next(made.model.parameters()).register_hook(faulty)
    return made


def fickle() -> Workload:
    """One that draws from a generator of its own, in every process another one."""
    made = slow("0")
    draw = torch.Generator()
    draw.seed()
    calls = [0]

    def noisy(gradient: Tensor) -> Tensor:
        calls[0] += 1
        if calls[0] < 20:
            return gradient
        return gradient + 1e-6 * torch.randn(gradient.shape, generator=draw)

    next(made.model.parameters()).register_hook(noisy)
    return made


class _Faulty:
    def __init__(self, folder: Path, times: int, good: int) -> None:
        self._folder = folder
        self._times = times
        self._good = good
        self._calls = 0
        self._is_broken = False

    def __call__(self, gradient: Tensor) -> Tensor:
        """Return the gradient, with a wrong bit if this process is one of the faulty ones."""
        self._calls += 1
        if self._calls == self._good:
            self._is_broken = any(self._claimed(number) for number in range(self._times))
        if not self._is_broken:
            return gradient
        wrong = gradient.clone()
        wrong.view(-1)[:1].view(torch.int32).bitwise_xor_(1 << 20)
        return wrong

    def _claimed(self, number: int) -> bool:
        try:
            os.close(os.open(self._folder / f"{number}.claimed", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True
