"""Images that take some milliseconds to read, and a small net that trains on them."""

from __future__ import annotations

import time
import zlib
from functools import cache

import torch
from batchgrowth_trainer.workload import Workload
from torch import Tensor, nn
from torch.utils.data import Dataset

SIDE = 32
CLASSES = 10
_TRIALS = 20
_REPEATS_OF_A_TRIAL = 20


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
    """Return the repeats with which this machine takes that number of milliseconds for an image.

    The least processor time of several trials counts, since other processes that share the caches can only add to it.
    """
    images = Slow(1, _REPEATS_OF_A_TRIAL)
    each = []
    for _ in range(_TRIALS):
        began = time.thread_time()
        images[0]
        each.append((time.thread_time() - began) / _REPEATS_OF_A_TRIAL)
    return max(1, round(milliseconds / 1e3 / min(each)))


def workload(examples: str, repeats: str) -> Workload:
    """Return a small convolutional net on slow images."""
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, CLASSES),
    )
    return Workload(model=net, loss=nn.CrossEntropyLoss(reduction="none"), train=Slow(int(examples), int(repeats)))
