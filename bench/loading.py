"""Images that take some milliseconds to read, and a small net that trains on them."""

from __future__ import annotations

import time
import zlib
from functools import cache

import torch
from batchgrowth_trainer.workload import Workload
from torch import Tensor, nn
from torch.utils.data import Dataset

SIDE, CLASSES = 32, 10
_TRIES, _TRIAL = 20, 20  # trials, and the repeats of each


class Slow(Dataset[tuple[Tensor, Tensor]]):
    """Compressed images, each decompressed `repeats` times."""

    def __init__(self, examples: int, repeats: int) -> None:
        self.examples, self.repeats = examples, repeats
        image = torch.rand(3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
        self.packed = zlib.compress(image.numpy().tobytes())

    def __len__(self) -> int:
        return self.examples

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        for _ in range(self.repeats):
            raw = zlib.decompress(self.packed)
        image = torch.frombuffer(bytearray(raw), dtype=torch.float32).view(3, SIDE, SIDE)
        return image + index % 7, torch.tensor(index % CLASSES)


@cache
def repeats(milliseconds: int) -> int:
    """The repeats with which this machine takes that number of milliseconds for an image.

    By the least processor time of several trials, since other processes that share the caches can only add to it.
    """
    images, each = Slow(1, _TRIAL), []
    for _ in range(_TRIES):
        began = time.thread_time()
        images[0]
        each.append((time.thread_time() - began) / _TRIAL)
    return max(1, round(milliseconds / 1e3 / min(each)))


def net() -> nn.Module:
    """A small convolutional net."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(32, CLASSES),
    )  # fmt: skip


def workload(examples: str, repeats: str) -> Workload:
    """The net on slow images."""
    return Workload(model=net(), loss=nn.CrossEntropyLoss(reduction="none"), train=Slow(int(examples), int(repeats)))
