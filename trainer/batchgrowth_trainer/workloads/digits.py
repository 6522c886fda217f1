"""Handwritten digits, 8×8 grey levels: scikit-learn's copy of the UCI test set, 1,797 real images, no download.

E. Alpaydin and C. Kaynak, *Optical Recognition of Handwritten Digits*, UCI Machine Learning Repository, 1998.
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from batchgrowth_trainer.workload import Workload, correct
from batchgrowth_trainer.workloads.arguments import share, whole

TEST_EXAMPLES = 360
BRIGHTEST = 16.0
CLASSES = 10


def workload(hidden: str = "64", dropout: str = "0.2") -> Workload:
    """A convolutional net with batch norm and dropout; `hidden` is the number of channels of its first layers."""
    return _workload(conv_net(whole("hidden", hidden), share("dropout", dropout)))


def mlp(hidden: str = "128") -> Workload:
    """A net of one hidden layer without batch norm or dropout; `hidden` is that layer's width."""
    width = whole("hidden", hidden)
    return _workload(nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, CLASSES)))


def _workload(model: nn.Module) -> Workload:
    train, test = split()
    loss = nn.CrossEntropyLoss(reduction="none")
    return Workload(model=model, loss=loss, train=train, test=test, metrics={"accuracy": correct})


def split() -> tuple[TensorDataset, TensorDataset]:
    """1,437 training and 360 test examples: images float32 (N, 1, 8, 8) in [0, 1], labels int64 (N,).

    The split is stratified by class and always the same, whatever the job's seed.
    """
    digits = load_digits()
    images = torch.tensor(digits.images / BRIGHTEST, dtype=torch.float32).unsqueeze(1)
    labels = torch.tensor(digits.target, dtype=torch.int64)
    train, test = train_test_split(range(len(labels)), test_size=TEST_EXAMPLES, stratify=digits.target, random_state=0)
    return _subset(images, labels, train), _subset(images, labels, test)


def _subset(images: Tensor, labels: Tensor, indices: list[int]) -> TensorDataset:
    chosen = torch.tensor(sorted(indices))
    return TensorDataset(images[chosen], labels[chosen])


def conv_net(channels: int, dropout: float) -> nn.Sequential:
    """Images (N, 1, 8, 8) -> class scores (N, 10): three convolutions at 8×8, 8×8 and 4×4, then a linear layer."""
    return nn.Sequential(
        *_convolution(1, channels),
        *_convolution(channels, channels),
        nn.MaxPool2d(2),
        *_convolution(channels, 2 * channels),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(8 * channels, CLASSES),
    )


def _convolution(inputs: int, outputs: int) -> tuple[nn.Module, ...]:
    conv = nn.Conv2d(inputs, outputs, kernel_size=3, padding=1, bias=False)
    return conv, nn.BatchNorm2d(outputs), nn.ReLU()
