"""Handwritten digits, 8×8 grey levels: scikit-learn's copy of the UCI test set, 1,797 real images, no download.

E. Alpaydin and C. Kaynak, *Optical Recognition of Handwritten Digits*, UCI Machine Learning Repository, 1998.
"""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from batchgrowth.errors import DataError
from torch import nn
from torch.utils.data import TensorDataset

from batchgrowth_trainer.workload import Workload, correct
from batchgrowth_trainer.workloads import share, whole

TEST_EXAMPLES = 360
BRIGHTEST = 16.0
CLASSES = 10

# One bit per example, the lowest for the first: 1 for test examples. They were chosen by scikit-learn's
# train_test_split(range(1797), test_size=TEST_EXAMPLES, stratify=labels, random_state=0).
_TEST = int(
    "a8251c80484240414030058109010615108420243402654411004100c14080701601032203209414cc008405082100807008"
    "0000981003c0101c008100411080007160200403013200100108106386a1d021000a5018250542020001220068408156ec21"
    "6202200100838202404012180520100210d0000000501965043c8015c100212440009023704000080c001202a00008051002"
    "080023a0120004018100001b2002000000500502429224a822041150100005088140051f0420489809005029000800483460"
    "140024008010005800a042c900826000020824ac11200000",
    16,
)


def workload(hidden: str = "64", dropout: str = "0.2") -> Workload:
    """Train a convolutional net with batch norm and dropout; `hidden` is the channels of its first two layers."""
    return _workload(conv_net(whole("hidden", hidden), share("dropout", dropout)))


def mlp(hidden: str = "128") -> Workload:
    """Train a net with one hidden layer of width `hidden`, without batch norm or dropout."""
    width = whole("hidden", hidden)
    return _workload(nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, CLASSES)))


def _workload(model: nn.Module) -> Workload:
    train, test = split()
    loss = nn.CrossEntropyLoss(reduction="none")
    return Workload(model=model, loss=loss, train=train, test=test, metrics={"accuracy": correct})


def split() -> tuple[TensorDataset, TensorDataset]:
    """Return 1,437 training and 360 test examples: images float32 (N, 1, 8, 8) in [0, 1], labels int64 (N,).

    The split is stratified by class and does not depend on the job's seed.
    """
    table = np.loadtxt(_file(), delimiter=",", dtype=np.float64)
    images = torch.tensor(table[:, :-1].reshape(-1, 1, 8, 8) / BRIGHTEST, dtype=torch.float32)
    labels = torch.tensor(table[:, -1], dtype=torch.int64)
    chosen = torch.tensor([bool(_TEST >> index & 1) for index in range(len(labels))])
    return TensorDataset(images[~chosen], labels[~chosen]), TensorDataset(images[chosen], labels[chosen])


def _file() -> Path:
    """Find scikit-learn's file without importing scikit-learn, which would take a second."""
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise DataError(
            "digits: the images come with scikit-learn, which is not installed; install batchgrowth[trainer]"
        )
    return Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"


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
